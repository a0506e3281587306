"""Descriptions of records: offsets, constants, and code that reads and writes them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from lowering.llvm.host import Fields, Symbol, function, module_text
from lowering.llvm.target import Target
from lowering.runtime.compile import object_code
from lowering.runtime.jit import link
from lowering.tables import CACHE_LINE, LOOP, Record

if TYPE_CHECKING:
    from lowering.llvm.host import I64, Code, Ptr

POINT = Record("i64 x, ptr name, i64 y")


def test_fields_follow_one_another() -> None:
    assert POINT.offsets == {"x": 0, "name": 8, "y": 16}
    assert POINT.size == 24


def test_what_threads_write_has_a_cache_line_each() -> None:
    assert [LOOP.offsets[name] // CACHE_LINE for name in ("next", "done", "users")] == [0, 1, 2]
    assert LOOP.size % CACHE_LINE == 0
    assert len(set(LOOP.offsets.values())) == len(LOOP.types)
    assert max(LOOP.offsets.values()) < LOOP.size


def test_constants_and_fields_mean_the_same() -> None:
    rows = [POINT.constant(y=k + 2, x=k, name="@word") for k in (3, 7)]
    table = Symbol("points", f"constant {POINT.table(rows)}")

    @function()
    def qd_second(c: Code, copy: Ptr) -> I64:
        Symbol("word", 'private constant [1 x i8] c"q"').define(c.module)
        point = Fields(POINT, c.value(table, "ptr")).row(1)
        Fields(POINT, copy).put(name=point.name, x=point.y, y=11)
        return point.x

    target = Target.host()
    text = module_text([qd_second], target.triple)
    address = link("fields", object_code(text, target), ("qd_second",), {}, target)["qd_second"]
    copy = (ctypes.c_int64 * 3)()
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)
    assert run(ctypes.addressof(copy)) == 7
    assert (copy[0], copy[2]) == (9, 11)
    assert ctypes.c_char.from_address(copy[1]).value == b"q"
