"""The default run's sample of a matrix is small, and the same in every process."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from jax._src import compiler
from jax._src.lru_cache import LRUCache

from lowering.llvm.target import Target
from lowering.runtime import compile
from lowering.runtime.cache import VERSION_LENGTH
from lowering.runtime.compile import machine_code, optimised
from lowering.runtime.jit import link
from lowering.runtime.keys import artifact_key, compiler_version
from tests import kept_code, selection
from tests.oracle import called_quickly, optimisation
from tests.selection import (
    choose_cases,
    drawn,
    is_default_run,
    is_whole_suite,
    left_marks,
    left_out,
    names_tests,
    put_whole,
    quick_code_first,
    quick_first,
    repeated,
    slow_ones,
)

DTYPES = ("f32", "f64", "i32", "u8")
ANSWER = "define i32 @answer() {\n  ret i32 42\n}\n"
PAIRS = ((1, 1), (2, 1), (1, 2))


def cases(*marks: Any, folder: str = "lowering", function: str = "test_all") -> list[Any]:
    """A test over two `parametrize`, one of them of two names, and a fixture's parameter."""
    of = [pytest.mark.parametrize("dtype", DTYPES).mark, pytest.mark.parametrize(("a", "b"), PAIRS).mark, *marks]
    return [
        SimpleNamespace(
            nodeid=f"tests/{folder}/test_it.py::{function}[{dtype}-{a}-{b}-{device}]",
            path=Path(f"tests/{folder}/test_it.py"),
            callspec=SimpleNamespace(params={"dtype": dtype, "a": a, "b": b, "device": device}),
            iter_markers=lambda name: [m for m in of if m.name == name],
            get_closest_marker=lambda name: next((m for m in of if m.name == name), None),
        )
        for dtype, (a, b), device in product(DTYPES, PAIRS, ("cpu", "gpu"))
    ]


def kept(all_cases: list[Any]) -> list[dict[str, Any]]:
    seen: set[tuple[object, ...]] = set()
    of_tests = groupby(all_cases, lambda case: case.nodeid.partition("[")[0])
    out = {id(case) for _, of_test in of_tests for case in left_out([*of_test], seen)}
    return [c.callspec.params for c in all_cases if id(c) not in out]


def test_a_matrix_keeps_a_third_of_the_cases_with_a_row_of_their_own() -> None:
    sample = kept(cases())
    assert 1 <= len(sample) <= (len(DTYPES) + len(PAIRS)) / 3 + 1
    assert sample == kept(cases())


@pytest.mark.parametrize(("count", "left"), [(1, 1), (2, 1), (4, 1), (9, 3), (10, 3)])
def test_a_list_keeps_a_quarter_and_no_less_than_one(count: int, left: int) -> None:
    numbers = pytest.mark.parametrize("k", range(count)).mark
    of_list = [
        SimpleNamespace(
            nodeid=f"tests/lowering/test_it.py::test_all[{k}]",
            path=Path("tests/lowering/test_it.py"),
            callspec=SimpleNamespace(params={"k": k}),
            iter_markers=lambda _: [numbers],
            get_closest_marker=lambda _: None,
        )
        for k in range(count)
    ]
    assert len(kept(of_list)) == left


def test_tests_of_one_file_share_their_rows() -> None:
    both = [*cases(), *cases(function="test_other")]
    assert len(kept(both)) == len(kept(cases())) + 1


def test_cases_that_need_a_gpu_are_no_part_of_a_sample() -> None:
    """They are skipped without one, so no row may be theirs alone."""
    assert len(kept(cases(pytest.mark.gpu.mark))) == 24


@pytest.mark.parametrize(
    ("folder", "marks", "count"),
    [
        ("passes", (), 24),
        ("lowering", (pytest.mark.every_case.mark,), 24),
        ("lowering", (pytest.mark.slow.mark,), 24),
        ("passes", (pytest.mark.sample(5).mark,), 5),
        ("lowering", (pytest.mark.sample(100).mark,), 1),
    ],
)
def test_marks_and_folders_decide(folder: str, marks: tuple[Any, ...], count: int) -> None:
    assert len(kept(cases(*marks, folder=folder))) == count


@pytest.mark.parametrize(("full", "count"), [(2, 12), (4, 6), (3, 8)])
def test_a_sample_of_the_whole_suite_has_every_row(full: int, count: int) -> None:
    many = cases(pytest.mark.sample(full=full).mark)
    slow = {*map(id, slow_ones(many))}
    left = [c.callspec.params for c in many if id(c) not in slow]
    assert len(left) == count
    assert {p["dtype"] for p in left} == {*DTYPES}
    assert {(p["a"], p["b"]) for p in left} == {*PAIRS}
    assert not slow_ones(cases(pytest.mark.sample(8).mark))


def test_a_whole_suite_has_every_row_of_a_matrix_and_a_third_of_what_repeats_them() -> None:
    many = cases(pytest.mark.full.mark)
    left = [c.callspec.params for c in many if id(c) not in {*map(id, repeated(many))}]
    assert {p["dtype"] for p in left} == {*DTYPES}
    assert {(p["a"], p["b"]) for p in left} == {*PAIRS}
    assert len(left) < 24 / 3 + len(DTYPES) + len(PAIRS)


@pytest.mark.parametrize(
    "marks", [(), ("full", "every_case"), ("full", "gpu"), ("full", "slow")], ids=lambda marks: " ".join(marks)
)
def test_the_whole_suite_leaves_out_no_case_of_the_sample_or_of_a_mark(marks: tuple[str, ...]) -> None:
    assert not repeated(cases(*(getattr(pytest.mark, name).mark for name in marks)))


def chosen(count: int, marks: tuple[pytest.Mark, ...], out: tuple[str, ...]) -> list[list[str]]:
    """Names of marks of the cases that pytest makes of a list of which the first is slow."""
    of_test = (pytest.mark.parametrize("k", range(count)).mark, *marks)
    path = Path(f"tests/lowering/test_list_of_{count}.py")
    specs = [SimpleNamespace(id=f"{k}", params={"k": k}, marks=[]) for k in range(count)]
    for spec in specs[:1]:
        spec.marks.append(pytest.mark.slow.mark)
    definition = SimpleNamespace(
        nodeid=f"{path}::test_all{len(marks)}{out}",
        path=path,
        iter_markers=lambda name=None: (m for m in of_test if name in (None, m.name)),
    )
    choose_cases(cast("pytest.Metafunc", SimpleNamespace(definition=definition, _calls=specs)), out)
    return [[m.name for m in spec.marks] for spec in specs]


def test_pytest_makes_items_of_the_chosen_cases_only() -> None:
    assert sorted(chosen(10, (), ())) == [*[[]] * 3, *[["full"]] * 6, ["slow"]]
    assert sorted(chosen(11, (), ("slow",))) == [*[[]] * 3, *[["full"]] * 7]
    assert chosen(12, (), ("slow", "full")) == [[]] * 3
    assert sorted(chosen(13, (pytest.mark.sample(full=4).mark,), ("slow",))) == [[], *[["full"]] * 3]


@pytest.mark.parametrize("mark", ["slow", "full"])
def test_a_test_that_is_left_out_keeps_its_values(mark: str) -> None:
    """Without a case, pytest would call it once, with no values."""
    marks = (getattr(pytest.mark, mark).mark,)
    assert chosen(9, marks, ("slow", "full")) == [["slow"]]


def test_a_test_of_one_case_stays() -> None:
    assert chosen(0, (), ("slow", "full")) == []
    assert chosen(1, (), ("slow", "full")) == [["slow"]]


@pytest.mark.parametrize(("words", "is_default"), [("not slow and not full", True), ("not slow", False), ("", False)])
def test_the_default_run_leaves_full_tests_out(words: str, is_default: bool) -> None:
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=words, keyword=""), args=["tests"])
    assert is_default_run(config) is is_default
    assert left_marks(config) == {"": (), "not slow": ("slow",)}.get(words, ("slow", "full"))


@pytest.mark.parametrize(
    ("words", "keyword", "is_whole"),
    [("not slow", "", True), ("not slow", "loop", False), ("not slow and not full", "", False), ("gpu", "", False)],
)
def test_the_whole_suite_is_a_run_of_all_but_slow_tests(words: str, keyword: str, is_whole: bool) -> None:
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=words, keyword=keyword), args=["tests"])
    assert is_whole_suite(config) is is_whole


@pytest.mark.parametrize(
    ("folder", "marks", "count"),
    [
        ("api", (), 0),
        ("api", (pytest.mark.full.mark,), 23),
        ("lowering", (), 24),
        ("lowering", (pytest.mark.slow.mark,), 0),
        ("lowering", (pytest.mark.gpu.mark,), 0),
    ],
)
def test_each_test_around_lanes_has_a_case_with_the_xla_of_users(
    folder: str, marks: tuple[Any, ...], count: int
) -> None:
    assert len([*quick_first(cases(*marks, folder=folder))]) == count


@pytest.mark.parametrize(
    ("folder", "quick"), [("api", quick_first), ("api", quick_code_first), ("lowering", quick_code_first)]
)
def test_cases_out_of_a_sample_may_be_quick_beside_it(folder: str, quick: Callable[[list[Any]], Iterator[Any]]) -> None:
    others = cases(pytest.mark.full.mark, folder=folder)
    assert {*map(id, quick([*cases(folder=folder), *others]))} == {*map(id, others)}
    assert len([*quick(others)]) == len(others) - 1


def test_quick_code_has_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no process of a user loads it from the folder that tests share with it."""
    target = Target.host()
    names: list[str] = []
    for wanted, make in ((True, kept_code.quick_code), (False, kept_code.full_code), (True, kept_code.quick_code)):
        monkeypatch.setattr(kept_code, "takes_quick", wanted)
        names.append(artifact_key("a task", target))
        assert compile.machine_code(ANSWER, target) == make(ANSWER, target)
    assert names[0] == names[2] != names[1]
    assert [name.partition("_")[2] for name in names] == [compiler_version()[:VERSION_LENGTH]] * 3


def test_what_is_called_quickly_is_compiled_without_optimisation() -> None:
    levels: list[int] = []

    def note() -> None:
        made = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        levels.append(made.executable_build_options.debug_options.xla_backend_optimization_level)

    def fail() -> None:
        note()
        pytest.fail("is left to the other XLA")

    with optimisation(True):
        assert called_quickly(note)
        assert not called_quickly(fail)
        assert not called_quickly(lambda: 1 // 0)
        note()
    assert levels[:2] == [0, 0]
    assert levels[2] > 0


def test_files_of_the_shared_cache_are_whole(tmp_path: Path) -> None:
    """A file appears under its name when all of it is there."""
    cache, seen = LRUCache(str(tmp_path), max_size=-1), []

    def write(own: LRUCache, key: str, value: bytes) -> None:
        (own.path / f"{key}-cache").write_bytes(value[:1])
        seen.append(cache.get("a"))
        (own.path / f"{key}-cache").write_bytes(value)

    put_whole(cache, "a", b"123", write)
    assert seen == [None]
    assert cache.get("a") == b"123"
    assert [file.name for file in tmp_path.iterdir()] == ["a-cache"]


def test_a_sample_takes_a_third_of_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "takes_sample", False)
    assert [*map(drawn, (1, 3, 40))] == [1, 3, 40]
    monkeypatch.setattr(selection, "takes_sample", True)
    assert [*map(drawn, (1, 3, 40))] == [1, 1, 14]


@pytest.mark.parametrize(
    ("keyword", "args", "names"), [("", ["tests"], False), ("loop", [], True), ("", ["a.py::b"], True)]
)
def test_a_run_that_names_tests_takes_no_sample(keyword: str, args: list[str], names: bool) -> None:
    assert (
        names_tests(cast("pytest.Config", SimpleNamespace(option=SimpleNamespace(keyword=keyword), args=args))) is names
    )


def test_code_is_made_once_for_equal_modules_targets_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str]] = []

    def make(text: str, machine: Any) -> bytes:
        made.append((text, getattr(machine, "target", machine).cpu))
        return f"{text} for {made[-1][1]}".encode()

    wide, narrow = Target.named("avx512"), Target.named("avx2")
    code = kept_code.kept(make, tmp_path)
    assert [code("a", wide), code("b", wide), code("a", narrow), code("a", wide)] == [
        b"a for x86-64-v4", b"b for x86-64-v4", b"a for x86-64-v3", b"a for x86-64-v4",
    ]  # fmt: skip
    assert code("a", SimpleNamespace(target=narrow)) == b"a for x86-64-v3"  # a GPU's device has its target inside
    assert kept_code.kept(make, tmp_path)("b", wide) == b"b for x86-64-v4"  # another process
    assert made == [("a", "x86-64-v4"), ("b", "x86-64-v4"), ("a", "x86-64-v3")]
    assert len([*tmp_path.iterdir()]) == 3
    assert code("a", replace(wide, level=0)) == b"a for x86-64-v4"
    assert len(made) == 4
    changed = tmp_path / "target.py"
    changed.write_text("other passes")
    monkeypatch.setattr(kept_code, "_CALLERS", (SimpleNamespace(__file__=changed),))
    assert kept_code.kept(make, tmp_path)("a", wide) == b"a for x86-64-v4"
    assert len(made) == 5


def test_code_that_cannot_be_made_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="expected top-level entity"):
        kept_code.kept(lambda text, machine: machine_code(text, machine), tmp_path)("no module", Target.host())
    assert [*tmp_path.iterdir()] == []


def test_what_is_kept_is_what_llvm_makes(tmp_path: Path) -> None:
    text, machine = ANSWER, Target.host()
    code = kept_code.kept(lambda text, machine: machine_code(text, machine), tmp_path)
    module, maker = optimised(text, machine)
    assert code(text, machine) == code(text, machine) == maker.emit_object(module)


def test_quick_code_rounds_as_the_code_of_users() -> None:
    """A fused multiplication and addition has one rounding: of x = 1 + 2**-12 it leaves 2**-24 of x * x - (x * x)."""
    lines = [f"  %{name} = load <4 x float>, ptr %{name}_at, align 4" for name in "xyz"]
    lines += ["  %m = fmul contract <4 x float> %x, %y", "  %s = fadd contract <4 x float> %m, %z"]
    head = "define void @run(ptr %x_at, ptr %y_at, ptr %z_at, ptr %out) {\nentry:\n"
    text = head + "\n".join([*lines, "  store <4 x float> %s, ptr %out, align 4", "  ret void", "}\n"])
    x = np.full(4, 1 + 2.0**-12, np.float32)
    found: list[float] = []
    for make in (kept_code.quick_code, kept_code.full_code):
        address = link(f"rounds_{make.__name__}", make(text, Target.host()), ("run",), {}, Target.host())["run"]
        out = np.zeros(4, np.float32)
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(address)(*(a.ctypes.data for a in (x, x, -(x * x), out)))
        found.append(out[0])
    assert found[0] == found[1]
    assert found[1] == 2.0**-24 or Target.host().vector_bits < 256  # with AVX2, these processors fuse
