"""What the emitter knows of a task before it writes a line: analyses, who writes what, costs, live values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from lowering.llvm.checks import checks_of
from lowering.llvm.types import BYTES, MEMORY, compute_dtype
from qdtrace.analysis.affine import AffineForms
from qdtrace.analysis.injectivity import Injectivity
from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
from qdtrace.analysis.work import GUESS, operations, trips_of
from qdtrace.ir.program import Block, Eqn, Literal, Task, Var, is_global, ref_type
from qdtrace.ir.types import DType, RefType, ScalarType
from qdtrace.ir.walk import free_vars, task_refs, used_in_block, walk_eqns, walk_task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowering.llvm.rows import Row
    from qdtrace.ir.program import Atom

COPIES_BYTES = 1 << 18
"""Memory that a chunk may have for copies of references into which it accumulates."""
COPY_WORK = 4
"""Scalar operations of the task that make one more copy of an element worth clearing and adding up."""
ITERATIONS = 4096
"""Guess for tasks with bounds of unknown value."""


@dataclass(eq=False)
class TaskFacts:
    """Facts of one task."""

    task: Task
    uniformity: Uniformity = field(init=False)
    forms: AffineForms = field(init=False)
    row: Row | None = field(init=False, default=None)
    """The rows that steps keep to."""

    def __post_init__(self) -> None:
        self.uniformity = analyse_uniformity(self.task)
        self.forms = AffineForms(self.task)

    def keep_to(self, row: Row | None) -> None:
        """Takes note that all lanes of a step are in one row."""
        if row is not None:
            self.row = row
            self.uniformity = analyse_uniformity(self.task, row.uniform)

    def out_of_step(self, varying: frozenset[Var]) -> None:
        """Takes note that lanes run loops out of step, so that these values differ."""
        self.uniformity = analyse_uniformity(self.task, varying=varying)

    @cached_property
    def refs(self) -> tuple[Var, ...]:
        """Global references in the order of the call."""
        return tuple(task_refs(self.task))

    @cached_property
    def check_numbers(self) -> dict[Eqn, int]:
        """How code names the checks."""
        return {eqn: k for k, eqn in enumerate(checks_of(self.task))}

    @cached_property
    def effects(self) -> dict[Var, list[Eqn]]:
        """The memory equations on each global reference."""
        found: dict[Var, list[Eqn]] = {}
        for eqn in walk_task(self.task):
            if eqn.primitive.name in ("load", "store", "accum", "atomic") and is_global(eqn.invars[0]):
                found.setdefault(reference(eqn), []).append(eqn)
        return found

    @cached_property
    def written(self) -> frozenset[Var]:
        """References that the task changes."""
        return frozenset(r for r, eqns in self.effects.items() if any(e.primitive.name != "load" for e in eqns))

    @cached_property
    def divisors(self) -> dict[Var, Var]:
        """The divisors whose reciprocals quotients multiply by, by those."""
        quotients = [e.invars for e in walk_eqns(self.task.body) if e.primitive.name == "quotient"]
        return {c: r for _, r, c in quotients if isinstance(c, Var) and isinstance(r, Var)}

    @cached_property
    def used(self) -> frozenset[Var]:
        """Variables that somebody reads."""
        return frozenset(used_in_block(self.task.body))

    @cached_property
    def private_accums(self) -> frozenset[Var]:
        """References into which the task only accumulates, each iteration into elements of its own."""
        injectivity = Injectivity(self.task, self.forms)
        found: set[Var] = set()
        for ref, eqns in self.effects.items():
            accums = [e for e in eqns if e.primitive.name == "accum"]
            if not accums or any(e.primitive.name == "atomic" for e in eqns):
                continue
            keys = [injectivity.keys(e.invars[2:]) for e in accums]
            if keys[0].intersection(*keys[1:]):
                found.add(ref)
        return frozenset(found)

    def is_constant(self, atoms: Iterable[object]) -> bool:
        """True for literals and values of the task's head: the same in all iterations."""
        return all(isinstance(a, Literal) or a in self._head for a in atoms)

    @cached_property
    def _head(self) -> frozenset[Var]:
        return frozenset(v for e in self.task.head for v in e.outvars)

    @cached_property
    def reductions(self) -> dict[tuple[Var, tuple[Atom, ...]], str]:
        """Places (reference, index) that all iterations accumulate into by one operation and nobody else touches.

        They are summed in registers and reach memory once a chunk.
        """
        found: dict[tuple[Var, tuple[Atom, ...]], str] = {}
        for ref, op in self.accumulated.items():
            places = {(ref, e.invars[2:]): op for e in self.effects[ref] if self.is_constant(e.invars[2:])}
            if len(places) <= 16:
                found.update(places)
        return found

    @cached_property
    def copied(self) -> dict[Var, str]:
        """Small references that iterations accumulate into by one operation, anywhere, and that nobody else touches.

        Each chunk of iterations has a copy of its own.
        """
        found: dict[Var, str] = {}
        room = COPIES_BYTES
        for ref, op in self.accumulated.items():
            if ref in self.private_accums or self.task.kind == "serial":
                continue
            if all((ref, e.invars[2:]) in self.reductions for e in self.effects[ref]):
                continue
            size = ref_type(ref).size * BYTES[MEMORY[compute_dtype(ref.dtype)]]
            if 0 < size <= room and self.work >= COPY_WORK * ref_type(ref).size:
                found[ref] = op
                room -= size
        return found

    @cached_property
    def accumulated(self) -> dict[Var, str]:
        """References that the task only accumulates into, by one operation."""
        found: dict[Var, str] = {}
        for ref, eqns in self.effects.items():
            ops = {e.params["op"] for e in eqns if e.primitive.name == "accum"}
            if len(ops) == 1 and all(e.primitive.name == "accum" for e in eqns):
                found[ref] = next(iter(ops))
        return found

    @cached_property
    def shared(self) -> dict[Var, str | None]:
        """References into which iterations accumulate where others may meet them, so that threads need locks; and by
        which operation, where the task does nothing else with them."""
        found: dict[Var, str | None] = {}
        for ref, eqns in self.effects.items():
            if ref in self.private_accums or ref in self.copied or self.task.kind == "serial":
                continue
            if any(e.primitive.name == "accum" and (ref, e.invars[2:]) not in self.reductions for e in eqns):
                found[ref] = self.accumulated.get(ref)
        return found

    @property
    def updates(self) -> int:
        """Estimated accumulations of one iteration into those references."""
        return max(1, _updates(self.task.body, self.shared)) if self.shared else 0

    @property
    def work(self) -> int:
        """Estimated scalar operations of the whole task."""
        start, stop = self.task.start, self.task.stop
        iterations = ITERATIONS
        if isinstance(start, Literal) and isinstance(stop, Literal):
            iterations = max(0, int(stop.value) - int(start.value))
        return iterations * max(1, self.cost)

    @cached_property
    def cost(self) -> int:
        """Estimated scalar operations of one iteration."""
        return operations(self.task.body)

    @cached_property
    def has_loops(self) -> bool:
        """Whether an iteration loops."""
        return any(e.primitive.name in ("for", "while") for e in walk_eqns(self.task.body))

    @cached_property
    def loop_body_cost(self) -> int:
        """Cost of the longest body of an innermost loop."""
        longest = 0
        for eqn in walk_eqns(self.task.body):
            loops = eqn.primitive.name in ("for", "while")
            if loops and not any(e.primitive.name in ("for", "while") for b in eqn.blocks for e in walk_eqns(b)):
                longest = max(longest, sum(map(operations, eqn.blocks)))
        return longest

    @cached_property
    def divergent_loops(self) -> tuple[Eqn, ...]:
        """Loops that lanes leave at different times."""
        return tuple(e for e in self.uniformity.divergent if e.primitive.name in ("for", "while"))

    @cached_property
    def element_bits(self) -> int:
        """Bits of the widest float among the varying values (of the widest integer where there is no float)."""
        floats, integers = 0, 0
        for eqn in walk_eqns(self.task.body):
            for var in eqn.outvars:
                if var in self.uniformity.varying and isinstance(var.type, ScalarType):
                    d = var.dtype
                    if d.is_float:
                        floats = max(floats, d.bits)
                    elif d is not DType.bool and var not in self.forms.forms:
                        integers = max(integers, d.bits)
        return max(32, floats or integers)

    @cached_property
    def private_bytes(self) -> int:
        """Private memory of one lane."""
        cells = [e.outvars[0].type for e in walk_eqns(self.task.body) if e.primitive.name == "cell"]
        return sum(t.nbytes for t in cells if isinstance(t, RefType))

    @cached_property
    def pressure(self) -> int:
        """Most varying values alive at once in the innermost loops (or in the body when it has none), in elements."""
        return _Pressure(self).of_block(self.task.body, set())


def reference(eqn: Eqn) -> Var:
    """What a memory equation accesses."""
    ref = eqn.invars[0]
    assert isinstance(ref, Var)
    return ref


def _updates(block: Block, refs: Iterable[Var]) -> int:
    total = 0
    for eqn in block.eqns:
        if eqn.primitive.name == "accum":
            total += reference(eqn) in refs
        else:
            times = trips_of(eqn) if eqn.primitive.name == "for" else GUESS if eqn.primitive.name == "while" else 1
            total += times * sum(_updates(b, refs) for b in eqn.blocks)
    return total


class _Pressure:
    def __init__(self, facts: TaskFacts) -> None:
        self.facts = facts

    def of_block(self, block: Block, after: set[Var]) -> int:
        """Peak number of live varying values; `after` is alive at the end. Loops count, what is around them does
        not: there a few spills cost little."""
        varying = self.facts.uniformity.varying
        live = {v for v in after if v in varying}
        live |= {a for a in block.results if a in varying}
        peak, inner = len(live), 0
        for eqn in reversed(block.eqns):
            live.difference_update(eqn.outvars)
            if eqn.primitive.structured:
                loop = eqn.primitive.name != "if"
                for part in eqn.blocks:
                    around = live | ({v for v in free_vars(part) if v in varying} if loop else set[Var]())
                    found = self.of_block(part, around)
                    if loop:
                        inner = max(inner, found)
                    else:
                        peak = max(peak, found)
                    live |= {v for v in free_vars(part) if v in varying}
            live |= {a for a in eqn.invars if a in varying}
            peak = max(peak, len(live))
        return inner or peak
