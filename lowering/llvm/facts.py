"""What is known of a task before a line is written, for any machine: analyses, who writes what, costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from qdtrace.analysis.cost import operations
from qdtrace.analysis.index.affine import AffineForms, Quotient, Term
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.ir.faults import checks_of
from qdtrace.ir.memory import indices_of
from qdtrace.ir.program import Block, Eqn, Literal, Task, Var, is_global, ref_type
from qdtrace.ir.walk import is_innermost, private_bytes, task_refs, used_in_block, walk_eqns, walk_often, walk_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(eq=False)
class TaskFacts:
    """Facts of one task."""

    task: Task

    @cached_property
    def forms(self) -> AffineForms:
        """Values that are affine in others."""
        return AffineForms(self.task)

    @cached_property
    def refs(self) -> tuple[Var, ...]:
        """Global references in the order of the call."""
        return tuple(task_refs(self.task))

    @property
    def ref_count(self) -> int:
        """References in the table that the code takes; what the launcher says of the call stands behind them."""
        return len(self.refs)

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
    def readers(self) -> Counter[Var]:
        """How often a variable is read in the body."""
        return self.readers_in(self.task.body)

    def readers_in(self, block: Block) -> Counter[Var]:
        """How often variables are read in a block: as operands, and where addresses are made of them."""
        found = Counter(used_in_block(block))
        for eqn in walk_eqns(block):
            if eqn.primitive.values is not None:
                for term in self.forms.address(ref_type(eqn.invars[0]), indices_of(eqn)).terms:
                    found.update(_variables(term))
        return found

    @cached_property
    def exclusive_accums(self) -> frozenset[Var]:
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
    def accumulated(self) -> dict[Var, str]:
        """References that the task only accumulates into, by one operation."""
        found: dict[Var, str] = {}
        for ref, eqns in self.effects.items():
            ops = {e.params["op"] for e in eqns if e.primitive.name == "accum"}
            if len(ops) == 1 and all(e.primitive.name == "accum" for e in eqns):
                found[ref] = next(iter(ops))
        return found

    @cached_property
    def cost(self) -> int:
        """Estimated scalar operations of one iteration."""
        return operations(self.task.body)

    @property
    def has_loops(self) -> bool:
        """Whether an iteration loops."""
        return bool(self.innermost_loops)

    @cached_property
    def innermost_loops(self) -> list[Eqn]:
        """Loops with none inside, but for those that hardly ever run."""
        return list(filter(is_innermost, walk_often(self.task.body)))

    @cached_property
    def loop_body_cost(self) -> int:
        """Cost of the longest body of an innermost loop."""
        return max((sum(map(operations, e.blocks)) for e in self.innermost_loops), default=0)

    @cached_property
    def private_bytes(self) -> int:
        """Private memory of one lane."""
        return private_bytes(self.task.body.eqns)


def _variables(term: Term) -> Iterator[Var]:
    if isinstance(term, Var):
        yield term
    elif isinstance(term, Quotient):
        for inner in term.dividend.terms:
            yield from _variables(inner)


def reference(eqn: Eqn) -> Var:
    """What a memory equation accesses."""
    ref = eqn.invars[0]
    assert isinstance(ref, Var)
    return ref
