"""Descriptions of records: offsets, constants, and lines that read and write them."""

from __future__ import annotations

import ctypes

from lowering.llvm.target import Target
from lowering.runtime.abi import prelude
from lowering.runtime.compile import object_code
from lowering.runtime.jit import link
from lowering.tables import CACHE_LINE, LOOP, Record

POINT = Record("i64 x, ptr name, i64 y")


def test_fields_follow_one_another() -> None:
    assert POINT.offsets == {"x": 0, "name": 8, "y": 16}
    assert POINT.size == 24


def test_what_threads_write_has_a_cache_line_each() -> None:
    assert [LOOP.offsets[name] // CACHE_LINE for name in ("next", "done", "users")] == [0, 1, 2]
    assert LOOP.size % CACHE_LINE == 0
    assert len(set(LOOP.offsets.values())) == len(LOOP.types)
    assert max(LOOP.offsets.values()) < LOOP.size


def test_constants_and_lines_mean_the_same_fields() -> None:
    rows = [POINT.constant(y=k + 2, x=k, name="@word") for k in (3, 7)]
    text = f"""
@word = private constant [1 x i8] c"q"
@points = constant {POINT.table(rows)}

define i64 @second(ptr %copy) {{
  %point = getelementptr i8, ptr @points, i64 {POINT.size}
  {POINT.load("%point", "name", "y", x="left")}
  {POINT.store("%copy", "name", x="y", y="11")}
  ret i64 %left
}}
"""
    target = Target.host()
    address = link("fields", object_code(prelude() + text, target), ("second",), {}, target)["second"]
    copy = (ctypes.c_int64 * 3)()
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)
    assert run(ctypes.addressof(copy)) == 7
    assert (copy[0], copy[2]) == (9, 11)
    assert ctypes.c_char.from_address(copy[1]).value == b"q"
