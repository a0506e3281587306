"""The state of a loop: the values that an iteration starts from and that walking back through it needs.

Carried values that only count (`k + 1`) follow from the number of the iteration, and sums that the body does not read
are not needed. Private arrays that the loop both reads and changes belong to the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.induction import raised_by
from qdtrace.frozen import frozen
from qdtrace.ir.carries import carried_params
from qdtrace.ir.memory import loaded, touched, written
from qdtrace.ir.primitives import FOR
from qdtrace.ir.program import Var, is_local, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block, walk_inside

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from qdtrace.autodiff.loops.needed import Needed
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Eqn


@frozen
class LoopState:
    """The state of one loop."""

    eqn: Eqn
    index: Var | None
    kept: tuple[Var, ...]
    """Carried parameters of the body that are kept."""
    counters: Mapping[Var, Atom]
    """Increments of carried parameters that only count."""
    arrays: tuple[Var, ...]
    """Private arrays from outside that are kept."""
    only_read: tuple[Var, ...]
    """Private arrays from outside that the loop does not change."""
    is_walked_only: bool
    """True if nothing needs the results of the loop, so that only the walk back runs it."""
    zero: Collection[Var] = ()
    """Variables that are zero, which are not kept."""

    @property
    def is_kept(self) -> bool:
        """True if there is any state to keep."""
        return bool(self.kept or self.arrays)

    def counted(self, builder: Builder, t: Atom, operands: Sequence[Atom]) -> dict[Var, Atom]:
        """Returns the values at iteration `t` of parameters that are not kept, from the operands of the loop."""
        params = carried_params(self.eqn, self.eqn.blocks[-1])
        found: dict[Var, Atom] = {
            p: literal(0, p.dtype) if p in self.zero else unneeded(p) for p in params if p not in self.kept
        }
        starts = dict(zip(params, operands[len(operands) - len(params) :], strict=True))
        progress = [(p, starts[p], by) for p, by in self.counters.items()]
        if self.index is not None:
            progress.append((self.index, operands[0], operands[2]))
        for var, start, by in progress:
            found[var] = _reached(builder, t, var, start, by)
        return found

    def index_at(self, builder: Builder, t: Atom, operands: Sequence[Atom]) -> Atom:
        """Returns the index of a `for` at iteration `t`, from its operands."""
        assert self.index is not None
        return _reached(builder, t, self.index, operands[0], operands[2])


def _reached(builder: Builder, t: Atom, var: Var, start: Atom, by: Atom) -> Atom:
    """Returns the value of `var` at iteration `t`, given that it starts at `start` and grows by `by`."""
    return builder("add", start, builder("mul", builder.convert(t, var.dtype), by))


def unneeded(var: Var) -> Atom:
    """Returns a stand-in for a value that is not needed: NaN for floats, so that a use would show."""
    return literal(float("nan") if var.dtype.is_float else 0, var.dtype)


def loop_state(eqn: Eqn, needed: Needed, taped: Collection[Var] = ()) -> LoopState:
    """Returns the state of a loop of a task. The content of arrays in `taped` is not part of it."""
    body = eqn.blocks[-1]
    inside = needed.among(walk_inside(eqn))
    counters = {p: by for p, by in raised_by(eqn).items() if p.dtype in (DType.i32, DType.i64)}
    params = carried_params(eqn, body)
    kept = tuple(p for p in params if p not in counters and (p in inside or not p.dtype.is_float))
    changed, made = set(written(walk_inside(eqn))), {v for b in eqn.blocks for v in bound_in_block(b)}
    gone = {*made, *needed.zero, *taped}
    read = [r for r in dict.fromkeys(loaded(walk_inside(eqn))) if is_local(r) and r not in gone]
    index = body.params[0] if eqn.primitive is FOR else None
    used = set(touched(walk_inside(eqn))) - set(needed.zero)
    changes = any(r in changed and (r in needed.volatile or (is_local(r) and r not in made)) for r in used)
    return LoopState(
        eqn,
        index,
        kept,
        counters,
        tuple(r for r in read if r in changed),
        tuple(r for r in read if r not in changed),
        is_walked_only=not kept and not changes and needed.everywhere.isdisjoint(eqn.outvars),
        zero=needed.zero,
    )
