"""The protocol of backends, which compile programs for a kind of machine, and their look-up."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from qdtrace.errors import BackendError
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program, Task, Var

_GROUP = "qdtrace.backends"
_MAKERS = {"sm_": "cuda", "gfx": "rocm"}
"""Backends that make code for kinds of GPU, by how the names of the kinds begin."""
Carried = Literal["export", "executable"] | None
"""The artifact of a call that carries its program: a module for any processor, or an executable for this one."""


@frozen(slots=True)
class TaskReport:
    """A backend's report on the code of a task."""

    codegen: str
    """The code generator, for instance `llvm`."""
    reason: str
    """The reason for that choice, and the vectorisation, in words."""
    at_once: int
    """The number of iterations that run at a time, on all threads together."""
    kernel_scratch: int = 0
    """Bytes that the kernels of the task share on a GPU, besides private arrays: sums of blocks, bounds."""


class Compiled(Protocol):
    """A program that JAX can call."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes that a call needs besides operands and results."""
        ...

    def call(
        self, *operands: Any, shared: bool = False, carried: Carried = None, needed: Collection[int] = ()
    ) -> tuple[Any, ...]:
        """Returns the contents of the program's results for those of its parameters: arrays or tracers, in order.

        `shared`: several devices run the program together, so the call must not end in an error (0008).
        `carried`: the call carries the program for another process (0026); raises BackendError if it cannot.
        `needed`: numbers of operands that the caller needs afterwards, and that should not be copied where that can be.
        """
        ...


class Given(Protocol):
    """A program that runs in memory of the caller, with arrays of any length."""

    @property
    def memory(self) -> Sequence[tuple[Var, Var | None]]:
        """The references whose addresses a call takes, in order; behind each the parameter whose content it begins
        with, if it is another one."""
        ...

    def run(self, addresses: Sequence[int]) -> None:
        """Runs the program in memory at these addresses, and returns at its end. Raises XLA's error if it fails."""
        ...


class Backend(Protocol):
    """The interface of a compiler for one platform of JAX."""

    dialects: tuple[str, ...]
    """Names of the languages in which it can show a task, from the most to the least abstract."""

    @property
    def has_masks(self) -> bool:
        """True if its vectors have registers for masks, so that lanes that wait cost little."""
        ...

    @property
    def walks_in_lanes(self) -> bool:
        """True if lanes that walk through a tree of their own each are faster than one walk after another."""
        ...

    @property
    def machine(self) -> Machine:
        """The machine that graphs are optimised for."""
        ...

    def fitted(self, program: Program, options: Options) -> Program:
        """Returns a program of the final stage as code is made of it. Raises BackendError if it cannot be."""
        ...

    def compile(self, program: Program, options: Options) -> Compiled:
        """Compiles and registers a program of the final stage."""
        ...

    def compile_given(self, program: Program, other: Program, options: Options) -> Given | None:
        """Compiles a program that runs in memory of the caller; `other` is the same with other lengths. Returns None if
        their code is not the same, or the machine cannot run such a program."""
        return None

    def load(self, attributes: Mapping[str, str]) -> tuple[int, bool]:
        """Returns the handler of a program that a call carries, and whether several devices run it together.

        Raises BackendError for a program that is damaged, or of another version or machine.
        """
        raise BackendError("needs a backend for processors: other programs are not saved")

    def describe(self, task: Task, options: Options) -> TaskReport:
        """Returns how a task is compiled, and what it costs."""
        ...

    def text(self, task: Task, options: Options, dialect: str) -> str:
        """Returns the code of a task in one of the dialects."""
        ...

    def reports(self, program: Program, options: Options) -> list[TaskReport]:
        """Returns a report on each task of a program; backends may launch consecutive tasks together."""
        return [self.describe(task, options) for task in program.tasks]

    def texts(self, program: Program, options: Options, dialect: str) -> list[str]:
        """Returns the code of a program in one of the dialects, in the order of its tasks."""
        return [self.text(task, options, dialect) for task in program.tasks]

    def find_kept(self, kind: str, key: str, options: Options) -> bytes | None:
        """Returns what `keep` kept under a key, or None; counts it as a hit or miss of that kind."""
        return None

    def keep(self, key: str, data: bytes, options: Options) -> None:
        """Keeps bytes on disk under a key."""

    def bytes_on_disk(self, options: Options) -> int:
        """Returns the bytes of all code that is kept on disk, by this process and others."""
        return 0

    def info(self, options: Options) -> Mapping[str, str]:
        """Returns facts about machine, cache and versions, in words."""
        ...


@functools.cache
def backend(name: str) -> Backend:
    """Returns the backend of that name in the entry-point group `qdtrace.backends`, our own before others, or for a
    kind of GPU that of its maker."""
    maker = _MAKERS.get(name[:3], name)
    try:
        own = distribution("qdtrace").entry_points.select(group=_GROUP, name=maker)
    except PackageNotFoundError:
        own = ()
    for entry in own or entry_points(group=_GROUP, name=maker):  # a search of all installed packages takes much longer
        make = entry.load()
        if maker == name or name in make.kinds:
            return cast("Backend", make() if maker == name else make(name))
    found = {e.name: e for e in entry_points(group=_GROUP)}
    kinds = [kind for maker in found.keys() & set(_MAKERS.values()) for kind in found[maker].load().kinds]
    have = ", ".join(sorted({*found, *kinds})) or "none"
    raise BackendError(
        f"needs a backend for {name!r}, found {have}",
        help="run on the CPU: JAX_PLATFORMS=cpu" if found else "install the package, which names them: `pip install .`",
    )


def has_masks() -> bool:
    """Returns whether vectors of this processor have registers for masks, so that lanes that wait cost little."""
    return backend("cpu").has_masks


def walks_in_lanes() -> bool:
    """Returns whether lanes of this processor walk through trees of their own faster than one after another."""
    return backend("cpu").walks_in_lanes
