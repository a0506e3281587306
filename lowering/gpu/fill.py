"""A kernel that fills memory with a number of eight bytes; drivers fill with one, two or four."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.text import Module, Text
from lowering.simt.devices import GLOBAL

if TYPE_CHECKING:
    from lowering.simt.devices import Device

FILL = "qd_fill"
THREADS = 256


def fill_text(device: Device) -> str:
    """Returns LLVM IR of the kernel, which takes address, count and number; each thread stores one number."""
    family, module = device.family, Module()
    text = Text(module, family.threads_attribute.format(threads=THREADS))
    for intrinsic in (family.thread, family.block):
        module.declare(intrinsic, "i32", "")
    thread, block = (text.op(f"call i32 @{intrinsic}()") for intrinsic in (family.thread, family.block))
    inner, outer = (text.op(f"zext i32 {number} to i64") for number in (thread, block))
    k = text.op(f"add i64 {text.op(f'mul i64 {outer}, {THREADS}')}, {inner}")
    with text.when(text.op(f"icmp ult i64 {k}, %count")):
        place = text.op(f"getelementptr i64, ptr addrspace({GLOBAL}) %data, i64 {k}")
        text.do(f"store i64 %number, ptr addrspace({GLOBAL}) {place}, align 8")
    text.do("ret void")
    parameters = f"ptr addrspace({GLOBAL}) %data, i64 %count, i64 %number"
    return module.render([text.render(f"define {family.convention} void @{FILL}({parameters})")])
