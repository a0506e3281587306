"""A kernel that fills memory with a number of eight bytes; drivers fill with one, two or four."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simt.devices import GLOBAL

if TYPE_CHECKING:
    from lowering.simt.devices import Device

FILL = "qd_fill"
THREADS = 256


def fill_text(device: Device) -> str:
    """Returns LLVM IR of the kernel, which takes address, count and number; each thread stores one number."""
    family = device.family
    attribute = family.threads_attribute.format(threads=THREADS)
    return f"""
declare i32 @{family.thread}()
declare i32 @{family.block}()

define {family.convention} void @{FILL}(ptr addrspace({GLOBAL}) %data, i64 %count, i64 %number) {attribute} {{
  %thread = call i32 @{family.thread}()
  %block = call i32 @{family.block}()
  %inner = zext i32 %thread to i64
  %outer = zext i32 %block to i64
  %first = mul i64 %outer, {THREADS}
  %k = add i64 %first, %inner
  %inside = icmp ult i64 %k, %count
  br i1 %inside, label %body, label %done
body:
  %place = getelementptr i64, ptr addrspace({GLOBAL}) %data, i64 %k
  store i64 %number, ptr addrspace({GLOBAL}) %place, align 8
  br label %done
done:
  ret void
}}
"""
