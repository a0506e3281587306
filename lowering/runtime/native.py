"""The compilation of a program, the same for every machine: its tasks become a table, which one launcher runs.

A backend brings what differs: how tasks are put into pieces, how the code of a piece is made, and the table.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from lowering.legalize.share_code import share_code
from lowering.runtime.cache import artifact_cache
from lowering.runtime.compile import in_parallel, link_text
from lowering.runtime.compiled import CompiledProgram
from lowering.runtime.faults import fault_imports
from lowering.runtime.keys import artifact_key, digest, program_content, target_name, told_apart
from lowering.runtime.layout import with_kernel_scratch
from lowering.runtime.operands import ENTRY, TABLE
from lowering.runtime.registry import register
from qdtrace.backend import Backend
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowering.legalize.share_code import SharedCode
    from lowering.llvm.target import Target
    from lowering.runtime.cache import ArtifactCache
    from lowering.runtime.layout import Layout
    from lowering.runtime.once import Once
    from lowering.runtime.registry import Platform
    from qdtrace.config import Options
    from qdtrace.ir.program import Program

T = TypeVar("T")
Loaded = Mapping["Piece[T]", T]
"""The code of each piece, in order."""


@frozen
class Piece(Generic[T]):
    """Tasks that are launched together."""

    tasks: range
    content: str
    """Content key of the code."""
    label: str
    """Human-readable name."""
    load: Callable[[ArtifactCache | None], T]
    """Returns the code in this process: loaded from the cache, or emitted, compiled and saved."""
    in_series: bool = False
    """True if one kernel runs them all (`simt.series`)."""


@frozen
class Handler:
    """The host's code of a program."""

    text: Callable[[], str]
    """Returns LLVM IR of a module that exports `ENTRY` and `TABLE`."""
    imports: Mapping[str, int]
    know: Callable[[int, Layout], object]
    """Tells a log of launches which program the table at an address belongs to."""
    kernel_scratch: int = 0
    """Bytes of memory that the kernels of its tasks share."""


class Machines(NamedTuple):
    """The machines that a program is compiled for."""

    target: Target
    """Runs tasks."""
    host: Target
    """Runs the handler."""
    platform: Platform
    """JAX's name of the target."""


class Made(NamedTuple):
    """A handler that is registered."""

    address: int
    table: int
    handler: Handler


class NativeBackend(Backend, Generic[T]):
    """A backend whose calls run native code of the host."""

    can_save = False
    """True if calls can carry their program."""
    given = False
    """True if programs run in memory of the caller (`given`)."""

    def __init__(self, made: Once[Made]) -> None:
        self._made = made

    @abstractmethod
    def machines(self) -> Machines:
        """Returns the machines that programs are compiled for."""

    @abstractmethod
    def pieces(self, shared: SharedCode, options: Options) -> tuple[Layout, list[Piece[T]]]:
        """Returns the layout of a program's call and the pieces that run in it, in order."""

    @abstractmethod
    def launcher(self, cache: ArtifactCache | None) -> Mapping[str, int]:
        """Returns the addresses that the launcher exports; it is compiled or loaded once per process."""

    @abstractmethod
    def handler(self, layout: Layout, loaded: Loaded[T], options: Options, cache: ArtifactCache | None) -> Handler:
        """Returns the handler that runs the pieces."""

    def fitted(self, program: Program, options: Options) -> Program:
        """Returns a program of the final stage as code is made of it."""
        del options
        return program

    def compile(self, program: Program, options: Options) -> CompiledProgram:
        """Compiles and registers a program, or returns the one that was compiled before from equal content."""
        layout, pieces = self.pieces(share_code(self.fitted(program, options)), options)
        name, made = self.linked(layout, pieces, options)
        layout, _ = with_kernel_scratch(layout, made.handler.kernel_scratch)
        return CompiledProgram(name, made.address, layout, (program, options) if self.can_save else None)

    def linked(self, layout: Layout, pieces: Sequence[Piece[T]], options: Options) -> tuple[str, Made]:
        """Returns the name of the target that runs the pieces, and its handler, which is registered."""
        content = program_content(layout, [piece.content for piece in pieces], options.num_threads or 0)
        content = digest("given", content) if self.given else content
        target, host, platform = self.machines()
        name = target_name(layout.program.name, told_apart(content, layout.texts), target)

        def make() -> Made:
            cache = artifact_cache(options)
            jobs = {p.content: functools.partial(p.load, cache) for p in reversed(pieces)}  # the first of equal ones
            labels = {p.content: p.label for p in reversed(pieces)}
            loaded = in_parallel(dict(reversed(jobs.items())), labels)
            handler = self.handler(layout, {piece: loaded[piece.content] for piece in pieces}, options, cache)
            launcher = self.launcher(cache)
            key = artifact_key(digest(content, target.key), host)
            run = launcher["qd_run_given" if self.given else "qd_run"]
            imports = {"qd_run": run, **fault_imports(layout.texts), **handler.imports}
            linked = link_text(name, key, handler.text, (ENTRY, TABLE), imports, host, cache)
            register(name, linked[ENTRY], launcher["qd_api_seen"], platform)
            return Made(linked[ENTRY], linked[TABLE], handler)

        made = self._made.get(name, make)
        made.handler.know(made.table, layout)  # among equal programs the last one gives the source lines
        return name, made
