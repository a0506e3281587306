"""The CPU backend: a verified, optimised program becomes a target that XLA calls without Python."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.options import emit_options
from lowering.llvm.target import Target
from lowering.runtime.cache import Artifact, artifact_cache
from lowering.runtime.compile import LinkedTask, emission, launcher, link_task, optimised
from lowering.runtime.given import GivenProgram, compile_given
from lowering.runtime.handler import handler_text
from lowering.runtime.info import describe, usable_cores
from lowering.runtime.interrupts import watch
from lowering.runtime.keys import task_contents, versioned
from lowering.runtime.launch_log import log
from lowering.runtime.layout import plan_layout
from lowering.runtime.loading import load
from lowering.runtime.native import Handler, Machines, Made, NativeBackend, Piece
from lowering.runtime.once import Once
from lowering.runtime.registry import CPU
from qdtrace.backend import TaskReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowering.legalize.share_code import SharedCode
    from lowering.llvm.options import EmitOptions
    from lowering.runtime.cache import ArtifactCache
    from lowering.runtime.layout import Layout
    from lowering.runtime.native import Loaded
    from lowering.simd.emit import TaskCode
    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program, Task


_made: Once[Made] = Once()


class CpuBackend(NativeBackend[LinkedTask]):
    """Compiles programs for the host's processor."""

    dialects = ("llvm", "asm")
    can_save = True

    def __init__(
        self, target: Target | None = None, emit: Callable[..., TaskCode] | None = None, *, given: bool = False
    ) -> None:
        super().__init__(_made)
        self.target, self.given, self._emit = target or Target.host(), given, emit

    def machines(self) -> Machines:
        """Returns the processor, which runs tasks and handlers."""
        return Machines(self.target, self.target, CPU)

    @property
    def has_masks(self) -> bool:
        """True with AVX-512."""
        return self.target.has_masks

    @property
    def walks_in_lanes(self) -> bool:
        """True with AVX-512 and fast gathers."""
        return self.target.has_masks and self.target.has_fast_gathers

    @property
    def machine(self) -> Machine:
        """The processor as passes know it."""
        return self.target.machine

    def emit(self, task: Task, options: Options) -> TaskCode:
        """Returns the LLVM code of a task, before LLVM's passes."""
        return (self._emit or emission().emit_task)(task, self.target, self._emit_options(options))

    def _emit_options(self, options: Options) -> EmitOptions:
        return replace(emit_options(options), knows_lengths=not self.given)

    def text(self, task: Task, options: Options, dialect: str) -> str:
        """Returns a task in LLVM's language, before its passes (`llvm`), or as assembly (`asm`)."""
        text = self.emit(task, options).text
        if dialect == "llvm":
            return text
        module, machine = optimised(text, self.target)
        return machine.emit_assembly(module)

    def describe(self, task: Task, options: Options) -> TaskReport:
        """Returns how a task is vectorised."""
        code = self.emit(task, options)
        threads = 1 if task.kind == "serial" or code.pieces == 1 else options.num_threads or usable_cores()
        return TaskReport("llvm", code.reason, code.lanes * threads)

    def info(self, options: Options) -> dict[str, str]:
        """Returns processor, threads, cache and versions, in words."""
        return describe(self.target, artifact_cache(options), options.num_threads)

    def find_kept(self, kind: str, key: str, options: Options) -> bytes | None:
        """Returns the bytes of an artifact."""
        cache = artifact_cache(options)
        found = cache and cache.load(versioned(key), kind)
        return found.code if found else None

    def keep(self, key: str, data: bytes, options: Options) -> None:
        """Writes bytes as an artifact."""
        if (cache := artifact_cache(options)) is not None:
            cache.save(versioned(key), Artifact(data, {}))

    def bytes_on_disk(self, options: Options) -> int:
        """Returns the bytes of the artifact cache."""
        cache = artifact_cache(options)
        return cache.size()[1] if cache else 0

    def pieces(self, shared: SharedCode, options: Options) -> tuple[Layout, list[Piece[LinkedTask]]]:
        """Returns the layout of a program's call and its tasks."""
        layout = plan_layout(shared.program, shared.literals, renews=not self.given)
        found: list[Piece[LinkedTask]] = []
        for k, content in enumerate(task_contents(shared, self._emit_options(options))):
            task = shared.program.tasks[k]
            emit = functools.partial(self.emit, task, options)
            load = functools.partial(link_task, content, emit, self.target)
            found.append(Piece(range(k, k + 1), content, task.name, load))
        return layout, found

    def launcher(self, cache: ArtifactCache | None) -> Mapping[str, int]:
        """Returns the addresses that the launcher exports."""
        start = launcher(self.target, cache)
        watch(start)
        return start

    def handler(
        self, layout: Layout, loaded: Loaded[LinkedTask], options: Options, cache: ArtifactCache | None
    ) -> Handler:
        """Returns the handler that runs the tasks."""
        tasks = list(loaded.values())
        shapes, threads = [task.shape for task in tasks], options.num_threads or 0
        text = functools.partial(handler_text, layout, shapes, threads, given=self.given)
        imports = {f"{name}_{k}": at for k, task in enumerate(tasks) for name, at in task.addresses.items()}
        return Handler(text, imports, log.know_table)

    def compile_given(self, program: Program, other: Program, options: Options) -> GivenProgram | None:
        """Compiles a program that runs in memory of the caller, if `other`, of other lengths, has the same code."""
        backend = CpuBackend(self.target, given=True)  # their lengths would be in code
        return compile_given(backend, backend.emit, program, other, options)

    def load(self, attributes: Mapping[str, str]) -> tuple[int, bool]:
        """Returns the handler of a program that a call carries, and whether several devices run it together."""
        return load(attributes, self.target.key, self.compile)
