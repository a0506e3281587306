"""The CPU backend: a verified, optimised program becomes a target that XLA calls without Python."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.legalize.share_code import share_code
from lowering.llvm.options import emit_options
from lowering.llvm.target import Target
from lowering.runtime.cache import artifact_cache
from lowering.runtime.compile import launcher, link_tasks, link_text, optimised
from lowering.runtime.compiled import CompiledProgram
from lowering.runtime.faults import fault_imports
from lowering.runtime.handler import ENTRY, TABLE, bounds_symbols, combine_symbols, handler_text, merge_symbols
from lowering.runtime.info import describe, usable_cores
from lowering.runtime.interrupts import watch
from lowering.runtime.keys import artifact_key, program_content, target_name, task_contents, told_apart
from lowering.runtime.launch_log import log
from lowering.runtime.layout import plan_layout
from lowering.runtime.loading import load
from lowering.runtime.once import Once
from lowering.runtime.registry import CPU, register
from qdtrace.backend import Backend, TaskReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowering.runtime.cache import ArtifactCache
    from lowering.runtime.compile import LinkedTask
    from lowering.runtime.layout import Layout
    from lowering.simd.emit import TaskCode
    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program, Task


_compiled: Once[CompiledProgram] = Once()


class CpuBackend(Backend):
    """Compiles programs for the host's processor."""

    dialects = ("llvm", "asm")

    def __init__(self, target: Target | None = None, emit: Callable[..., TaskCode] | None = None) -> None:
        self.target = target or Target.host()
        self._emit = emit

    @property
    def machine(self) -> Machine:
        """The processor as passes know it."""
        return self.target.machine

    def emit(self, task: Task, options: Options) -> TaskCode:
        """Returns the LLVM code of a task, before LLVM's passes."""
        return (self._emit or _emitter())(task, self.target, emit_options(options))

    def llvm_text(self, task: Task, options: Options) -> str:
        """Returns the LLVM code of a task as text, before LLVM's passes."""
        return self.emit(task, options).text

    def text(self, task: Task, options: Options, dialect: str) -> str:
        """Returns a task in LLVM's language, before its passes (`llvm`), or as assembly (`asm`)."""
        text = self.llvm_text(task, options)
        if dialect == "llvm":
            return text
        module, machine = optimised(text, self.target)
        return machine.emit_assembly(module)

    def describe(self, task: Task, options: Options) -> TaskReport:
        """Returns how a task is vectorised, and what it costs."""
        code = self.emit(task, options)
        threads = 1 if task.kind == "serial" else options.num_threads or usable_cores()
        return TaskReport("llvm", code.reason, code.cost, code.lanes * threads)

    def info(self, options: Options) -> dict[str, str]:
        """Returns processor, threads, cache and versions, in words."""
        return describe(self.target, artifact_cache(options), options.num_threads)

    def compile(self, program: Program, options: Options) -> CompiledProgram:
        """Compiles and registers a program, or returns the one that was compiled before from equal content."""
        shared, made_of = share_code(program), (program, options)
        program, layout = shared.program, plan_layout(shared.program, shared.literals)
        contents = task_contents(shared, emit_options(options))
        max_threads = options.num_threads or 0
        content = program_content(layout, contents, max_threads)
        key = artifact_key(content, self.target)
        name = target_name(program, told_apart(content, layout.faults), self.target)

        def make() -> CompiledProgram:
            cache = artifact_cache(options)
            emitters = [functools.partial(self.emit, task, options) for task in program.tasks]
            names = [task.name for task in program.tasks]
            linked = link_tasks(zip(contents, names, emitters, strict=True), self.target, cache)
            tasks = [linked[c] for c in contents]
            start = launcher(self.target, cache)
            watch(start)
            linked = self._link_handler(name, key, layout, tasks, max_threads, start["qd_run"], cache)
            register(name, linked[ENTRY], start["qd_api_seen"], CPU)
            return CompiledProgram(name, linked[ENTRY], layout, linked[TABLE])

        compiled = replace(_compiled.get(name, make), layout=layout, made_of=made_of)
        log.know_table(compiled.tasks_address, layout)  # among equal programs the last one gives the source lines
        return compiled

    def load(self, attributes: Mapping[str, str]) -> tuple[int, bool]:
        """Returns the handler of a program that a call carries, and whether several devices run it together."""
        return load(attributes, self.target.key, self.compile)

    def _link_handler(
        self,
        name: str,
        key: str,
        layout: Layout,
        tasks: list[LinkedTask],
        max_threads: int,
        run_address: int,
        cache: ArtifactCache | None,
    ) -> Mapping[str, int]:
        def text() -> str:
            return handler_text(layout, [t.shape for t in tasks], max_threads)

        imports = {"qd_run": run_address, **fault_imports(layout.faults)}
        for k, (task, linked) in enumerate(zip(layout.program.tasks, tasks, strict=True)):
            imports[f"qd_task_{k}"] = linked.task_address
            imports |= dict.fromkeys(bounds_symbols(k, task), linked.bounds_address)
            imports |= dict.fromkeys(combine_symbols(k, linked.shape), linked.combine_address)
            imports |= dict.fromkeys(merge_symbols(k, linked.shape), linked.merge_address)
        return link_text(name, key, text, (ENTRY, TABLE), imports, self.target, cache)


def _emitter() -> Callable[..., TaskCode]:
    # Loaded here: a process that finds all its code in the cache never needs the emitter.
    from lowering.simd.emit import emit_task

    return emit_task
