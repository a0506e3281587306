"""A backend of GPUs: a verified, optimised program becomes a target that XLA calls, which only enqueues."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from lowering.gpu.block_memory import block_memory, held_in_blocks
from lowering.gpu.codegen import content_of
from lowering.gpu.commands import Piece, filled_before, kernel_symbol, plan_commands, steps_of
from lowering.gpu.events import EventLog
from lowering.gpu.fill import FILL
from lowering.gpu.handler import ENTRY, LAUNCHER_EXPORTS, TABLE, WORDS, handler_text, imported, launcher_text
from lowering.gpu.kernels import Loader, label_of
from lowering.gpu.words import Words
from lowering.legalize.share_code import share_code
from lowering.llvm.target import Target
from lowering.runtime.cache import artifact_cache
from lowering.runtime.compile import in_parallel, link_text
from lowering.runtime.compiled import CompiledProgram
from lowering.runtime.faults import fault_imports
from lowering.runtime.info import about_compiler
from lowering.runtime.keys import artifact_key, digest, program_content, target_name, task_contents, told_apart
from lowering.runtime.layout import plan_layout, with_kernel_scratch
from lowering.runtime.once import Once
from lowering.runtime.registry import register
from lowering.simt.series import find_series, why_alone
from qdtrace import launches
from qdtrace.analysis.cost import operations
from qdtrace.backend import Backend, TaskReport
from qdtrace.failures import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lowering.gpu.codegen import TritonKernels
    from lowering.gpu.commands import Command
    from lowering.gpu.driver import Driver
    from lowering.gpu.emission import Emission
    from lowering.gpu.kernels import LoadedTask
    from lowering.legalize.share_code import SharedCode
    from lowering.runtime.cache import ArtifactCache
    from lowering.runtime.layout import Layout
    from lowering.simt.code import KernelCode
    from lowering.simt.devices import Device
    from lowering.simt.series import Series
    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program, Task, Var


class _Linked(NamedTuple):
    """The handler of a program."""

    address: int
    kernel_scratch: int
    """Bytes of memory that the kernels of its tasks share."""


class GpuBackend(Backend):
    """Compiles programs for the devices of one driver, or shows code for a kind of device that need not be there."""

    def __init__(self, device: Callable[[], Device], driver: Callable[[], Driver]) -> None:
        """`driver` is called when a program is compiled, `device` when its code is made or its limits matter; neither
        more than once."""
        self._find_device = device
        self._find_driver = driver
        self._linked: Once[_Linked] = Once()
        self._launchers: Once[Mapping[str, int]] = Once()

    @functools.cached_property
    def device(self) -> Device:
        """The device, or kind of device, that code is made for."""
        return self._find_device()

    @functools.cached_property
    def _driver(self) -> Driver:
        return self._find_driver()

    @functools.cached_property
    def _loader(self) -> Loader:
        return Loader(self.device, self._driver)

    @functools.cached_property
    def words(self) -> Words:
        """The words of host memory in which kernels report failed checks."""
        return Words(self._driver.host_memory)

    @functools.cached_property
    def _log(self) -> EventLog:
        log = EventLog(self._driver)
        launches.add(log)
        return log

    @property
    def machine(self) -> Machine:
        """The device as passes know it."""
        return self.device.machine

    @functools.cached_property
    def _emission(self) -> Emission:
        # Loaded here: a process that finds all its code in the cache never needs the emitters.
        from lowering.gpu.emission import Emission

        return Emission(self.device)

    def emit(self, task: Task, options: Options) -> KernelCode:
        """Returns the kernels of a task by LLVM, before its passes."""
        return self._emission.by_llvm(task, options)

    def texts(self, program: Program, options: Options, dialect: str) -> list[str]:
        """Returns the code of each launch; a series is one launch, except as Triton source, which only tasks have."""
        layout, series = self._planned(share_code(program), options)
        texts: list[str] = []
        for piece in _pieces(len(layout.program.tasks), series):
            if piece in series and dialect != "triton":
                code = self._emission.series(layout, series[piece], options)
                texts.append(self._emission.text(code, dialect))
            else:
                texts += [self.text(layout.program.tasks[k], options, dialect) for k in piece]
        return texts

    def text(self, task: Task, options: Options, dialect: str) -> str:
        """Returns the code of a task by the emitter that is chosen for it.

        `dialect` asks for Triton source (`triton`), LLVM code before LLVM's passes (`llvm`), or the device's assembly.
        """
        return self._emission.text_of_task(task, options, dialect)

    def reports(self, program: Program, options: Options) -> list[TaskReport]:
        """Returns how each task is launched, alone or in a series, and what it costs."""
        layout, series = self._planned(share_code(program), options)
        found: list[TaskReport] = []
        for piece in _pieces(len(layout.program.tasks), series):
            for task in (layout.program.tasks[k] for k in piece):
                if piece in series:
                    one = series[piece]
                    threads = 1 if task.kind == "serial" else one.threads
                    found.append(TaskReport("llvm", one.reason, operations(task.body), threads))
                    continue
                report = self.describe(task, options)
                reason = f"{report.reason}; a launch of its own: {why_alone(task, self.device) or 'no other beside it'}"
                found.append(replace(report, reason=reason))
        return found

    def describe(self, task: Task, options: Options) -> TaskReport:
        """Returns how a task is launched, and what it costs."""
        return self._emission.report(task, options)

    def info(self, options: Options) -> dict[str, str]:
        """Returns device, cache and versions, in words."""
        return {"device": self.device.name, **about_compiler(artifact_cache(options))}

    def compile(self, program: Program, options: Options) -> CompiledProgram:
        """Compiles and registers a program, or returns the one that was compiled before from equal content."""
        shared = share_code(program)
        program = shared.program
        layout, series = self._planned(shared, options)
        pieces = _pieces(len(program.tasks), series)
        of_tasks = task_contents(shared, content_of(options))
        contents = [
            _content_of_series(layout, series[piece], of_tasks) if piece in series else of_tasks[piece[0]]
            for piece in pieces
        ]
        content = program_content(layout, contents, 0)
        name = target_name(program, told_apart(content, layout.faults), self.device.target)

        def make() -> _Linked:
            cache = artifact_cache(options)
            loaded = self._loaded(layout, dict(zip(pieces, contents, strict=True)), series, options, cache)
            most = max((one.kernels.scratch_bytes for one in loaded), default=0)
            whole, scratch = with_kernel_scratch(layout, most)
            parts = [Piece(k, one.kernels, k in series) for k, one in zip(pieces, loaded, strict=True)]
            commands = plan_commands(whole, parts, scratch)
            start = self._launcher(cache)
            key = artifact_key(digest(content, self.device.target.key), Target.host())
            pairs = zip(pieces, loaded, strict=True)
            handles = {kernel_symbol(k[0], n): h for k, one in pairs for n, h in enumerate(one.handles)}
            linked = self._link_handler(name, key, whole, commands, handles | {"qd_run": start["qd_run"]}, cache)
            register(name, linked[ENTRY], start["qd_api_seen"], self._driver.platform)
            self._log.know_commands(linked[TABLE], whole, commands, pieces)
            return _Linked(linked[ENTRY], most)

        linked = self._linked.get(name, make)
        return CompiledProgram(name, linked.address, with_kernel_scratch(layout, linked.kernel_scratch)[0])

    def _planned(self, shared: SharedCode, options: Options) -> tuple[Layout, dict[range, Series]]:
        layout = plan_layout(shared.program, shared.literals, pass_constants=True)
        series = self._series(layout, options)
        held = held_in_blocks(layout, series.values())
        if held:
            layout = plan_layout(shared.program, shared.literals, pass_constants=True, elsewhere=held)
        return layout, series

    def _series(self, layout: Layout, options: Options) -> dict[range, Series]:
        """Returns the series of a program by their tasks; none if an option keeps the launches as written."""
        if options.codegen == "triton" or options.fuse_tasks == "off":
            return {}
        found = find_series(layout.program.tasks, filled_before(layout), self.device, options.block_dim)
        return {one.tasks: one for one in found}

    def _emit(
        self, layout: Layout, piece: range, series: Series | None, options: Options
    ) -> KernelCode | TritonKernels:
        if series is not None:
            return self._emission.series(layout, series, options)
        return self._emission.task(layout.program.tasks[piece[0]], options)

    def _loaded(
        self,
        layout: Layout,
        contents: Mapping[range, str],
        series: Mapping[range, Series],
        options: Options,
        cache: ArtifactCache | None,
    ) -> list[LoadedTask]:
        """Returns the loaded kernels of each piece of the program; pieces with equal content are compiled once."""
        jobs: dict[str, Callable[[], LoadedTask]] = {}
        names: dict[str, str] = {}
        for piece, content in contents.items():
            refs: Iterable[Var] = () if piece in series else layout.task_refs[piece[0]]
            emit = functools.partial(self._emit, layout, piece, series.get(piece), options)
            label = label_of([layout.program.tasks[k] for k in piece])
            jobs.setdefault(content, functools.partial(self._loader.task, content, refs, emit, cache, label))
            names.setdefault(content, label)
        loaded = in_parallel(jobs, names)
        return [loaded[content] for content in contents.values()]

    def _link_handler(
        self,
        name: str,
        key: str,
        layout: Layout,
        commands: Sequence[Command],
        known: Mapping[str, int],
        cache: ArtifactCache | None,
    ) -> Mapping[str, int]:
        imports = {"qd_run": known["qd_run"], **fault_imports(layout.faults)}
        for symbol in imported(layout, commands):
            if symbol == WORDS:
                imports[symbol] = self.words.take(layout.faults)
                watch(self.words.failure, self.words.memory)
            else:
                imports[symbol] = self._loader.fill(cache) if symbol == FILL else known[symbol]
        text = functools.partial(handler_text, layout, commands)
        return link_text(name, key, text, (ENTRY, TABLE), imports, Target.host(), cache)

    def _launcher(self, cache: ArtifactCache | None) -> Mapping[str, int]:
        """Returns the addresses that the launcher exports; it is compiled or loaded once per process."""
        host, driver = Target.host(), self._driver
        text = launcher_text(driver.functions)
        key = artifact_key(digest("launcher", text), host)

        def make() -> Mapping[str, int]:
            imports = {function: driver.address(function) for function in driver.functions.all}
            launcher = link_text("launcher", key, lambda: text, LAUNCHER_EXPORTS, imports, host, cache)
            self._log.know_launcher(launcher)
            return launcher

        return self._launchers.get(key, make)


def _pieces(count: int, series: Iterable[range]) -> list[range]:
    """Returns the ranges of tasks that are launched together, in order."""
    inside = {k: piece for piece in series for k in piece}
    return list(dict.fromkeys(inside.get(k, range(k, k + 1)) for k in range(count)))


def _content_of_series(layout: Layout, series: Series, contents: Sequence[str]) -> str:
    steps = [contents[s] if isinstance(s, int) else (s.nbytes, s.value) for s in steps_of(layout, series.tasks)]
    inside = block_memory(layout, series.tasks)
    return digest("series", series.threads, steps, sorted(inside.offsets.items()), inside.nbytes)
