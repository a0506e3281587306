"""Loops over the lanes of a vector, for what has to be done lane after lane."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from lowering.llvm.frame import Frame


@contextmanager
def each_active(f: Frame, v: int) -> Generator[str]:
    """A loop over the active lanes of vector v, in order; gives the lane as i64."""
    text, width = f.text, f.width
    bits = text.op(f"bitcast {f.vector.bits} {f.mask_of(f.mask, v)} to i{width}")
    wide = text.op(f"zext i{width} {bits} to i64")
    loop, done, before = text.fresh_label("lane"), text.fresh_label("lanes"), text.label
    inside = text.fresh_label("active")
    text.jump(loop)
    text.begin(loop)
    rest, hole = text.name(), text.hole()
    text.branch(text.op(f"icmp ne i64 {rest}, 0"), inside, done)
    text.begin(inside)
    text.module.declare("llvm.cttz.i64", "i64", "i64, i1")
    with f.region():
        yield text.op(f"call i64 @llvm.cttz.i64(i64 {rest}, i1 true)")
    fewer = text.op(f"and i64 {rest}, {text.op(f'add i64 {rest}, -1')}")
    text.fill(hole, f"{rest} = phi i64 [ {wide}, %{before} ], [ {fewer}, %{text.label} ]")
    text.jump(loop)
    text.begin(done)
