"""Which values are the same in all lanes of a vector, and which branches and loops all lanes take together.

A lane is one iteration of a task. The task index varies; so does what is computed from it, what is read at a varying
index or from private memory, and what a branch or loop decided by a varying value hands out. Inside a loop that lanes
leave at different times the carries may still be uniform *among the lanes that are still in it* (a counter), while
the result after the loop varies.
"""

from __future__ import annotations

from dataclasses import dataclass

from qdtrace.ir.program import Atom, Block, Eqn, Literal, Task, Var, is_local


@dataclass(frozen=True, slots=True)
class Uniformity:
    """The facts of one task."""

    varying: frozenset[Var]
    """Scalars that differ between lanes (at the place where they are bound)."""
    divergent: frozenset[Eqn]
    """`if`, `for` and `while` equations whose course differs between lanes."""

    def is_uniform(self, atom: Atom) -> bool:
        """True when all active lanes hold the same value."""
        return isinstance(atom, Literal) or atom not in self.varying


def analyse_uniformity(
    task: Task, uniform: frozenset[Var] = frozenset(), varying: frozenset[Var] = frozenset()
) -> Uniformity:
    """Facts of a task; of a serial task nothing varies (there is one lane).

    `uniform` and `varying` are variables that are so by the way the task is run.
    """
    if task.kind == "serial" or task.index is None:
        return Uniformity(frozenset(), frozenset())
    search = _Search(uniform)
    search.varying |= {task.index, *varying}
    while search.changed:
        search.changed = False
        search.block(task.body)
    return Uniformity(frozenset(search.varying), frozenset(search.divergent))


class _Search:
    """Grows the set of varying values until nothing changes (only loops need a second round)."""

    def __init__(self, uniform: frozenset[Var]) -> None:
        self.uniform = uniform
        self.varying: set[Var] = set()
        self.divergent: set[Eqn] = set()
        self.changed = True

    def differs(self, atom: Atom) -> bool:
        return atom in self.varying

    def mark(self, var: Var) -> None:
        if var not in self.varying and var not in self.uniform:
            self.varying.add(var)
            self.changed = True

    def diverge(self, eqn: Eqn) -> None:
        if eqn not in self.divergent:
            self.divergent.add(eqn)
            self.changed = True

    def block(self, block: Block) -> None:
        varying = self.varying
        for eqn in block.eqns:
            if eqn.primitive.structured:
                getattr(self, "_" + eqn.primitive.name)(eqn)
            elif eqn.outvars:
                name = eqn.primitive.name
                if name == "cell":
                    continue
                own = name == "atomic" or (name == "load" and is_local(eqn.invars[0]))
                if own or not varying.isdisjoint(eqn.invars):
                    self.mark(eqn.outvars[0])

    def _if(self, eqn: Eqn) -> None:
        for block in eqn.blocks:
            self.block(block)
        if self.differs(eqn.invars[0]):
            self.diverge(eqn)
        then, other = eqn.blocks
        for out, a, b in zip(eqn.outvars, then.results, other.results, strict=True):
            if eqn in self.divergent or self.differs(a) or self.differs(b):
                self.mark(out)

    def _for(self, eqn: Eqn) -> None:
        (body,) = eqn.blocks
        start, _, step = eqn.invars[:3]
        if any(map(self.differs, eqn.invars[:3])):
            self.diverge(eqn)
        if self.differs(start) or self.differs(step):
            self.mark(body.params[0])
        self._carries(eqn, eqn.invars[3:], body.params[1:], body)

    def _while(self, eqn: Eqn) -> None:
        cond, body = eqn.blocks
        self.block(cond)
        if self.differs(cond.results[0]):
            self.diverge(eqn)
        self._carries(eqn, eqn.invars, body.params, body)
        for outer, inner in zip(body.params, cond.params, strict=True):
            if self.differs(outer):
                self.mark(inner)

    def _carries(self, eqn: Eqn, initial: tuple[Atom, ...], params: tuple[Var, ...], body: Block) -> None:
        for before, param in zip(initial, params, strict=True):
            if self.differs(before):
                self.mark(param)
        self.block(body)
        for param, after, out in zip(params, body.results, eqn.outvars, strict=True):
            if self.differs(after):
                self.mark(param)
            if eqn in self.divergent or self.differs(param):
                self.mark(out)
