"""Storage of a loop of any number of iterations in bounded memory: states at multiples of a stride that doubles.

The stack has 1 + M slots, M odd. The state before iteration `t` is kept when `t` is a multiple of the stride `s`, in
slot 0 for `t = 0`, else in slot `1 + (t - 1) % M`; when `t` exceeds `M s` the stride doubles. Multiples of `s` up to
`M s` lie in slots of their own, as M is odd, and what a later state overwrites is an odd multiple of the stride
before, which is not needed any more. So nothing is ever moved.

The walk back has the states in between from the kept one before them, by running iterations once more. On the way it
keeps some of the states in a second stack, at distances such that half of the free slots are used: each further half
serves a gap between two of those. When no slot is free the rest of a gap is run without keeping any. So the walk is
right for every number of iterations, and costs one more run of the loop for each level that the number needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.builder import scalar_var
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.autodiff.loops import Advance, Atoms, Step
    from qdtrace.autodiff.slots import Slots
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Var

I32 = DType.i32


def _number(value: int) -> Atom:
    return literal(value, I32)


class Thinning:
    """A stack of `1 + most` slots that thins itself, and one of `between` slots for the walk back."""

    def __init__(self, make_slots: Callable[[int], Slots], make: Callable[..., Var], most: int, between: int) -> None:
        assert most % 2 == 1
        self.most = most
        self.between = between
        self.kept = make_slots(1 + most)
        self.inner = make_slots(between)
        self.positions = make(I32, (between,))

    def initial(self) -> Atoms:
        """The next iteration whose state is kept, and the stride."""
        return [_number(0), _number(1)]

    def keep(self, builder: Builder, t: Atom, own: Sequence[Atom], state: Sequence[Atom]) -> Atoms:
        """Keeps the state of every stride-th iteration."""
        following, stride = own
        is_next = builder("eq", t, following)
        grows = builder("and", is_next, builder("gt", t, builder("mul", stride, _number(self.most))))
        stride = builder("select", grows, builder("mul", stride, _number(2)), stride)
        with builder.block() as then:
            self.kept.save(builder, self._slot(builder, t), state)
        with builder.block() as other:
            pass
        builder.emit("if", is_next, blocks=(then.close(), other.close()))
        return [builder("select", is_next, builder("add", t, stride), following), stride]

    def _slot(self, builder: Builder, t: Atom) -> Atom:
        before = builder("sub", t, _number(1))
        later = builder("add", builder("rem", before, _number(self.most)), _number(1))
        return builder("select", builder("eq", t, _number(0)), _number(0), later)

    def backward(
        self, builder: Builder, trips: Atom, own: Sequence[Atom], given: Sequence[Atom], step: Step, advance: Advance
    ) -> Atoms:
        """From the last iteration to the first, with states run again from the nearest kept one."""
        stride = own[1]
        t, count = scalar_var(I32, "t"), scalar_var(I32, "count")
        adjoints = [scalar_var(a.dtype, "bar") for a in given]
        last, minus = builder("sub", trips, _number(1)), _number(-1)
        with builder.block((t, count, *adjoints)) as body:
            start, state = self._nearest(builder, t, count, stride)
            state, count_there = self._go(builder, start, t, count, state, advance)
            left = self._without(builder, t, count_there)
            results = step(t, state, adjoints)
            block = body.close([left, *results])
        _, *found = builder.emit("for", last, minus, minus, _number(0), *given, blocks=(block,))
        return [*found]

    def _nearest(self, builder: Builder, t: Atom, count: Atom, stride: Atom) -> tuple[Atom, Atoms]:
        """The last kept iteration up to `t`, and its state."""
        with builder.block() as then:
            top = builder("sub", count, _number(1))
            state = self.inner.load(builder, top)
            self.inner.restore(builder, top)
            first = then.close([builder.load(self.positions, top), *state])
        with builder.block() as other:
            base = builder("sub", t, builder("rem", t, stride))
            slot = self._slot(builder, base)
            state = self.kept.load(builder, slot)
            self.kept.restore(builder, slot)
            second = other.close([base, *state])
        start, *found = builder.emit("if", builder("gt", count, _number(0)), blocks=(first, second))
        return start, [*found]

    def _go(
        self, builder: Builder, start: Atom, t: Atom, count: Atom, state: Atoms, advance: Advance
    ) -> tuple[Atoms, Atom]:
        """Runs iterations from `start` up to `t`, keeping some states; gives the state there and how many are kept."""
        gap = builder("sub", t, start)
        free = builder("sub", _number(self.between), count)
        half = builder("max", builder("div", builder("add", free, _number(1)), _number(2)), _number(1))
        distance = builder("add", builder("div", gap, builder("add", half, _number(1))), _number(1))
        at, kept, following = (scalar_var(I32, n) for n in ("at", "kept", "next"))
        values = [scalar_var(a.dtype) for a in state]
        with builder.block((at, kept, following, *values)) as body:
            new = advance(at, values)
            arrived = builder("add", at, _number(1))
            wanted = builder("and", builder("eq", arrived, following), builder("lt", arrived, t))
            wanted = builder("and", wanted, builder("lt", kept, _number(self.between)))
            with builder.block() as then:
                self.inner.save(builder, kept, new)
                builder.store(self.positions, arrived, kept)
                saved = then.close([builder("add", kept, _number(1)), builder("add", following, distance)])
            with builder.block() as other:
                unsaved = other.close([kept, following])
            kept_then, next_then = builder.emit("if", wanted, blocks=(saved, unsaved))
            block = body.close([kept_then, next_then, *new])
        first = builder("add", start, distance)
        count, _, *found = builder.emit("for", start, t, _number(1), count, first, *state, blocks=(block,))
        return [*found], count

    def _without(self, builder: Builder, t: Atom, count: Atom) -> Atom:
        """The number of states kept in between when that of iteration `t` is needed no more."""
        top = builder("max", builder("sub", count, _number(1)), _number(0))
        with builder.block() as then:
            at = builder.load(self.positions, top)
            first = then.close([at])
        with builder.block() as other:
            second = other.close([_number(-1)])
        (position,) = builder.emit("if", builder("gt", count, _number(0)), blocks=(first, second))
        return builder("select", builder("eq", position, t), top, count)
