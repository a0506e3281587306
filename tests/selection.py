"""What the default run leaves to `make test-all`: most cases of matrices, XLA's optimisation, and contexts of MLIR.

A test with several `parametrize` has a case for each combination of their rows, and tests of one file often share a
parameter. The default run takes one case of each test, and of those with a row that no other case of the file has a
third in a matrix, a quarter in a list of one parameter; the others are marked `full`. Which they are depends on their
names alone, so every process takes the same.
`pytest.mark.sample(k)` takes one in k cases of a test, and `pytest.mark.every_case` takes all of a matrix, for faults
that one combination alone has shown. `drawn` says how many programs a test takes that draws them itself. Of a test with
`sample(k, full=j)` or `sample(full=j)`, whose cases repeat a class, `make test-all` takes one case in j, of a matrix
every row before others, and the rest is `slow`. Of any other matrix it takes the sample, every row, and a third of the
combinations whose rows other cases have.
`make test-all` compares with XLA as users have it, but for cases of folders about the code of a lane, to which XLA is
the oracle alone, and for cases out of the sample of a test with another: of these a pass with the quick XLA is enough,
and those that fail with it are decided by XLA as users have it. LLVM, too, makes code of the latter in the quick way of
the default run first (`tests/kept_code.py`).
"""

import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import jax
import pytest
from _pytest.python import CallSpec, FunctionDefinition
from jax._src import traceback_util
from jax._src.interpreters import mlir
from jax._src.lru_cache import LRUCache

CaseOrItem = TypeVar("CaseOrItem", "Case", pytest.Item)

_COSTLY = {"api", "autodiff", "bench", "compose", "gpu", "importer", "libraries", "lowering", "maths", "runtime"}
"""Folders whose tests compile. Cases of the others take next to no time, so all of them run."""
LANES_ALONE = frozenset({"autodiff", "coverage", "differential", "edges", "importer", "lowering", "rules"})
"""Folders whose tests are about the code of a lane."""
_LIST, _MATRIX = 4, 3
"""Of how many cases with a row of their own one runs, in lists and in matrices of several parameters."""
_QUICK = ["--xla_cpu_parallel_codegen_split_count=1"]
"""Flags that have XLA compile sooner: a program in one piece takes three quarters of the time of one in 32."""
if jax.__version_info__ < (0, 11):
    _QUICK.append("--xla_cpu_use_fusion_emitters=false")  # the older emitter of loops; later releases abort at the flag


def quick_xla() -> None:
    """Makes XLA, which most results are compared to, compile in a third of its time, here and in child processes."""
    given = os.environ.get("XLA_FLAGS", "").split()  # a worker has those of the process that started it
    os.environ["XLA_FLAGS"] = " ".join([*(flag for flag in _QUICK if flag not in given), *given])
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    jax.config.update("jax_disable_most_optimizations", True)


def shared_executables(folder: Path) -> None:
    """Has workers and later runs take XLA's executables from a folder, so that each is compiled once."""
    version = sys.version_info[:2]  # of 3.14 on, JAX compresses them in a way that older Pythons cannot read
    jax.config.update("jax_compilation_cache_dir", str(folder / "python{}.{}".format(*version)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    LRUCache.put = put_whole


def put_whole(cache: LRUCache, key: str, value: bytes, write: Callable[..., None] = LRUCache.put) -> None:
    """Writes a file of JAX's cache under a name of its own and renames it: JAX writes in place, while another worker
    may read. A folder of its own would take three times as long."""
    own = f"{key}-{os.getpid()}-{threading.get_ident()}"
    write(cache, own, value)
    (cache.path / f"{own}-cache").replace(cache.path / f"{key}-cache")


def kept_bytecode() -> None:
    """Has child processes find the package compiled, also where the environment asks Python to write nothing: reading
    and compiling its modules would take a third of the time of a child."""
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def few_contexts() -> None:
    """Has JAX lower 64 programs of a thread in one context of MLIR. It makes one of its own for each, a tenth of the
    time of small programs; they are left now and then for the constants that they keep. What is lowered while another
    program is would become a part of that one."""
    make, kept = mlir.make_ir_context, threading.local()

    def context() -> object:
        if mlir.ir.Context.current is not None:
            return make()
        if not getattr(kept, "left", 0):
            kept.context, kept.left = make(), 64
        kept.left -= 1
        return kept.context

    mlir.make_ir_context = context


def rare_collections() -> None:
    """Has Python look for cycles a thousand times less often, and never among what the imports have made."""
    gc.freeze()
    gc.set_threshold(700_000, 20, 10)
    gc.enable()


def known_files() -> None:
    """Has JAX remember which files are its own. It asks the system anew for each frame of each error, a millisecond
    an error."""
    traceback_util.include_filename = cache(traceback_util.include_filename)


takes_sample = False
"""Whether this run takes a sample; `tests/session.py` decides it before tests are imported."""


def drawn(count: int) -> int:
    """Returns how many of the `count` random programs of a test this run takes: a third where it takes a sample."""
    return -(-count // 3) if takes_sample else count


def is_whole_suite(config: pytest.Config) -> bool:
    """Returns whether the run is that of `make test-all`."""
    return config.option.markexpr == "not slow" and not names_tests(config)


def is_default_run(config: pytest.Config) -> bool:
    """Returns whether the run leaves out tests that are marked `full`."""
    return re.search(r"\bnot full\b", config.option.markexpr) is not None


def left_marks(config: pytest.Config) -> Sequence[str]:
    """Returns the marks that are left out by the run of a suite."""
    return ("slow", "full") if is_default_run(config) else ("slow",) if is_whole_suite(config) else ()


def names_tests(config: pytest.Config) -> bool:
    """Returns whether the command line names tests, all of whose cases are wanted."""
    return bool(config.option.keyword) or any("::" in arg for arg in config.args)


class Case:
    """A case of a test before pytest makes an item of it."""

    def __init__(self, test: FunctionDefinition, callspec: CallSpec, marks: Mapping[str, pytest.Mark]) -> None:
        self.nodeid = f"{test.nodeid}[{callspec.id}]"
        self.path, self.callspec, self._test = test.path, callspec, test
        self._marks = {**marks, **{m.name: m for m in callspec.marks}}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        """Returns the mark of a name, as an item does."""
        return self._marks.get(name)

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        """Yields the marks of a name that the test has, as an item does."""
        return self._test.iter_markers(name)

    def mark(self, name: str) -> None:
        """Gives the case a mark, and the item that pytest makes of it."""
        mark = self._marks[name] = getattr(pytest.mark, name).mark
        self.callspec.marks.append(mark)


_rows_of: dict[Path, set[tuple[object, ...]]] = {}
"""Rows that the chosen cases of a file's tests have, by file."""


def choose_cases(metafunc: pytest.Metafunc, out: Sequence[str]) -> None:
    """Marks the cases of a test that suites leave out, and drops those with a mark in `out`. Two thirds of all cases
    are not in the sample, and an item of pytest takes a third of a millisecond."""
    test, specs = metafunc.definition, metafunc._calls
    marks = {m.name: m for m in reversed([*test.iter_markers()])}
    cases = [Case(test, spec, marks) for spec in specs]
    for case in [*slow_ones(cases)]:
        case.mark("slow")
    for case in [*left_out(cases, _rows_of.setdefault(test.path, set()))]:
        case.mark("full")
    for case in repeated(cases):
        case.mark("slow")
    # pytest makes an item without values where there is no case
    specs[:] = [case.callspec for case in cases if not any(map(case.get_closest_marker, out))] or specs[:1]


def slow_ones(cases: Sequence[Case]) -> Sequence[Case]:
    """Returns the cases of a test that are in no suite."""
    marker = cases[0].get_closest_marker("sample") if cases else None
    if marker is None or "full" not in marker.kwargs:
        return ()
    new, known = _by_rows(cases)
    return [*new, *known][-(-len(cases) // marker.kwargs["full"]) :]


def repeated(cases: Sequence[Case]) -> Sequence[Case]:
    """Returns the combinations of a matrix that are in no suite: two thirds of those out of the sample whose rows other
    cases have."""
    marker = cases[0].get_closest_marker("sample") if cases else None
    if marker is not None and "full" in marker.kwargs:
        return ()
    _, known = _by_rows([c for c in cases if not any(map(c.get_closest_marker, ("slow", "every_case", "gpu")))])
    known = [c for c in known if c.get_closest_marker("full")]
    return known[-(-len(known) // _MATRIX) :]


def left_out(cases: Sequence[Case], seen: set[tuple[object, ...]]) -> Iterator[Case]:
    """Yields the cases of a test that are not in the sample, and adds the rows of the others to those that its file
    has seen."""
    for case in cases:  # what a costly test draws, the others of its file need not draw in its place
        if case.get_closest_marker("full"):
            seen.update(_values(case))
    cases = [c for c in cases if not any(map(c.get_closest_marker, ("slow", "full", "every_case", "gpu")))]
    marker = cases[0].get_closest_marker("sample") if cases else None
    shuffled = _shuffled(cases)
    if marker is not None and marker.args:
        assert len(marker.args) == 1, f"{cases[0].nodeid}: `full` of `sample` has to be named"
        yield from shuffled[-(-len(cases) // marker.args[0]) :]
    elif len(cases) > 1 and cases[0].path.parent.name in _COSTLY:
        needed: list[Case] = []
        for case in shuffled:
            values = {*_values(case)}
            if needed and values <= seen:
                yield case
            else:
                needed.append(case)
            seen |= values
        of = _LIST if len({*_values(cases[0])}) == 1 else _MATRIX
        yield from needed[-(-len(needed) // of) :]


def quick_first(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yields the cases for which a pass with the quick XLA is enough in `make test-all`: all of folders about the code
    of a lane, and those out of the sample of a test with another case."""
    for cases, others in _out_of_sample(items):
        yield from cases if cases[0].path.parent.name in LANES_ALONE else others


def quick_code_first(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yields the cases for which a pass with quickly made code is enough in `make test-all`: those out of the sample of
    a test with another case."""
    for _, others in _out_of_sample(items):
        yield from others


def _out_of_sample(items: Iterable[pytest.Item]) -> Iterator[tuple[list[pytest.Item], list[pytest.Item]]]:
    """Yields the cases of each test, and those of them out of the sample; one stays where all of them are."""
    for _, of_one in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        cases = _shuffled(c for c in of_one if not any(map(c.get_closest_marker, ("slow", "gpu"))))
        others = [c for c in cases if c.get_closest_marker("full")]
        if cases:
            yield cases, others[len(others) == len(cases) :]


def _by_rows(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Returns the cases in the order of a hash: those with a row that is new, and those of a matrix without one."""
    seen: set[tuple[object, ...]] = set()
    new: list[Case] = []
    known: list[Case] = []
    for case in _shuffled(cases):
        values = {*_values(case)}
        (known if len(values) > 1 and values <= seen else new).append(case)
        seen |= values
    return new, known


def _shuffled(cases: Iterable[CaseOrItem]) -> list[CaseOrItem]:
    return sorted(cases, key=lambda case: crc32(case.nodeid.encode()))


def _values(case: Case) -> Iterator[tuple[object, ...]]:
    """Yields the row of each `parametrize`, and the value of each other fixture, that make the case."""
    left = dict(case.callspec.params)
    for mark in case.iter_markers("parametrize"):
        names = (mark.args[0],) if isinstance(mark.args[0], str) else mark.args[0]
        yield tuple((name, id(left.pop(name))) for name in names)
    yield from ((name, id(value)) for name, value in left.items())
