"""Values that go into, around in and out of `for`, `while` and `if`, one at a time.

    c_1: f32 = for k in 0:i32 : n : 1:i32 carry c = a        Carry(c_1, results=(b,), params=(c,), initial=a)
      b: f32 = mul c c
      yield b

Whoever drops, adds or looks at carried values does it here, and need not know where operands and parameters stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import IF, WHILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom, Block, Eqn, Var


@dataclass(frozen=True, slots=True)
class Carry:
    """A result of an equation with blocks, and what it comes from."""

    outvar: Var
    results: tuple[Atom, ...]
    """What the body of a loop hands on; what the two sides of an `if` give."""
    params: tuple[Var, ...] = ()
    """What each block of a loop calls it; none for an `if`."""
    initial: Atom | None = None
    """What a loop begins with; None for an `if`."""


def carried_params(loop: Eqn, block: Block) -> tuple[Var, ...]:
    """What a block of a loop calls its carries: all parameters but the index."""
    return block.params[len(block.params) - len(loop.outvars) :]


def giving_blocks(eqn: Eqn) -> tuple[Block, ...]:
    """The blocks whose results are the results of the equation: not the condition of a `while`."""
    return eqn.blocks[1:] if eqn.primitive is WHILE else eqn.blocks


def carry_of(eqn: Eqn, number: int) -> Carry:
    """One of the carries of an equation with blocks."""
    results = tuple([block.results[number] for block in giving_blocks(eqn)])
    if eqn.primitive is IF:
        return Carry(eqn.outvars[number], results)
    params = tuple([block.params[number - len(eqn.outvars)] for block in eqn.blocks])
    return Carry(eqn.outvars[number], results, params, eqn.initials[number])


def carries_of(eqn: Eqn) -> list[Carry]:
    """The carries of an equation with blocks, in order."""
    return [carry_of(eqn, number) for number in range(len(eqn.outvars))]


def with_carries(eqn: Eqn, carries: Sequence[Carry]) -> Eqn:
    """The equation with exactly these carries; the same object when they are those that are there."""
    first = len(eqn.blocks) - len(giving_blocks(eqn))
    blocks: list[Block] = []
    for k, block in enumerate(eqn.blocks):
        own = block.params[: len(block.params) - len(eqn.outvars)] if block.params else ()
        results = tuple([c.results[k - first] for c in carries]) if k >= first else block.results
        blocks.append(block.rebuilt(block.eqns, results, (*own, *[c.params[k] for c in carries if c.params])))
    initials = [c.initial for c in carries if c.initial is not None]
    return eqn.rebuilt((*eqn.control, *initials), tuple(blocks), tuple([c.outvar for c in carries]))
