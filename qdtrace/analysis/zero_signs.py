"""Finds results of `max` and `min` of which nobody sees the sign of a zero.

Both choose between two zeros as JAX does, which takes instructions of its own. A comparison, a square or an absolute
value is the same for 0.0 and -0.0, a product or a sum hands the sign on at most:

    a: f32 = max l h            the larger one of `a` and 0.0 is 0.0 for both zeros,
    d: f32 = max a 0.0:f32      and of `d` there is only the square
    s: f32 = mul d d
    store out s i
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.ir.primitives import ADD, CONVERT, DIV, IF, MAX, MIN, MUL, NEG, SELECT, SQRT, SUB
from qdtrace.ir.program import Literal, Var

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qdtrace.ir.program import Atom, Block, Eqn

_HAND_ON = frozenset({ADD, SUB, MUL, NEG, MAX, MIN, SELECT, SQRT, CONVERT})
"""Operations whose result differs for operands 0.0 and -0.0 at most by the sign of a zero."""


def unsigned_zeros(body: Block) -> frozenset[Var]:
    """Returns the results of `max` and `min` of floats in a body of which nobody sees the sign of a zero."""
    return frozenset(_unseen(body, set(body.results)))


def _unseen(block: Block, seen: set[Atom]) -> Iterator[Var]:
    """Yields those of a block, and adds what it sees to `seen`, which has what is seen after it."""
    for eqn in reversed(block.eqns):
        for inner in eqn.blocks:
            if eqn.primitive is IF:
                seen.update([a for a, out in zip(inner.results, eqn.outvars, strict=True) if out in seen])
            else:
                seen.update(inner.results)  # the next iteration may see it
            yield from _unseen(inner, seen)
        if eqn.primitive in (MAX, MIN) and eqn.outvars[0].dtype.is_float and eqn.outvars[0] not in seen:
            yield eqn.outvars[0]
        seen.update(_shown(eqn, seen))


def _shown(eqn: Eqn, seen: set[Atom]) -> Sequence[Atom]:
    """Returns the operands whose sign may be seen, if they are zeros, by what comes after an equation."""
    prim, operands = eqn.primitive, eqn.invars
    if prim.is_predicate or prim.has_no_sign or (prim is CONVERT and not eqn.outvars[0].dtype.is_float):
        return ()
    is_square = prim is MUL and operands[0] is operands[1]
    if is_square or any(_decides(eqn, a) for a in operands if isinstance(a, Literal)):
        return ()
    if prim is DIV and eqn.outvars[0] not in seen:
        return operands[1:]
    return () if prim in _HAND_ON and eqn.outvars[0] not in seen else operands


def _decides(eqn: Eqn, constant: Literal) -> bool:
    """Returns whether the result with this operand is the same for both zeros as the other one."""
    if eqn.primitive in (MAX, MIN):
        return bool(np.signbit(constant.value)) is (eqn.primitive is MIN)
    return eqn.primitive in (ADD, SUB) and bool(constant.value)
