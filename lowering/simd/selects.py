"""Choices between scalar floats by several comparisons, without a branch.

    p: bool = le a 0.0:f32
    q: bool = ge b c
    r: bool = and p q
    x: f32 = select r s t

With AVX2 and AVX-512 LLVM makes a branch of such a `select`: masks of scalars have no registers, or are moved to
others, and only a choice by one comparison is a blend. Where iterations choose differently the processor predicts many
of them wrong. So the comparisons are made again in the first lane of vectors of 128 bits, where all is blends. Walks
over a tree of triangles, of each of which six such choices find the closest point, take 0.85 to 0.94 of their time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.arithmetic import RULES
from lowering.llvm.ops import Ops
from lowering.llvm.types import REGISTER
from lowering.llvm.vectors import Lanes
from qdtrace.ir.primitives import AND, OR
from qdtrace.ir.program import Atom, Var

if TYPE_CHECKING:
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Eqn

_BITS = 128
"""Bits of the vectors: the registers that hold scalar floats."""
MOST = 8
"""The most comparisons that are made again for one choice."""


def emit_select(f: LaneFrame, eqn: Eqn) -> bool:
    """Emits a `select` of scalar floats by several comparisons, where LLVM would branch; returns whether it did."""
    out = eqn.outvars[0]
    kind = REGISTER[out.dtype]
    if f.split or f.target.vector_bits <= _BITS or not out.dtype.is_float or not _compares(f, eqn.invars[0], kind):
        return False
    o = Ops(f.text, Lanes(_BITS // (64 if kind == "double" else 32)), f.target, f.scalar.fast_math)

    def vector(atom: Atom) -> str:
        return f.text.op(f"insertelement {o.type(out.dtype)} poison, {kind} {f.scalar_of(atom)}, i64 0")

    def mask(condition: Atom) -> str:
        made = _maker(f, condition)
        part = mask if made.primitive in (AND, OR) else vector
        d = made.invars[0].dtype
        return RULES[made.primitive.name](o, d, list(map(part, made.invars)), made.params, made.invars)

    chosen = o.select(mask(eqn.invars[0]), o.type(out.dtype), *map(vector, eqn.invars[1:]))
    f.bind(out, [f.text.op(f"extractelement {o.type(out.dtype)} {chosen}, i64 0")])
    return True


def _maker(f: LaneFrame, atom: Atom) -> Eqn:
    assert isinstance(atom, Var)
    return f.facts.definitions[atom]


def _compares(f: LaneFrame, condition: Atom, kind: str) -> bool:
    """Returns whether a condition is made of several comparisons, all of floats in registers of a kind."""
    pending, found = [condition], 0
    while pending:
        atom = pending.pop()
        eqn = f.facts.definitions.get(atom) if isinstance(atom, Var) else None
        if eqn is not None and eqn.primitive in (AND, OR):
            pending += eqn.invars
        elif eqn is not None and eqn.primitive.mirror and REGISTER[eqn.invars[0].dtype] == kind:
            found += 1
        else:
            return False
        if found + len(pending) > MOST:
            return False
    return found > 1
