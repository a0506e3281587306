"""Indices of scalar code that are clipped to their axis, in a branch that is hardly taken.

    j: i32 = select p w i       an index, wrapped as Python's negative ones are
    k: i32 = max j 0:i32
    l: i32 = min k 99:i32

One lane at a time, four or more instructions would wait for the index, and the access for them. The processor predicts
the branch that finds `j` in range, so nothing waits. (A vector clips all its lanes at once, in two instructions.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER

if TYPE_CHECKING:
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Eqn

_SELDOM = '!{!"branch_weights", i32 1048575, i32 1}'


def emit_clipped(f: LaneFrame, eqn: Eqn) -> bool:
    """Emits the `min` that ends the clipping of an index in a loop; returns whether it is one."""
    index = f.facts.clipped_indices.get(eqn)
    if index is None or f.split:
        return False
    text, o, out, last = f.text, f.scalar, eqn.outvars[0], int(eqn.invars[1].value)  # type: ignore[union-attr]
    kind, given = REGISTER[out.dtype], f.scalar_of(index)
    fine = text.op(f"icmp ule {kind} {given}, {last}")
    before, far, near = text.label, text.fresh_label("far"), text.fresh_label("near")
    text.branch(fine, near, far, f", !prof {text.module.shared_node(_SELDOM)}")
    text.begin(far)
    clipped = o.intrinsic("smin", kind, o.intrinsic("smax", kind, given, "0"), str(last))
    text.jump(near)
    text.begin(near)
    f.bind(out, [text.op(f"phi {kind} [ {given}, %{before} ], [ {clipped}, %{far} ]")])
    return True
