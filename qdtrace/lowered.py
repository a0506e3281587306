"""`Lowered`: a traced function at every stage, from the graph to machine code."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdtrace.analysis.traffic import NOTHING, Traffic, program_traffic
from qdtrace.autodiff.loops.policy import StorageChoice
from qdtrace.backend import backend
from qdtrace.compose.call import call_p, derivative_p
from qdtrace.compose.debug import most_trips
from qdtrace.compose.derivative import derived_for
from qdtrace.errors import BackendError, boundary
from qdtrace.frozen import frozen
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Stage, ref_type
from qdtrace.ir.walk import private_bytes
from qdtrace.lanes.stages import described
from qdtrace.passes.observers import write_page
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.rewrite import REWRITES
from qdtrace.passes.stage_record import Recorder
from qdtrace.trace import compat

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.backend import Backend
    from qdtrace.compose.staged_program import StagedProgram
    from qdtrace.ir.program import Program
    from qdtrace.profile_table import Profile

LARGE = 1 << 16
"""Bytes of private arrays from which on `Lowered.storage` lists them."""


@frozen
class TaskInfo:
    """One launch after all passes."""

    name: str
    bounds: tuple[object, object]
    """First index and end; None for one that is known only at run time."""
    codegen: str
    """The code generator, for instance `llvm`."""
    reason: str
    """The reason for that choice, and the vectorisation, in words."""
    private_bytes: int
    """Bytes of private arrays of one iteration: those of the function, and the stacks of loops in reverse mode."""
    at_once: int
    """The number of iterations that run at a time: lanes of all threads of this machine."""
    kernel_scratch: int = 0
    """Bytes that its kernels share on a GPU, besides private arrays: sums of blocks, and bounds."""


def find_programs(closed_jaxpr: Any, machine: Machine) -> list[StagedProgram]:
    """Returns all programs that a jaxpr reaches on a machine in order, those of derivatives and of inner jaxprs
    included, dead ones excluded."""
    return [part for part in find_parts(closed_jaxpr, machine) if not isinstance(part, TaskInfo)]


def find_parts(closed_jaxpr: Any, machine: Machine) -> list[StagedProgram | TaskInfo]:
    """Returns what `find_programs` does and, in their places, the parts of lanes that XLA runs for a whole batch."""
    return list(_parts(compat.without_dead_code(closed_jaxpr), machine))


def _parts(jaxpr: Any, machine: Machine) -> Iterator[StagedProgram | TaskInfo]:
    for eqn in jaxpr.eqns:
        if eqn.primitive is call_p:
            yield eqn.params["staged"].on(machine.platform)
        elif eqn.primitive is derivative_p:
            yield derived_for(eqn.params["spec"], machine)
        elif (stage := described(eqn)) is not None:
            name, size, codegen, reason = stage
            yield TaskInfo(name, (0, size), codegen, reason, 0, 0)
        else:
            for inner in compat.inner_jaxprs(eqn):
                yield from _parts(compat.open_jaxpr(inner), machine)


class Lowered:
    """The result of `qd.jit(f).lower(*args)`: nothing is compiled until it is asked for.

    >>> @qd.jit
    ... def double(x):
    ...     for i in qd.range(x.shape[0]):
    ...         x[i] = 2 * x[i]
    ...     return x
    >>> low = double.lower(jnp.zeros(1000))
    >>> [task.name for task in low.tasks]
    ['double.0']
    >>> low.traffic().total
    8000
    """

    def __init__(
        self, name: str, parts: Sequence[StagedProgram | TaskInfo], target: str, lower: Callable[[], Any]
    ) -> None:
        self.name = name
        self.programs = [part for part in parts if not isinstance(part, TaskInfo)]
        self._parts = parts
        self.target = target
        self._lower = functools.cache(lower)

    @functools.cached_property
    def tasks(self) -> list[TaskInfo]:
        """The launches left after all passes, in order, over all programs of the function.

        Clearing a buffer to its initial value is not a launch. A part of a `qd.vmap` function that XLA runs for all
        lanes together has a row with the code generator `xla`.
        """
        return [
            info for part in self._parts for info in ([part] if isinstance(part, TaskInfo) else self._tasks_of(part))
        ]

    @property
    def storage(self) -> list[StorageChoice]:
        """The storage that reverse mode chose for each loop, with the reason (`print(*low.storage, sep="\\n")`).

        Once the function has run with `debug=True`, it also says how many iterations each loop had at most (`ran`),
        and whether states were dropped. It ends with the place of private arrays for each task whose
        iterations have more than 64 KiB of others.
        """
        kept = [c.after(most_trips.get(c.loc)) for s in self.programs for c in s.stacks]
        return kept + [note for staged in self.programs for note in self._large(staged)]

    def _large(self, staged: StagedProgram) -> Iterator[StorageChoice]:
        where = "memory of the thread" if self._backend.machine.platform == "cpu" else "scratch of the threads that run"
        kept = sum(choice.nbytes for choice in staged.stacks)
        for task in self._final(staged).tasks:
            held = private_bytes(task.body.eqns)
            if held - kept > LARGE:
                reason = f"{task.name}: an iteration has {held / 1024:.4g} KiB of private arrays, in {where}"
                yield StorageChoice(task.loc, reason, 1, held)

    def _tasks_of(self, staged: StagedProgram) -> list[TaskInfo]:
        infos: list[TaskInfo] = []
        program = self._final(staged)
        for task, code in zip(program.tasks, self._backend.reports(program, staged.options), strict=True):
            bounds = (getattr(task.start, "value", None), getattr(task.stop, "value", None))
            held = private_bytes(task.body.eqns)
            costs = held, code.at_once, code.kernel_scratch
            infos.append(TaskInfo(task.name, bounds, code.codegen, code.reason, *costs))
        return infos

    @property
    def _backend(self) -> Backend:
        return backend(self.target)

    def _final(self, staged: StagedProgram) -> Program:
        return self._backend.fitted(staged.optimised_for(self._backend.machine), staged.options)

    @boundary
    def graph(self, stage: str = "final") -> str:
        """Returns the graph as text: `"trace"`, `"canonical"`, `"joined"`, `"final"` or after a named pass's last run.

        Raises BackendError for a name that is no stage; the message lists the stages.
        """
        return "\n".join(print_program(self._program_at(staged, stage)) for staged in self.programs)

    @boundary
    def traffic(self, stage: str = "final") -> Traffic:
        """Returns the bytes that tasks must move between memory and the core, by the graph (stages as in `graph`).

        Each element that a task loads or stores counts once per task: `read`, `written`, `total`. If accesses are
        conditional or at indices known only at run time, it is an upper bound and not `exact`. Raises BackendError.
        """
        return sum((program_traffic(self._program_at(staged, stage)) for staged in self.programs), NOTHING)

    @boundary
    def report(self, path: str | os.PathLike[str], profile: Profile | None = None) -> Path:
        """Writes a self-contained HTML page on the compilation of the function, and returns its path.

        It begins with the remaining launches, their bytes and vectorisation, and their times if `profile` is a result
        of `qd.profile` for the function. Then come the decisions of task fusion, the storage of reverse mode for each
        loop, the source line by line beside its graph, and the changes of every pass.
        """
        records: list[Recorder] = []
        for staged in self.programs:
            recorder = Recorder()
            optimise(
                staged.program, staged.options, (recorder,), machine=self._backend.machine, each_pass=True
            )
            launches = [(t.name, t.reason) for t in self._tasks_of(staged)]
            recorder.launches, recorder.loops = launches, [(c.text(), c.loc) for c in staged.stacks]
            if profile is not None:
                recorder.times = [profile.said_of(staged.program.name, name) for name, _ in launches]
            records.append(recorder)
        page = Path(path)
        write_page(page, self.name, records)
        return page

    @boundary
    def as_text(self, dialect: str = "graph") -> str:
        """Returns the code in a dialect: `"graph"` or one of the backend's.

        On the CPU they are `"llvm"` (before LLVM's passes) and `"asm"` (machine code as text).
        """
        if dialect == "graph":
            return self.graph()
        dialects = self._backend.dialects
        if dialect not in dialects:
            have = ", ".join(("graph", *dialects))
            raise BackendError(f"needs a dialect out of {have} for target {self.target!r}, got {dialect!r}")
        return "\n".join(
            text for s in self.programs for text in self._backend.texts(self._final(s), s.options, dialect)
        )

    def compile(self) -> Any:
        """Returns JAX's compiled object, callable with arguments like those that it was lowered with."""
        return self._lower().compile()

    def cost_analysis(self) -> Any:
        """Returns XLA's estimate for the program around the tasks (see jax.stages.Lowered.cost_analysis)."""
        return self._lower().compile().cost_analysis()

    def memory_analysis(self) -> dict[str, int]:
        """Returns bytes: `arguments` and `results` of the calls, `temporaries` in them, and memory of iterations.

        `stack_per_lane` is the private memory of one iteration, in the task that needs most: arrays made in its loop,
        and the stacks of reverse mode. `stacks` is that of all iterations that run at a time on this machine's threads.
        `kernel_scratch` is the other memory that kernels of a GPU share, in the task that needs most.
        """
        totals = {"arguments": 0, "results": 0, "temporaries": 0}
        for staged in self.programs:
            program = self._final(staged)
            totals["arguments"] += sum(ref_type(v).nbytes for v in program.params)
            totals["results"] += sum(ref_type(v).nbytes for v in program.results if v not in program.params)
            totals["temporaries"] += sum(ref_type(v).nbytes for v in program.buffers if v not in program.results)
        tasks = self.tasks
        stacks, per_lane = max(((t.private_bytes * t.at_once, t.private_bytes) for t in tasks), default=(0, 0))
        shared = max((t.kernel_scratch for t in tasks), default=0)
        return {**totals, "stack_per_lane": per_lane, "stacks": stacks, "kernel_scratch": shared}

    def _program_at(self, staged: StagedProgram, stage: str) -> Program:
        if stage == "trace":
            return staged.program
        if stage == "final":
            return self._final(staged)
        seen: dict[str, Program] = {}

        def observe(name: str, program: Program) -> None:
            seen[re.sub(r"^simplify_\d+_", "", name)] = program

        until = Stage.__members__.get(stage.upper(), Stage.FINAL)
        reached = optimise(
            staged.program, staged.options, (observe,), machine=self._backend.machine, until=until, each_pass=True
        )
        if until is not Stage.FINAL:
            return reached
        if "rewrite" in seen:
            seen.update(dict.fromkeys(REWRITES, seen.pop("rewrite")))
        if stage not in seen:
            raise BackendError(f"needs a stage out of {', '.join(dict.fromkeys((*seen, 'final')))}; got {stage!r}")
        return seen[stage]

    def __repr__(self) -> str:
        return f"<Lowered {self.name}: {len(self.programs)} programs for {self.target}>"
