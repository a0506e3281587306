"""Equality of graphs up to the names of variables, programs and tasks, and up to source lines."""


from collections.abc import Sequence

from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var


def programs_equal(a: Program, b: Program) -> bool:
    """Returns whether the programs are equal up to names and source lines."""
    same = _Renaming()
    return (
        same.binds(a.params, b.params)
        and same.binds(a.buffers, b.buffers)
        and {same.pairs.get(v): value for v, value in a.initial.items()} == dict(b.initial)
        and {same.pairs.get(v): same.pairs.get(p) for v, p in a.donated_from.items()} == dict(b.donated_from)
        and {same.pairs.get(v): limits for v, limits in a.limits.items()} == dict(b.limits)
        and len(a.tasks) == len(b.tasks)
        and all(same.task(s, t) for s, t in zip(a.tasks, b.tasks, strict=True))
        and same.atoms(a.results, b.results)
    )


def tasks_equal(a: Task, b: Task) -> bool:
    """Returns whether two tasks of one program have equal equations on the same references."""
    return _Renaming().task(a, b)


class _Renaming:
    """A pairing of the variables of two graphs; a variable that neither graph binds is paired with itself."""

    def __init__(self) -> None:
        self.pairs: dict[Var, Var] = {}
        self.bound: set[Var] = set()

    def binds(self, a: Sequence[Var], b: Sequence[Var]) -> bool:
        if len(a) != len(b) or any(s.type != t.type for s, t in zip(a, b, strict=True)):
            return False
        self.pairs.update(zip(a, b, strict=True))
        self.bound.update(b)
        return True

    def atom(self, a: Atom, b: Atom) -> bool:
        if isinstance(a, Var) and isinstance(b, Var):
            return self.pairs[a] is b if a in self.pairs else a is b and b not in self.bound
        return a == b

    def atoms(self, a: Sequence[Atom], b: Sequence[Atom]) -> bool:
        return len(a) == len(b) and all(map(self.atom, a, b))

    def task(self, a: Task, b: Task) -> bool:
        if a.kind != b.kind or (a.index is None) != (b.index is None) or dict(a.hints) != dict(b.hints):
            return False
        if not self.eqns(a.head, b.head):
            return False
        if a.index is None or b.index is None:  # serial: there are no bounds to speak of
            return self.block(a.body, b.body)
        bounds = self.atoms((a.start, a.stop), (b.start, b.stop))
        return bounds and self.binds((a.index,), (b.index,)) and self.block(a.body, b.body)

    def block(self, a: Block, b: Block) -> bool:
        return self.binds(a.params, b.params) and self.eqns(a.eqns, b.eqns) and self.atoms(a.results, b.results)

    def eqns(self, a: Sequence[Eqn], b: Sequence[Eqn]) -> bool:
        return len(a) == len(b) and all(map(self.eqn, a, b))

    def eqn(self, a: Eqn, b: Eqn) -> bool:
        return (
            a.primitive is b.primitive
            and dict(a.params) == dict(b.params)
            and self.atoms(a.invars, b.invars)
            and len(a.blocks) == len(b.blocks)
            and all(map(self.block, a.blocks, b.blocks))
            and self.binds(a.outvars, b.outvars)
        )
