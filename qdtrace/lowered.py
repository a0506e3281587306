"""`Lowered`: a traced function at every stage, from the graph to machine code."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qdtrace.compose.call import StagedProgram, backend, call_p
from qdtrace.errors import BackendError
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import ref_type
from qdtrace.passes.pipelines import REWRITES, optimise
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qdtrace.ir.program import Program

DIALECTS = ("graph", "llvm", "asm")


@dataclass(frozen=True)
class TaskInfo:
    """One launch after all passes."""

    name: str
    bounds: tuple[object, object]
    """First index and end; None where it is known only at run time."""
    codegen: str
    """What makes its code, for instance `llvm`."""
    reason: str
    """Why that, and how it is vectorised."""


def find_programs(closed_jaxpr: Any) -> list[StagedProgram]:
    """Programs called by a jaxpr, in order, those of inner jaxprs included."""
    return list(_programs(compat.open_jaxpr(closed_jaxpr)))


def _programs(jaxpr: Any) -> Iterator[StagedProgram]:
    for eqn in jaxpr.eqns:
        if eqn.primitive is call_p:
            yield eqn.params["staged"]
        for inner in compat.inner_jaxprs(eqn):
            yield from _programs(compat.open_jaxpr(inner))


class Lowered:
    """What `qd.jit(f).lower(*args)` gives: nothing is compiled until it is asked for."""

    def __init__(self, name: str, programs: list[StagedProgram], target: str, lower: Callable[[], Any]) -> None:
        self.name = name
        self.programs = programs
        self.target = target
        self._lower = functools.cache(lower)

    @functools.cached_property
    def tasks(self) -> list[TaskInfo]:
        """The launches left after all passes, in order, over all programs of the function."""
        infos = []
        for staged in self.programs:
            for task in staged.optimised.tasks:
                code = self._backend.emit(task, staged.options)
                bounds = (getattr(task.start, "value", None), getattr(task.stop, "value", None))
                infos.append(TaskInfo(task.name, bounds, "llvm", code.reason))
        return infos

    @property
    def _backend(self) -> Any:
        return backend(self.target)

    def graph(self, stage: str = "final") -> str:
        """The graph as text: `"trace"`, `"final"` or after the last run of any named pass.

        Raises BackendError for a name that is no stage; the message lists the stages.
        """
        return "\n".join(_graph_at(staged, stage) for staged in self.programs)

    def as_text(self, dialect: str = "graph") -> str:
        """The code in a dialect: `"graph"`, `"llvm"` (before LLVM's passes) or `"asm"` (machine code as text)."""
        if dialect == "graph":
            return self.graph()
        if dialect not in DIALECTS:
            raise BackendError(
                f"needs a dialect out of {', '.join(DIALECTS)} for target {self.target!r}, got {dialect!r}"
            )
        write = self._backend.llvm_text if dialect == "llvm" else self._backend.assembly
        return "\n".join(write(t, s.options) for s in self.programs for t in s.optimised.tasks)

    def compile(self) -> Any:
        """The compiled function: JAX's compiled object, callable with arguments like those lowered with."""
        return self._lower().compile()

    def cost_analysis(self) -> Any:
        """XLA's estimate for the program around the tasks (see jax.stages.Lowered.cost_analysis)."""
        return self._lower().compile().cost_analysis()

    def memory_analysis(self) -> dict[str, int]:
        """Bytes: `arguments` and `results` of the calls, and `temporaries` local to them."""
        totals = {"arguments": 0, "results": 0, "temporaries": 0}
        for staged in self.programs:
            program = staged.optimised
            totals["arguments"] += sum(ref_type(v).nbytes for v in program.params)
            totals["results"] += sum(ref_type(v).nbytes for v in program.results if v not in program.params)
            totals["temporaries"] += sum(ref_type(v).nbytes for v in program.buffers if v not in program.results)
        return totals

    def __repr__(self) -> str:
        return f"<Lowered {self.name}: {len(self.programs)} programs for {self.target}>"


def _graph_at(staged: StagedProgram, stage: str) -> str:
    if stage == "trace":
        return print_program(staged.program)
    if stage == "final":
        return print_program(staged.optimised)
    seen: dict[str, Program] = {}

    def observe(name: str, program: Program) -> None:
        seen[re.sub(r"^simplify_\d+_", "", name)] = program

    optimise(staged.program, staged.options, observers=(observe,), each_pass=True)
    if "rewrite" in seen:
        seen.update(dict.fromkeys(REWRITES, seen.pop("rewrite")))
    if stage not in seen:
        raise BackendError(f"needs a stage out of {', '.join(dict.fromkeys((*seen, 'final')))}; got {stage!r}")
    return print_program(seen[stage])
