"""What equations cost, in operations of a lane: one unit is an addition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.ir.program import Block, Eqn

def code_size(block: Block) -> int:
    """Operations that the code of a block has, each block inside of it once."""
    return sum([eqn_size(eqn) for eqn in block.eqns])


def eqn_size(eqn: Eqn) -> int:
    """Operations that the code of an equation has."""
    if eqn.blocks:
        return 1 + sum([code_size(block) for block in eqn.blocks])
    return eqn.primitive.cost
