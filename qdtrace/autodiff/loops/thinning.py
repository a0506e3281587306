"""Storage in bounded memory for a loop of any trip count: it keeps states at multiples of a stride that doubles.

The state before iteration `t` is kept when `t` is a multiple of the stride at `t`: 1 below `K`, then 2 below `2 K`, and
so on. Of `K` slots the first belongs to `t = 0`, the others to `1 + (t - 1) % (K - 1)`. `K` is a power of two, so
multiples of a stride `s` up to `(K - 1) s` lie in slots of their own, and a later state overwrites only an odd multiple
of the previous stride, which is not needed any more. Nothing is ever moved.

The walk back recomputes the states in between by running iterations once more from a kept one. On the way it saves all
of them, by levels: a multiple of `R**m` that is none of `R**(m + 1)` has one of `R - 1` slots of level `m`. The last
block of each level survives, and serves the part of the walk that lies in it; a block of level `m` is run again from
its start. So a walk is right for every trip count, and costs one more run of the loop for each level of the stride.

All iteration and slot numbers are the same in all lanes, so that lanes load and store side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.builder import emit_loop
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.autodiff.loops.iterations import Atoms, Iterations
    from qdtrace.autodiff.loops.replay import Replay
    from qdtrace.autodiff.loops.slots import Slots
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Var

I32 = DType.i32
RADIX_BITS = 4
"""Logarithm of the number of iterations between two states of a level."""


def levels(kept_bits: int, most: int | None = None) -> int:
    """Returns the levels that a loop of at most `most` iterations needs beside `2**kept_bits` kept states.

    None stands for the longest loop.
    """
    longest = 31 if most is None else max(0, most - 1).bit_length()
    return max(0, (longest - 1 - kept_bits) // RADIX_BITS + 1)


def slots_for(kept_bits: int, most: int | None = None) -> int:
    """Returns the number of slots of a stack that keeps `2**kept_bits` of at most `most` states."""
    return (1 << kept_bits) + levels(kept_bits, most) * ((1 << RADIX_BITS) - 1)


class Thinning:
    """A stack of states that is thinned out as it fills; the slots of the levels follow those of the kept states."""

    def __init__(self, slots: Slots, kept_bits: int) -> None:
        """`slots` has the capacity that `slots_for` returns; `2**kept_bits` states are kept."""
        self.kept_bits = kept_bits
        self.slots = slots

    def keep(self, builder: Builder, t: Atom, state: Sequence[Atom]) -> None:
        """Saves the state before iteration `t` if `t` is a multiple of the stride."""
        b = Numbers(builder)
        with builder.block() as then:
            self.slots.save(builder, self._kept_slot(b, t), state)
        with builder.block() as other:
            pass
        builder.emit("if", b.is_multiple(t, self._stride(b, t)), blocks=(then.close(), other.close()))

    def backward(self, builder: Builder, iterations: Iterations, given: Sequence[Atom], replay: Replay) -> Atoms:
        """Walks back from the last iteration to the first; recomputes states from the nearest kept one."""
        b, most = Numbers(builder), iterations.most
        last = b("sub", most, 1)
        stride = self._stride(b, last)

        def back(t: Var, adjoints: list[Var]) -> Atoms:
            start = self._nearest(b, t, most, stride)
            state = self._again(builder, iterations, start, t, stride, replay)
            return iterations.only_own(t, lambda: replay.back(t, state, adjoints), adjoints)

        down = literal(-1, I32)
        return [*emit_loop(builder, (last, down, down), given, back, index="t", carry="bar")]

    def _stride(self, b: Numbers, t: Atom) -> Atom:
        """Returns the stride when iteration `t` runs."""
        return b("shift_left", 1, b("max", b("sub", 32 - self.kept_bits, b("clz", t)), 0))

    def _kept_slot(self, b: Numbers, t: Atom) -> Atom:
        later = b("add", b("rem", b("sub", t, 1), (1 << self.kept_bits) - 1), 1)
        return b("select", b("eq", t, 0), 0, later)

    def _slot(self, b: Numbers, t: Atom, stride: Atom) -> Atom:
        """Returns the slot of the state before iteration `t`, kept or recomputed."""
        return b("select", b.is_multiple(t, stride), self._kept_slot(b, t), self._level_slot(b, t))

    def _level_slot(self, b: Numbers, t: Atom) -> Atom:
        radix, level = 1 << RADIX_BITS, b("div", b.trailing_zeros(t), RADIX_BITS)
        digit = b("and", b("shift_right_logical", t, b("mul", level, RADIX_BITS)), radix - 1)
        first = (1 << self.kept_bits) - 1  # digits begin at 1
        return b("add", b("add", b("mul", level, radix - 1), digit), first)

    def _nearest(self, b: Numbers, t: Atom, most: Atom, stride: Atom) -> Atom:
        """Returns the last iteration up to `t` whose state is in a slot.

        For the last iteration of the loop that is the last kept one; just before a kept one, the previous kept one.
        Just before the start of a block, all blocks that end there are walked through next, and the widest counts.
        """
        following = b("add", t, 1)
        level = b("div", b.trailing_zeros(following), RADIX_BITS)
        block = b("shift_left", 1, b("mul", level, RADIX_BITS))
        block = b("select", b.is_multiple(following, stride), stride, block)
        kept = b("and", t, b("sub", 0, stride))
        return b("select", b("eq", following, most), kept, b("sub", following, block))

    def _again(
        self, builder: Builder, iterations: Iterations, start: Atom, t: Atom, stride: Atom, replay: Replay
    ) -> Atoms:
        """Runs iterations from `start` up to `t` and saves the states on the way; returns the state before `t`."""
        b, slots = Numbers(builder), self.slots

        def load() -> Atoms:
            slot = self._slot(b, start, stride)
            slots.restore(builder, slot)
            return slots.load(builder, slot)

        if replay.undoes:
            back = (t, b("sub", start, 1), literal(-1, I32))
            emit_loop(builder, back, (), lambda at, _: iterations.only_own(at, lambda: replay.undo(at), ()), index="at")
        state = iterations.only_own(start, load, [literal(0, v.dtype) for v in slots.values])

        def forward(at: Var, values: list[Var]) -> Atoms:
            def run() -> Atoms:
                new = replay.advance(at, values)
                slots.save(builder, self._level_slot(b, b("add", at, 1)), new)
                return new

            return iterations.only_own(at, run, values)

        return [*emit_loop(builder, (start, t, literal(1, I32)), state, forward, index="at")]


class Numbers:
    """Emits i32 arithmetic on iteration numbers; Python integers stand for constants."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def __call__(self, name: str, *operands: Atom | int) -> Atom:
        """Emits an operation and returns its value."""
        return self.builder(name, *(literal(a, I32) if isinstance(a, int) else a for a in operands))

    def is_multiple(self, t: Atom, power: Atom) -> Atom:
        """Emits the test whether `t` is a multiple of a power of two."""
        return self("eq", self("and", t, self("sub", power, 1)), 0)

    def trailing_zeros(self, t: Atom) -> Atom:
        """Emits the number of trailing zero bits of a positive `t`."""
        return self("population_count", self("sub", self("and", t, self("sub", 0, t)), 1))
