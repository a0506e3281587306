"""Facts about a task that emission for any machine needs: analyses, accesses by reference, costs."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.clipped_indices import clipped_indices
from qdtrace.analysis.cost import operations, work
from qdtrace.analysis.index.affine import AffineForms, Quotient, Term
from qdtrace.analysis.memory import TaskMemory, is_comparable
from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
from qdtrace.analysis.zero_signs import unsigned_zeros
from qdtrace.frozen import mutable
from qdtrace.ir.dataflow import slice_of
from qdtrace.ir.faults import checks_of
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, ATOMIC, LOAD, QUOTIENT
from qdtrace.ir.program import Block, Eqn, Literal, Task, Var, is_global, ref_type
from qdtrace.ir.walk import is_innermost, private_bytes, used_in_block, walk_eqns, walk_often

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from qdtrace.ir.program import Atom


@mutable(eq=False)
class TaskFacts:
    """Facts about one task, computed when they are first asked for."""

    task: Task
    reason: ClassVar[str] = ""
    """Words about the rewrite that made the task, for reports."""
    ordered: ClassVar[bool] = False
    """True if iterations are ordered by the trip counts of their loops."""

    @cached_property
    def definitions(self) -> dict[Var, Eqn]:
        """The equation that binds each variable."""
        return self.task.definitions

    @cached_property
    def forms(self) -> AffineForms:
        """The affine forms of the task's values."""
        return AffineForms(self.task)

    @cached_property
    def uniformity(self) -> Uniformity:
        """The uniformity of iterations that run in step."""
        return analyse_uniformity(self.task)

    @cached_property
    def refs(self) -> tuple[Var, ...]:
        """The global references in the order of the call."""
        return tuple(self.task.refs)

    @property
    def ref_count(self) -> int:
        """The number of references in the table that the code takes."""
        return len(self.refs)

    @cached_property
    def check_numbers(self) -> dict[Eqn, int]:
        """The numbers of the checks, which code reports them by."""
        return {eqn: k for k, eqn in enumerate(checks_of(self.task.all_eqns))}

    @cached_property
    def effects(self) -> dict[Var, list[Eqn]]:
        """The memory equations on each global reference."""
        found: dict[Var, list[Eqn]] = {}
        for eqn in self.task.all_eqns:
            if eqn.primitive.is_access and is_global(eqn.invars[0]):
                found.setdefault(reference(eqn), []).append(eqn)
        return found

    @cached_property
    def accums(self) -> list[Eqn]:
        """The accumulations into global references, reference by reference."""
        return [e for eqns in self.effects.values() for e in eqns if e.primitive is ACCUM]

    @cached_property
    def written(self) -> frozenset[Var]:
        """References that the task writes."""
        return frozenset(r for r, eqns in self.effects.items() if any(e.primitive is not LOAD for e in eqns))

    @cached_property
    def divisors(self) -> dict[Var, Var]:
        """Maps each reciprocal that a `quotient` multiplies by to its divisor."""
        quotients = [e.invars for e in walk_eqns(self.task.body) if e.primitive is QUOTIENT]
        return {c: r for _, r, c in quotients if isinstance(c, Var) and isinstance(r, Var)}

    @cached_property
    def unsigned_zeros(self) -> frozenset[Var]:
        """Results of `max` and `min` in the body of which nobody sees the sign of a zero."""
        return unsigned_zeros(self.task.body)

    @cached_property
    def clipped_indices(self) -> dict[Eqn, Var]:
        """The `min` of each index in a loop that is wrapped and clipped to its axis, with the index before that."""
        return clipped_indices(self.task)

    @cached_property
    def used(self) -> frozenset[Var]:
        """Variables that the body reads."""
        return frozenset(used_in_block(self.task.body))

    @cached_property
    def readers(self) -> Counter[Var]:
        """The number of reads of each variable in the body."""
        return self.readers_in(self.task.body)

    def readers_in(self, block: Block) -> Counter[Var]:
        """Counts the reads of variables in a block: as operands, and in affine forms of addresses."""
        found = Counter(used_in_block(block))
        for eqn in walk_eqns(block):
            if eqn.primitive.values is not None:
                for term in self.forms.address(ref_type(eqn.invars[0]), indices_of(eqn)).terms:
                    found.update(_variables(term))
        return found

    @cached_property
    def exclusive_accums(self) -> frozenset[Var]:
        """References whose accumulations are all into elements of the iteration's own."""
        memory = TaskMemory(self.task, self.forms)
        alone = memory.iterations is not None and memory.iterations.count == 1
        found: set[Var] = set()
        for ref, eqns in self.effects.items():
            accums = [e for e in eqns if e.primitive is ACCUM]
            if not accums or any(e.primitive is ATOMIC for e in eqns):
                continue
            if is_comparable(ref) and self.task.index is not None and (alone or memory.are_apart(accums)):
                found.add(ref)
        return frozenset(found)

    def repeatable(self, eqns: Sequence[Eqn], wanted: Sequence[Atom]) -> tuple[Eqn, ...] | None:
        """Returns those equations of a block that compute values, or None if they may not be executed twice."""

        def is_repeatable(eqn: Eqn) -> bool:
            is_load = eqn.primitive is LOAD and is_global(eqn.invars[0]) and eqn.invars[0] not in self.written
            return not eqn.blocks and (not eqn.primitive.effects or is_load)

        found = slice_of(eqns, wanted)
        return found if all(map(is_repeatable, found)) else None

    def is_constant(self, atoms: Iterable[object]) -> bool:
        """Returns whether all are literals or values of the head, which are equal in all iterations."""
        return all(isinstance(a, Literal) or a in self._head for a in atoms)

    @cached_property
    def _head(self) -> frozenset[Var]:
        return frozenset(v for e in self.task.head for v in e.outvars)

    @cached_property
    def accumulated(self) -> dict[Var, str]:
        """References that the task only accumulates into, by one operation, with that operation."""
        found: dict[Var, str] = {}
        for ref, eqns in self.effects.items():
            ops = {e.params["op"] for e in eqns if e.primitive is ACCUM}
            if len(ops) == 1 and all(e.primitive is ACCUM for e in eqns):
                found[ref] = next(iter(ops))
        return found

    @cached_property
    def cost(self) -> int:
        """The estimated scalar operations of one iteration."""
        return operations(self.task.body)

    @cached_property
    def work(self) -> int:
        """The estimated scalar operations of all iterations."""
        return work(self.task)

    @property
    def has_loops(self) -> bool:
        """Returns whether an iteration has loops."""
        return bool(self.innermost_loops)

    @cached_property
    def innermost_loops(self) -> list[Eqn]:
        """The loops that contain no loop, except those that rarely run."""
        return list(filter(is_innermost, walk_often(self.task.body)))

    @cached_property
    def loop_body_cost(self) -> int:
        """The largest cost of the body of an innermost loop."""
        return max((sum(map(operations, e.blocks)) for e in self.innermost_loops), default=0)

    @cached_property
    def private_bytes(self) -> int:
        """Bytes of private memory of one lane."""
        return private_bytes(self.task.body.eqns)


def _variables(term: Term) -> Iterator[Var]:
    if isinstance(term, Var):
        yield term
    elif isinstance(term, Quotient):
        for inner in term.dividend.terms:
            yield from _variables(inner)
