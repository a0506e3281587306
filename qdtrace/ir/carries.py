"""Carried values of `for` and `while`, and results of `if`, one at a time.

    c_1: f32 = for k in 0:i32 : n : 1:i32 carry c = a        Carry(c_1, results=(b,), params=(c,), initial=a)
      b: f32 = mul c c
      yield b

Passes read, add and remove carries by these functions, which know the positions of operands and parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.ir.primitives import IF, WHILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom, Block, Eqn, Var


@frozen(slots=True)
class Carry:
    """A result of an equation with blocks, and the values that it comes from."""

    outvar: Var
    results: tuple[Atom, ...]
    """The next value from the body of a loop; the values of both sides of an `if`."""
    params: tuple[Var, ...] = ()
    """The parameter of each block of a loop that holds the carry; empty for an `if`."""
    initial: Atom | None = None
    """The initial value of a loop's carry; None for an `if`."""


def carried_params(loop: Eqn, block: Block) -> tuple[Var, ...]:
    """Returns the parameters of a loop's block that hold the carries: all but the index."""
    return block.params[len(block.params) - len(loop.outvars) :]


def giving_blocks(eqn: Eqn) -> tuple[Block, ...]:
    """Returns the blocks whose results are those of the equation: all but the condition of a `while`."""
    return eqn.blocks[1:] if eqn.primitive is WHILE else eqn.blocks


def carry_of(eqn: Eqn, number: int) -> Carry:
    """Returns one of the carries of an equation with blocks, by its position."""
    results = tuple([block.results[number] for block in giving_blocks(eqn)])
    if eqn.primitive is IF:
        return Carry(eqn.outvars[number], results)
    params = tuple([block.params[number - len(eqn.outvars)] for block in eqn.blocks])
    return Carry(eqn.outvars[number], results, params, eqn.initials[number])


def carries_of(eqn: Eqn) -> list[Carry]:
    """Returns the carries of an equation with blocks, in order."""
    return [carry_of(eqn, number) for number in range(len(eqn.outvars))]


def with_carries(eqn: Eqn, carries: Sequence[Carry]) -> Eqn:
    """Returns the equation with exactly these carries, or the equation itself if it has them already."""
    first = len(eqn.blocks) - len(giving_blocks(eqn))
    blocks: list[Block] = []
    for k, block in enumerate(eqn.blocks):
        own = block.params[: len(block.params) - len(eqn.outvars)] if block.params else ()
        results = tuple([c.results[k - first] for c in carries]) if k >= first else block.results
        blocks.append(block.rebuilt(block.eqns, results, (*own, *[c.params[k] for c in carries if c.params])))
    initials = [c.initial for c in carries if c.initial is not None]
    return eqn.rebuilt((*eqn.control, *initials), tuple(blocks), tuple([c.outvar for c in carries]))
