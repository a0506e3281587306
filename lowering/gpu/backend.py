"""A backend of GPUs: a verified, optimised program becomes a target that XLA calls, which only enqueues."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.gpu.block_memory import block_memory, held_in_blocks
from lowering.gpu.codegen import content_of
from lowering.gpu.commands import filled_before, kernel_symbol, plan_commands, steps_of
from lowering.gpu.events import EventLog
from lowering.gpu.fill import FILL
from lowering.gpu.handler import LAUNCHER_EXPORTS, WORDS, handler_text, imported, launcher_text
from lowering.gpu.kernels import LoadedTask, Loader, label_of
from lowering.gpu.padding import padded
from lowering.gpu.reproducible import reproducible
from lowering.gpu.words import Words
from lowering.legalize.share_code import share_code
from lowering.llvm.target import Target
from lowering.runtime.cache import artifact_cache
from lowering.runtime.compile import link_text
from lowering.runtime.info import about_compiler
from lowering.runtime.keys import artifact_key, digest, task_contents
from lowering.runtime.layout import plan_layout, with_kernel_scratch
from lowering.runtime.native import Handler, Machines, NativeBackend, Piece
from lowering.runtime.once import Once
from lowering.simt.devices import device
from lowering.simt.series import find_series, why_alone
from qdtrace import launches
from qdtrace.backend import TaskReport
from qdtrace.failures import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lowering.gpu.codegen import TritonKernels
    from lowering.gpu.driver import Driver
    from lowering.gpu.emission import Emission
    from lowering.legalize.share_code import SharedCode
    from lowering.runtime.cache import ArtifactCache
    from lowering.runtime.layout import Layout
    from lowering.runtime.native import Loaded
    from lowering.simt.code import KernelCode
    from lowering.simt.devices import Device
    from lowering.simt.series import Series
    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options
    from qdtrace.ir.program import Program, Task


class GpuBackend(NativeBackend[LoadedTask]):
    """Compiles programs for the devices of one driver, or shows code for a kind of device that need not be there."""

    def __init__(self, device: Callable[[], Device], driver: Callable[[], Driver]) -> None:
        """`driver` is called when a program is compiled, `device` when its code is made or its limits matter; neither
        more than once."""
        super().__init__(Once())
        self._find_device = device
        self._find_driver = driver
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
    def has_masks(self) -> bool:
        """False: a thread has no vectors."""
        return False

    @property
    def walks_in_lanes(self) -> bool:
        """True: a thread has one lane."""
        return True

    @property
    def machine(self) -> Machine:
        """The device as passes know it."""
        return self.device.machine

    def machines(self) -> Machines:
        """Returns the device, and the processor that enqueues its work."""
        return Machines(self.device.target, Target.host(), self._driver.platform)

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
        """Returns how each task is launched, alone or in a series."""
        layout, series = self._planned(share_code(program), options)
        found: list[TaskReport] = []
        for piece in _pieces(len(layout.program.tasks), series):
            for task in (layout.program.tasks[k] for k in piece):
                if piece in series:
                    one = series[piece]
                    threads = 1 if task.kind == "serial" else one.threads
                    found.append(TaskReport("llvm", one.reason, threads))
                    continue
                report = self.describe(task, options)
                reason = f"{report.reason}; a launch of its own: {why_alone(task) or 'no other beside it'}"
                found.append(replace(report, reason=reason))
        return found

    def describe(self, task: Task, options: Options) -> TaskReport:
        """Returns how a task is launched."""
        return self._emission.report(task, options)

    def info(self, options: Options) -> dict[str, str]:
        """Returns device, cache and versions, in words."""
        return {"device": self.device.name, **about_compiler(artifact_cache(options))}

    def fitted(self, program: Program, options: Options) -> Program:
        """Returns a program of the final stage as code is made of it: with `deterministic`, sums that have no order."""
        if options.deterministic:
            return reproducible(program, self.machine.accumulation)
        return padded(program, self.machine.accumulation) if self.device.adds_vectors else program

    def pieces(self, shared: SharedCode, options: Options) -> tuple[Layout, list[Piece[LoadedTask]]]:
        """Returns the layout of a program's call and its launches: of a task, or of a series of tasks."""
        layout, series = self._planned(shared, options)
        contents = task_contents(shared, content_of(options))
        found: list[Piece[LoadedTask]] = []
        for tasks in _pieces(len(contents), series):
            one = series.get(tasks)
            content = _content_of_series(layout, one, contents) if one else contents[tasks[0]]
            refs = () if one else layout.task_refs[tasks[0]]
            label = label_of([layout.program.tasks[k] for k in tasks])
            emit = functools.partial(self._emit, layout, tasks, one, options)
            load = functools.partial(self._loader.task, content, refs, emit, label)
            found.append(Piece(tasks, content, label, load, one is not None))
        return layout, found

    def handler(
        self, layout: Layout, loaded: Loaded[LoadedTask], options: Options, cache: ArtifactCache | None
    ) -> Handler:
        """Returns the handler that enqueues the launches."""
        most = max((one.kernels.scratch_bytes for one in loaded.values()), default=0)
        whole, scratch = with_kernel_scratch(layout, most)
        commands = plan_commands(whole, {piece: one.kernels for piece, one in loaded.items()}, scratch)
        handles = ((piece.tasks[0], one.handles) for piece, one in loaded.items())
        known = {kernel_symbol(k, n): handle for k, found in handles for n, handle in enumerate(found)}
        imports: dict[str, int] = {}
        for symbol in imported(whole, commands):
            if symbol == WORDS:
                imports[symbol] = self.words.take(layout.faults)
                watch(self.words.failure, self.words.memory)
            else:
                imports[symbol] = self._loader.fill(cache) if symbol == FILL else known[symbol]
        know = functools.partial(self._log.know_commands, commands, [piece.tasks for piece in loaded])
        return Handler(functools.partial(handler_text, whole, commands), imports, know, most)

    def launcher(self, cache: ArtifactCache | None) -> Mapping[str, int]:
        """Returns the addresses that the launcher exports; it is compiled or loaded once per process."""
        host, driver = Target.host(), self._driver

        def make() -> Mapping[str, int]:
            text = launcher_text(driver.functions, host.triple)
            key = artifact_key(digest("launcher", text), host)
            imports = {function: driver.address(function) for function in driver.functions.all}
            launcher = link_text("launcher", key, lambda: text, LAUNCHER_EXPORTS, imports, host, cache)
            self._log.know_launcher(launcher)
            return launcher

        return self._launchers.get(host, make)

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


def device_of(driver: Callable[[], Driver], kind: str | None) -> Device:
    """Returns the kind of device of that name, or that of this machine's devices."""
    return device(kind or driver().architecture())


def _pieces(count: int, series: Iterable[range]) -> list[range]:
    """Returns the ranges of tasks that are launched together, in order."""
    inside = {k: piece for piece in series for k in piece}
    return list(dict.fromkeys(inside.get(k, range(k, k + 1)) for k in range(count)))


def _content_of_series(layout: Layout, series: Series, contents: Sequence[str]) -> str:
    steps = [contents[s] if isinstance(s, int) else (s.nbytes, s.value) for s in steps_of(layout, series.tasks)]
    inside = block_memory(layout, series.tasks)
    return digest("series", series.threads, steps, sorted(inside.offsets.items()), inside.nbytes)
