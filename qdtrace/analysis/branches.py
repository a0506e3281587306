"""Decides how an `if` is executed: as a jump, as straight code or as both sides under masks.

- A *jump* where all lanes agree: only the side taken runs.
- *Straight* code, made by `passes/predicate`: both sides run unconditionally, and selects choose. Both sides
  must be unable to fail.
- *Both* sides under their masks, where lanes disagree: loads are masked lane by lane, and selects choose.
- *Masked* sides, where lanes disagree: a side is skipped if no lane takes it.

Lanes that disagree compute both sides anyway. Code without a branch saves the test whether any lane takes a side;
a branch saves a side that no lane takes, so it is kept if a side is long. The limits are the machine's
(`Machine.divergent_branch`, `Machine.uniform_branch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.cost import code_size
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.program import Literal, ref_type
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine
    from qdtrace.analysis.uniformity import Uniformity
from qdtrace.ir.program import Block, Eqn


def pays_without_jump(cost: int, machine: Machine, *, divergent: bool) -> bool:
    """Returns whether computing both sides of a branch, of that total cost, is cheaper than a jump."""
    return cost <= (machine.divergent_branch if divergent else machine.uniform_branch)


def runs_both(eqn: Eqn, uniformity: Uniformity, machine: Machine) -> bool:
    """Returns whether a divergent `if` computes both sides, under masks where something may fail."""
    cost = sum(map(code_size, eqn.blocks))
    return pays_without_jump(cost, machine, divergent=True) and all(_is_maskable(b, uniformity) for b in eqn.blocks)


def _is_maskable(block: Block, uniformity: Uniformity) -> bool:
    """Returns whether a block has only maskable equations and loads that are safe in inactive lanes."""
    for eqn in walk_eqns(block):
        if not eqn.primitive.maskable or (eqn.primitive is LOAD and not _is_maskable_load(eqn, uniformity)):
            return False
    return True


def _is_maskable_load(eqn: Eqn, uniformity: Uniformity) -> bool:
    """Returns whether a load has a varying index, so that a mask disables its lanes, or constant ones in range."""
    shape, indices = ref_type(eqn.invars[0]).shape, eqn.invars[1:]
    known = [int(i.value) for i in indices if isinstance(i, Literal)]
    if len(known) == len(indices):
        return all(0 <= i < n for i, n in zip(known, shape, strict=True))
    return not all(map(uniformity.is_uniform, indices))
