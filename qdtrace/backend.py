"""What compiles programs for a kind of machine, and how one is found."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program, Task

_GROUP = "qdtrace.backends"
Carried = Literal["export", "executable"] | None
"""What is made of a call that carries its program: a module of any processor, or an executable of this one."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a backend says of the code of a task."""

    codegen: str
    """What makes it, for instance `llvm`."""
    reason: str
    """Why that, and how it is vectorised."""
    cost: int
    """Estimated operations of one iteration."""
    at_once: int
    """Iterations that run at a time, on all threads together."""
    kernel_scratch: int = 0
    """Memory that the kernels of the task share on a GPU, besides private arrays: what blocks have summed, bounds."""


class Compiled(Protocol):
    """A program that JAX can call."""

    @property
    def scratch_bytes(self) -> int:
        """Memory of a call besides operands and results."""
        ...

    def call(self, *operands: Any, shared: bool = False, carried: Carried = None) -> tuple[Any, ...]:
        """Contents of the program's results for contents of its parameters: arrays or tracers, in order.

        `shared`: the call is part of what several devices run together, and so must not end in an error (0008).
        `carried`: it carries the program, for another process (0026); BackendError where that is not possible.
        """
        ...


class Backend(Protocol):
    """What `qdtrace` asks of the compiler for one platform of JAX."""

    dialects: tuple[str, ...]
    """Languages in which it can show a task, from the most to the least abstract."""

    @property
    def machine(self) -> Machine:
        """The machine that graphs are optimised for."""
        ...

    def compile(self, program: Program, options: Options) -> Compiled:
        """Compiles and registers a program of the final stage."""
        ...

    def load(self, attributes: Mapping[str, str]) -> tuple[int, bool]:
        """The handler of a program that a call carries, and whether several devices run it together.

        Raises BackendError for what is damaged, or of another version or machine.
        """
        raise BackendError("needs a backend for processors: other programs are not saved")

    def describe(self, task: Task, options: Options) -> TaskReport:
        """How a task is compiled, and what it costs."""
        ...

    def text(self, task: Task, options: Options, dialect: str) -> str:
        """The code of a task in one of the dialects."""
        ...

    def reports(self, program: Program, options: Options) -> list[TaskReport]:
        """`describe` of each task of a program, among the others."""
        return [self.describe(task, options) for task in program.tasks]

    def texts(self, program: Program, options: Options, dialect: str) -> list[str]:
        """The code of a program in one of the dialects, in the order of its tasks."""
        return [self.text(task, options, dialect) for task in program.tasks]

    def info(self, options: Options) -> Mapping[str, str]:
        """Machine, cache and versions, in words."""
        ...


@functools.cache
def backend(name: str) -> Backend:
    """The backend registered under that name in the entry-point group `qdtrace.backends`, our own before others."""
    try:
        own = distribution("qdtrace").entry_points.select(group=_GROUP, name=name)
    except PackageNotFoundError:
        own = ()
    for entry in own:  # first, because a look at every installed package takes much longer
        return cast("Backend", entry.load()())
    found = {e.name: e for e in entry_points(group=_GROUP)}
    if name not in found:
        have = ", ".join(sorted(found)) or "none; is the package installed?"
        raise BackendError(f"needs a backend for {name!r}, found {have}", help="run on the CPU: JAX_PLATFORMS=cpu")
    return cast("Backend", found[name].load()())
