"""Every knob of the package, once: name, type, default, environment variable and meaning.

A knob has its default, or the value of its `QD_*` environment variable at import, or what `qd.config.<name> = value`
set for the process, or what the innermost `with qd.options(...)` set for the thread; the last one wins.
`current()` returns all of them as one frozen, hashable `Options`; every call of a jitted function calls it, so it is
one look-up.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin, get_type_hints

from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from contextlib import AbstractContextManager

FuseMode = Literal["off", "auto", "aggressive"]
Codegen = Literal["auto", "llvm", "triton"]
ArrayMapping = Literal["auto", "lanes", "batch", "group"]
Bounds = Literal["raise", "clip", "unchecked"]
FastMath = Literal[False, True, "approx"]
Debug = Literal[False, True, "nans"]
Vectorize = Literal["auto", True, False]
Divergence = Literal["auto", "masks", "refill", "ordering", "spans", "flattening"]


def _cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "qdtrace")


def _knob(default: object, doc: str, *, env: str = "", low: float | None = None, shown: str = "") -> Any:
    metadata = {"doc": doc, "env": env, "low": low, "shown": shown}
    return field(default=default, metadata=metadata)


@frozen
class Options:
    """One value for every knob. It is hashable, as a compiled function has one version for each."""

    opt_level: int = _knob(1, "0: no common subexpressions, no memory and loop passes", low=0)
    advanced_optimization: bool = _knob(True, "False: one basic clean-up instead of the fixed point, no loop passes")
    constant_folding: bool = _knob(True, "evaluate operations on constants")
    cfg_optimization: bool = _knob(
        True, "the memory pass (store-to-load forwarding, scalar replacement in loops, dead stores)"
    )
    cfg_optimization_per_task: bool = _knob(True, "False: look for dead stores through all tasks at once")
    fast_math: FastMath = _knob(
        True,
        "allow changes of rounding (reassociation, fused operations); 'approx': also the hardware's approximations of "
        "f32 functions, division and roots on NVIDIA GPUs (docs/approximations.md), elsewhere as True",
    )
    fuse_tasks: FuseMode = _knob(
        "auto",
        "join tasks over equal ranges: never, where it pays by a cost model, wherever it is right; 'off' also launches "
        "each task of a GPU by itself",
        env="QD_AGGRESSIVE_KERNEL_FUSION",
    )
    fuse_tasks_raw: bool = _knob(
        True, "also where an iteration reads what it wrote itself", env="QD_AGGRESSIVE_KERNEL_FUSION_RAW"
    )
    fuse_tasks_diag: bool = _knob(
        False, "print every decision on joining tasks to stderr", env="QD_AGGRESSIVE_KERNEL_FUSION_DIAG"
    )
    print_ir: bool = _knob(False, "print the graph after each stage to stderr")
    dump_ir: bool = _knob(False, "write the graph after each stage, and a page of what changed, to `debug_dump_path`")
    dump_simplify: bool = _knob(False, "write the graph after each pass and round of simplify")
    dump_cfg: bool = _knob(False, "write the memory analysis; implies `cfg_optimization_per_task=False`")
    debug_dump_path: str = _knob(
        os.path.join(tempfile.gettempdir(), "ir"), "where graphs are written", shown="<tmp>/ir"
    )
    verify: bool = _knob(False, "check the graph after every pass")
    progress: bool = _knob(True, "say on a terminal what is being compiled, once it takes longer than two seconds")
    offline_cache: bool = _knob(True, "keep compiled tasks on disk")
    offline_cache_passes: bool = _knob(
        True, "keep graphs there, too, so that a new process runs no pass and no derivation for unchanged functions"
    )
    pure: bool = _knob(
        False,
        "the user's word that traces depend on nothing but arguments, source and values: a new process does not trace "
        "functions that it finds on disk (docs/saving.md)",
    )
    pure_check: bool = _knob(
        False, "trace such functions all the same, and raise an error where what was found is another program"
    )
    offline_cache_dir: str = _knob(_cache_dir(), "where they are kept", shown="user cache directory")
    offline_cache_limit: int | None = _knob(
        256, "MiB that they may take, then those that were not used for longest are removed; None: no limit", low=1
    )
    portable: bool = _knob(
        False, "calls carry their programs, so that executables that JAX saves run in other processes (docs/saving.md)"
    )
    bounds: Bounds = _knob(
        "raise",
        "an index outside of its buffer: ends the call with an error; takes the nearest element and stores nothing "
        "('clip'); corrupts memory ('unchecked')",
    )
    debug: Debug = _knob(
        False,
        "run in the interpreter, with checks of bounds, unset memory and races (slow); 'nans': and of operations that "
        "make NaN of numbers",
    )
    print_lines: int = _knob(
        1000, "lines that jax.debug.print in loops prints of a call, at most, and calls of jax.debug.callback", low=0
    )
    ad_stack_memory: float = _knob(
        0.25, "part of free memory that stacks of reverse mode may take; they thin to stay below it", low=0
    )
    vectorize: Vectorize = _knob(
        "auto",
        "on the CPU: True runs iterations of a task side by side in lanes of vectors, False one at a time in scalar "
        "code, 'auto' one at a time where nested loops of lanes would wait for each other; without effect on a GPU",
    )
    divergence: Divergence = _knob(
        "auto",
        "lanes that leave a loop at different times: 'masks' they wait; or besides that 'refill' those that are done "
        "may take other iterations, 'ordering' iterations may run in the order of their trips, 'spans' and values of "
        "neighbouring rows may be computed apart, 'flattening' nested loops may be one, with refill; 'auto' whichever "
        "pays (docs/performance.md); on a GPU spans are the only one",
    )
    deterministic: bool = _knob(
        False,
        "sums of floats have the same bits in every run and on any number of threads, in reverse mode too; on a GPU "
        "sums that meet in memory are exact and rounded once, and other atomic updates are refused",
    )
    num_threads: int | None = _knob(None, "CPU threads of a task; None: all", low=1)
    block_dim: int | None = _knob(
        None, "threads of a GPU block; None: chosen per task; without effect on the CPU", low=1
    )
    codegen: Codegen = _knob(
        "auto",
        "code of GPUs: 'auto' takes Triton for scans where it is installed and `block_dim` is None, "
        "else LLVM; 'triton' is refused where it cannot make a task; on the CPU always LLVM, and 'triton' is refused",
    )

    array_mapping: ArrayMapping = _knob(
        "auto",
        "who works on arrays of a qd.vmap's lanes: 'lanes' each lane on its own, in the loop; 'batch' XLA on those of "
        "all lanes, wherever these come together; 'group' the same, but on NVIDIA's GPUs a group of threads for each "
        "lane where a kernel can be made; 'auto' XLA, or groups on such a GPU, where the function has products or "
        "factorisations of large arrays (docs/performance.md)",
    )

    def __post_init__(self) -> None:
        values = tuple(getattr(self, name) for name in KNOB_NAMES)
        object.__setattr__(self, "_hash", hash(values))

    @property
    def changes_rounding(self) -> bool:
        """Returns whether passes and emitters may change a rounding."""
        return self.fast_math is not False

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]


@frozen
class Knob:
    """Name, type, default, environment variable and meaning of one option."""

    name: str
    type: object
    default: object
    env: str
    doc: str
    low: float | None = None
    shown: str = ""
    """Text for the default in the table, if the default depends on the machine."""

    @property
    def choices(self) -> tuple[object, ...]:
        """The allowed values, or none if the type is not a list of them."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def accepts(self) -> str:
        """The allowed values in words, for errors and the table."""
        if self.choices:
            return "one of " + ", ".join(repr(c) for c in self.choices)
        words = _WORDS.get(self.type, "an int or None")
        return words if self.low is None else f"{words}, {self.low:g} or more"

    @property
    def _is_number(self) -> bool:
        return self.type is int or self.type is float

    def check(self, value: object) -> object:
        """Returns the value in the knob's type. Raises TraceTypeError or TraceValueError."""
        if self.name == "fuse_tasks" and isinstance(value, bool):
            value = _FUSE_MODES[value]
        if self.choices:
            for choice in self.choices:
                if isinstance(value, type(choice)) and value == choice:  # 1 is equal to True, and is not a bool
                    return choice
        elif self.type is bool:
            if isinstance(value, bool):
                return value
        elif self.type is str:
            if isinstance(value, str | os.PathLike):
                return os.fspath(cast("str | os.PathLike[str]", value))
        elif value is None and not self._is_number:
            return value
        else:
            number = (int, float) if self.type is float else int
            if isinstance(value, number) and not isinstance(value, bool):
                if self.low is not None and not value >= self.low:
                    raise TraceValueError(f"option `{self.name}` needs {self.accepts}, got {value!r}")
                return float(value) if self.type is float else value
        error = TraceValueError if self.choices and isinstance(value, str) else TraceTypeError
        raise error(f"option `{self.name}` needs {self.accepts}, got {value!r}")

    def parse(self, text: str) -> object:
        """Returns the value that an environment variable spells. Raises TraceValueError."""
        word = text.strip().lower()
        try:
            if True in self.choices and word in _BOOLS:
                return _BOOLS[word]
            if self.choices:
                return self.check(_BOOLS.get(word, word) if self.name == "fuse_tasks" else word)
            if self.type is bool:
                return _BOOLS[word]
            if self.type is str:
                return text
            if word in ("none", "auto") and not self._is_number:
                return None
            return self.check(float(word) if self.type is float else int(word))
        except (ValueError, KeyError):
            raise TraceValueError(f"environment variable {self.env} needs {self.accepts}, got {text!r}") from None


_BOOLS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
_WORDS: dict[object, str] = {bool: "a bool", int: "an int", float: "a float", str: "a path"}
_FUSE_MODES = {False: "off", True: "aggressive"}


def _knobs() -> dict[str, Knob]:
    types = get_type_hints(Options)
    made: dict[str, Knob] = {}
    for f in fields(Options):
        m = f.metadata
        env = m["env"] or "QD_" + f.name.upper()
        made[f.name] = Knob(f.name, types[f.name], f.default, env, m["doc"], m["low"], m["shown"])
    return made


KNOBS = _knobs()
KNOB_NAMES = tuple(KNOBS)
PROCESS_KNOBS = frozenset({
    "print_ir", "dump_ir", "dump_simplify", "dump_cfg", "debug_dump_path", "progress",
    "offline_cache", "offline_cache_passes", "pure", "pure_check", "offline_cache_dir", "offline_cache_limit",
})  # fmt: skip
"""Options that concern the process, not what a program becomes."""


_REMOVED = {"offline_cache_traces": "every process traces, but for functions that are said to be `pure`"}
"""Options that there were, with what is so now."""


def options_from(values: Mapping[str, object], base: Options | None = None) -> Options:
    """Returns `base` (the current options) with some knobs changed. Raises TraceValueError or TraceTypeError."""
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in KNOBS:
            near = difflib.get_close_matches(name, KNOB_NAMES, 1)
            gone = _REMOVED.get(name)
            raise TraceValueError(
                f"needs the name of an option, got {name!r}",
                notes=("options are " + ", ".join(KNOB_NAMES),),
                help=f"leave it out: {gone}" if gone else f"write `{near[0]}`" if near else "",
            )
        checked[name] = KNOBS[name].check(value)
    base = current() if base is None else base
    return replace(base, **checked) if checked else base


def options_from_environment(environ: Mapping[str, str]) -> Options:
    """Returns the defaults with the values of the `QD_*` variables. Raises TraceValueError."""
    return Options(**{k.name: k.parse(environ[k.env]) for k in KNOBS.values() if environ.get(k.env)})  # type: ignore[arg-type]


_process = options_from_environment(os.environ)
_scoped: ContextVar[Options | None] = ContextVar("qdtrace_options", default=None)
_get_scoped = _scoped.get


def current() -> Options:
    """Returns the options in force in this thread."""
    return _get_scoped() or _process


@contextmanager
def scope(made: Options) -> Generator[Options]:
    """Sets all options for the code inside, in this thread only."""
    token = _scoped.set(made)
    try:
        yield made
    finally:
        _scoped.reset(token)


@boundary
def options(**values: object) -> AbstractContextManager[Options]:
    """Sets knobs for the code inside of `with qd.options(fast_math=False):`, in this thread only.

    >>> with qd.options(fast_math=False):
    ...     qd.config.fast_math
    False

    Args:
        values: options by name; HACKING.md has the table of them.

    Raises:
        TraceValueError: a name or value is unknown.
        TraceTypeError: a value is of the wrong type.
    """
    return scope(options_from(values))


class Config:
    """`qd.config`: reads a knob as an attribute; assigning one sets it for the process. Printed, it shows all.

    >>> qd.config.bounds
    'raise'
    >>> qd.config.bounds = "clip"
    >>> qd.config.bounds = "raise"
    """

    def __getattr__(self, name: str) -> object:
        if name in KNOBS:
            return getattr(current(), name)
        raise AttributeError(f"qd.config has no option {name!r}")

    @boundary
    def __setattr__(self, name: str, value: object) -> None:
        global _process
        _process = options_from({name: value}, _process)

    def __dir__(self) -> list[str]:
        return list(KNOB_NAMES)

    def __repr__(self) -> str:
        return "\n".join(f"{name} = {getattr(current(), name)!r}" for name in KNOB_NAMES)


config = Config()


def knob_table() -> str:
    """Returns all knobs as a Markdown table.

    >>> print("\\n".join(knob_table().splitlines()[:3]))
    | option | environment | values | default | effect |
    |---|---|---|---|---|
    | `opt_level` | `QD_OPT_LEVEL` | an int, 0 or more | 1 | 0: no common subexpressions, no memory and loop passes |
    """
    rows = ["| option | environment | values | default | effect |", "|---|---|---|---|---|"]
    for k in KNOBS.values():
        shown = k.shown or repr(k.default)
        rows.append(f"| `{k.name}` | `{k.env}` | {k.accepts} | {shown} | {k.doc} |")
    return "\n".join(rows)


def dump_directory(made: Options) -> Path:
    """Returns the folder for dumped graphs, and creates it if it is missing."""
    path = Path(made.debug_dump_path)
    path.mkdir(parents=True, exist_ok=True)
    return path
