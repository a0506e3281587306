"""A task that walks over spans, cut into three that run one after another.

    range_for i                            range_for p                  before: values that depend on the position alone
      for k in lo : hi : 1                   a = load col p
        s = sin carried                      b = bound a
        a = load col k                       c = load x b
        b = bound a                          store kept c p
        c = load x b                       range_for i                  rows: the walks, which load kept values
        yield s + c                          for k in lo : hi : 1
      for t in n - 1 : -1 : -1                 s = sin carried
        k = add lo t                           c = load kept k
        a = load col k                         yield s + c
        d = mul carried 2                    for t in n - 1 : -1 : -1
        accum y d a                            k = add lo t
        yield ...                              store left carried k
                                               yield ...
                                           range_for p                  after: accumulations that can wait
                                             a = load col p
                                             d = mul (load left p) 2
                                             accum y d a

This is valid if the spans of the iterations of `rows` are disjoint and the other two run over all of their positions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

from qdtrace.analysis.spans import PositionValues, find_walks
from qdtrace.frozen import frozen
from qdtrace.ir.builder import BlockBuilder, Builder, ref_var, scalar_var
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, BOUND, LOAD, Effect
from qdtrace.ir.program import Block, Eqn, Task, Var, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.analysis.spans import Key, Walk
    from qdtrace.ir.program import Atom

MOST_BYTES = 32
"""The most bytes kept for one position."""
MOST_CROSSING = 2
"""The most values of rows that the delayed accumulations of a walk may use."""
_NONE: Mapping[Var, Eqn] = MappingProxyType({})


@frozen(eq=False)
class SpanParts:
    """The tasks that one task is cut into."""

    first: Var
    last: Var
    """Variables of the original task: an iteration walks over the positions from `first` to below `last`."""
    limit: int
    """Upper bound of valid positions, which begin at 0."""
    kept: tuple[Var, ...]
    """References with one element per position, through which the parts communicate."""
    before: Task | None
    rows: Task
    after: Task | None
    origins: Mapping[Eqn, Eqn]
    """Maps checks of the parts to the original checks, if they differ."""


def cut_spans(
    task: Task, written: frozenset[Var], late: Collection[Var], states: Mapping[Var, Eqn] = _NONE
) -> SpanParts | None:
    """Returns the parts of a task that writes some references; into those of `late` it only accumulates. Private arrays
    of `states` with an element for each position, and the stores that fill them, go to what is kept (`span_states`).

    Returns None if it has no walks over spans, or if parts would gain nothing.
    """
    walks = find_walks(task)
    if walks is None or walks.first.dtype.numpy.kind != "i":
        return None
    cut = _Cut(task, PositionValues(task, walks, written), late, states)
    return cut.parts(walks.first, walks.last, walks.found)


@frozen(eq=False)
class _Plan:
    """The assignment of a walk's equations to the parts."""

    walk: Walk
    late: dict[Eqn, None]
    """Accumulations delayed until after all rows, and equations that only they need."""
    crossing: dict[Var, Var]
    """Operands of those that are not values of the position, with the memory that keeps them."""
    loaded: set[Var] = field(default_factory=set[Var])
    """Values that `before` computes and keeps."""
    checked: set[Var] = field(default_factory=set[Var])
    """Results of checks that other parts make."""
    unused: set[Var] = field(default_factory=set[Var])


class _Cut:
    def __init__(
        self, task: Task, values: PositionValues, late: Collection[Var], states: Mapping[Var, Eqn]
    ) -> None:
        self.task = task
        self.values = values
        self.accumulated = late
        self.stores = frozenset(states.values())
        self.saved = {array: ref_var(array.dtype, (values.limit,), "saved") for array in states}
        """Memory of the states that rows keep for their positions."""
        self.wanted: dict[Key, Var] = {}
        """Values that `before` computes and keeps for the rows, by their keys."""
        self.checks: dict[tuple[Key, int], Var] = {}
        """Results of checks that the rows leave to other parts, by key and size."""
        self.early: set[tuple[Key, int]] = set()
        """Names in `checks` whose results the rows use, so that `before` makes them."""
        self.there: dict[Eqn, bool] = {}
        self.origins: dict[Eqn, Eqn] = {}

    def parts(self, first: Var, last: Var, walks: tuple[Walk, ...]) -> SpanParts | None:
        """Returns the parts, or None if they gain nothing."""
        plans = [self._plan(walk) for walk in walks]
        for plan in plans:
            self._look_at(plan)
        late = any(p.late for p in plans)
        if not late and self.values.gathers.isdisjoint(self.wanted):
            return None
        kept: dict[Key, Var] = {}
        before = _Part(self, first, {})
        for name, check in self.checks.items():
            if name in self.early or not late:
                before.value(check)
        for key, var in self.wanted.items():
            before.value(var)
            before.keep(key, kept)
        after = _Part(self, first, kept, before)
        for name, check in self.checks.items():
            if name not in before.checked:
                after.value(check)
        for plan in plans:
            after.late(plan)
        memory = (*kept.values(), *self.saved.values(), *(m for p in plans for m in p.crossing.values()))
        if sum(ref_type(m).dtype.bits for m in memory) > 8 * MOST_BYTES:
            return None
        rows = _Rows(self, plans, {v: kept[k] for v, k in self.values.keys.items() if k in kept}, first)
        return SpanParts(
            first,
            last,
            self.values.limit,
            memory,
            before.task(self.task),
            rows.rebuild_task(self.task),
            after.task(self.task),
            self.origins,
        )

    def _plan(self, walk: Walk) -> _Plan:
        """Chooses the equations of a walk that are delayed until after all rows."""
        users: defaultdict[Var, set[Eqn | None]] = defaultdict(set)
        for eqn in walk.block.eqns:
            for var in used_vars(eqn):
                users[var].add(eqn)
        for atom in walk.block.results:
            if isinstance(atom, Var):
                users[atom].add(None)
        late: set[Eqn] = set()
        for eqn in reversed(walk.block.eqns):
            if self._may_wait(eqn) and all(u in late for v in eqn.outvars for u in users[v] or {None}):
                late.add(eqn)
        ordered = {e: None for e in walk.block.eqns if e in late}
        made = {v for e in late for v in e.outvars}
        taken = {a for e in ordered for a in _operands(e) if isinstance(a, Var) and a not in made}
        crossing = [a for a in taken if self.values.key(a) is None and not self.values.is_everywhere(a)]
        if len(crossing) > MOST_CROSSING:
            return _Plan(walk, {}, {})
        ordered_crossing = sorted(crossing, key=lambda v: [a for e in ordered for a in _operands(e)].index(v))
        return _Plan(walk, ordered, {v: ref_var(v.dtype, (self.values.limit,), "left") for v in ordered_crossing})

    def _may_wait(self, eqn: Eqn) -> bool:
        """Returns whether an equation may be delayed if only delayed ones need it: it needs a value of the position."""
        values, operands = self.values, _operands(eqn)
        of_position = [a for a in operands if values.key(a) is not None]
        if not of_position or not all(map(self._is_there, of_position)):
            return False
        if eqn.primitive is ACCUM:
            fixed = all(values.key(a) is not None or values.is_everywhere(a) for a in indices_of(eqn))
            return eqn.invars[0] in self.accumulated and fixed
        pure = not eqn.blocks and not eqn.primitive.effects and len(eqn.outvars) == 1
        return pure and values.key(eqn.outvar) is None

    def _is_there(self, atom: Atom) -> bool:
        """Returns whether `after` can compute a value of the position."""
        values = self.values
        eqn = values.made.get(atom) if isinstance(atom, Var) else None
        if eqn is None or values.sure(atom) is not None:
            return True
        if eqn not in self.there:
            again = eqn.primitive is not LOAD or values.is_direct(eqn)
            self.there[eqn] = again and all(map(self._is_there, _operands(eqn)))
        return self.there[eqn]

    def _look_at(self, plan: _Plan) -> None:
        """Decides which values of the position are kept, recomputed or unused."""
        values, block = self.values, plan.walk.block
        needed = {a for a in block.results if isinstance(a, Var)}
        for eqn in reversed(block.eqns):
            if eqn in plan.late:
                continue
            key = values.key(eqn.outvar) if len(eqn.outvars) == 1 else None
            if key is None or values.is_position(eqn.outvar):
                needed.update(used_vars(eqn))
            elif eqn.primitive is BOUND:
                self._look_at_check(plan, eqn, key, needed)
            elif eqn.outvar not in needed:
                plan.unused.add(eqn.outvar)
            elif key in values.gathers and (sure := values.sure(eqn.outvar)) is not None:
                self.wanted.setdefault(key, sure)
                plan.loaded.add(eqn.outvar)
            else:
                needed.update(used_vars(eqn))

    def _look_at_check(self, plan: _Plan, eqn: Eqn, key: Key, needed: set[Var]) -> None:
        name = key, int(eqn.params["size"])
        if self.values.is_sure(eqn.outvar):
            self.checks.setdefault(name, eqn.outvar)
        if name not in self.checks:
            needed.update(used_vars(eqn))
            return
        plan.checked.add(eqn.outvar)
        if eqn.outvar in needed:
            self.early.add(name)
            needed.update(used_vars(eqn))


def _operands(eqn: Eqn) -> tuple[Atom, ...]:
    """Returns the operands of an equation without its reference."""
    return eqn.invars if eqn.primitive.values is None else eqn.invars[1:]


class _Part(Builder):
    """Builds the body of a task over positions."""

    def __init__(self, cut: _Cut, first: Var, kept: dict[Key, Var], earlier: _Part | None = None) -> None:
        super().__init__()
        self.values = cut.values
        self.origins = cut.origins
        self.kept = kept
        """References from which values are loaded, by key."""
        self.earlier = earlier
        self.checked: set[tuple[Key, int]] = set() if earlier is None else set(earlier.checked)
        """The checks that are made in the earlier part or here, as each is once."""
        self.index = scalar_var(first.dtype, "p")
        self._made: dict[Key, Atom] = {}
        self._bounds: dict[tuple[Key, int], Atom] = {}

    def task(self, like: Task) -> Task | None:
        """Returns the task, or None if it has nothing to do."""
        block, dtype = self.current.close(), self.index.dtype
        if not block.eqns:
            return None
        bounds = literal(0, dtype), literal(self.values.limit, dtype)
        return Task("range_for", self.index, *bounds, block, like.head, like.name)

    def value(self, atom: Atom) -> Atom:
        """Returns a value of the position, recomputed here."""
        values = self.values
        if values.is_position(atom):
            return self.index
        if not isinstance(atom, Var) or atom not in values.made:
            return atom
        key = values.keys[atom]
        if values.made[atom].primitive is BOUND:
            return self._checked(values.made[atom], key)
        if key not in self._made:
            # the value itself may be loaded at an index that another walk checks
            eqn = values.made[values.sure(atom) or atom]
            if self.earlier is not None and eqn.primitive is LOAD and not values.is_direct(eqn):
                self.earlier.keep(key, self.kept)
            if key in self.kept:
                self._made[key] = self.load(self.kept[key], self.index)
            else:
                self._made[key] = self._copy(eqn, tuple(map(self.value, _operands(eqn)))).outvar
        return self._made[key]

    def keep(self, key: Key, kept: dict[Key, Var]) -> None:
        """Stores a value of the position that is computed here, if it is, unless it is kept already."""
        value = self._made.get(key)
        if value is not None and key not in kept:
            kept[key] = ref_var(value.dtype, (self.values.limit,), "kept")
            self.store(kept[key], value, self.index)

    def _checked(self, eqn: Eqn, key: Key) -> Atom:
        """Returns the operand of a check, which is made here if it is not made before."""
        (operand,), name = map(self.value, eqn.invars), (key, int(eqn.params["size"]))
        if name in self.checked:
            return self._bounds.get(name, operand)
        made = self._copy(eqn, (operand,))
        self.origins[made] = eqn
        self.checked.add(name)
        self._bounds[name] = made.outvar
        return made.outvar

    def _copy(self, eqn: Eqn, operands: tuple[Atom, ...]) -> Eqn:
        ref = eqn.invars[: len(eqn.invars) - len(operands)]
        results = tuple(Var(v.type, v.hint) for v in eqn.outvars)
        made = Eqn(eqn.primitive, (*ref, *operands), results, eqn.params, (), eqn.loc)
        self.append(made)
        return made

    def late(self, plan: _Plan) -> None:
        """Emits the delayed equations of a walk."""
        env: dict[Atom, Atom] = {v: self.load(m, self.index) for v, m in plan.crossing.items()}
        for eqn in plan.late:
            made = self._copy(eqn, tuple(env[a] if a in env else self.value(a) for a in _operands(eqn)))
            env.update(zip(eqn.outvars, made.outvars, strict=True))


class _Rows(Rebuilder):
    """Rebuilds the task without the equations of `before` and `after`."""

    def __init__(self, cut: _Cut, plans: list[_Plan], kept: Mapping[Var, Var], first: Var) -> None:
        super().__init__()
        self.plans = {id(p.walk.block): p for p in plans}
        self.kept = kept
        self.origins = cut.origins
        self.saved = cut.saved
        self.stores = cut.stores
        self.first = first

    def visit(self, eqn: Eqn) -> None:
        """Rebuilds an equation; states need no memory of the iteration."""
        if self.saved.keys().isdisjoint(eqn.outvars):
            super().visit(eqn)

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Rebuilds an equation and records the origin of a check."""
        made = super().rebuild_eqn(eqn)
        if made is not eqn and Effect.CHECK in eqn.primitive.effects:
            self.origins[made] = eqn
        return made

    def rebuild_block(self, block: Block) -> Block:
        """Rebuilds a walk by its plan, other blocks as they are."""
        plan = self.plans.get(id(block))
        if plan is None:
            return super().rebuild_block(block)
        params = self.bind(block.params)
        opened = BlockBuilder()
        self.stack.append(opened)
        for eqn in block.eqns:
            self._walk(plan, eqn)
        for eqn in block.eqns:  # last, as what was read may give place to the state
            if eqn in self.stores:
                self.store(self.saved[reference(eqn)], self.atom(eqn.invars[1]), self._position(plan))
        self.stack.pop()
        return block.rebuilt(opened.eqns, self.atoms(block.results), params)

    def _walk(self, plan: _Plan, eqn: Eqn) -> None:
        position = plan.walk.positions[0]
        result = eqn.outvars[0] if len(eqn.outvars) == 1 else None
        if eqn in plan.late:
            if eqn is next(reversed(plan.late)):
                for var, memory in plan.crossing.items():
                    self.store(memory, self.atom(var), position)
        elif result in plan.loaded:
            self.env[result] = self.load(self.kept[result], position)
        elif result in plan.checked:
            self.env[result] = self.atom(eqn.invars[0])
        elif eqn.primitive is LOAD and (memory := self.saved.get(reference(eqn))) is not None:
            self.env[eqn.outvar] = self.load(memory, self._position(plan))
        elif result not in plan.unused and eqn not in self.stores:
            self.visit(eqn)

    def _position(self, plan: _Plan) -> Atom:
        """Returns the position, which the walk may compute behind this place."""
        assert plan.walk.counter is not None
        return self("add", self.first, plan.walk.counter)
