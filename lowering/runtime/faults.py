"""Failed checks as errors of XLA: the texts of a program's checks, and the error of one with the number it refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.runtime import abi
from lowering.runtime.abi import c_string

if TYPE_CHECKING:
    from collections.abc import Sequence


def fault_constants(k: int, texts: Sequence[str]) -> tuple[list[str], str]:
    """Constants: the texts of the checks of task number `k`; and what stands for their table."""
    if not texts:
        return [], "null"
    lines = [f"@fault_{k}_{n} = private constant {c_string(text)}" for n, text in enumerate(texts)]
    items = ", ".join(f"ptr @fault_{k}_{n}" for n in range(len(texts)))
    return [*lines, f"@faults_{k} = private constant [{len(texts)} x ptr] [{items}]"], f"@faults_{k}"


FAULTS = f"""
; the error of check %number (counted from 1) of a table of texts, which refused %value
define internal ptr @fault_error(ptr %frame, ptr %faults, i64 %number, i64 %value) cold noinline {{
  %index = sub i64 %number, 1
  %place = getelementptr ptr, ptr %faults, i64 %index
  %format = load ptr, ptr %place
  %length = call i32 (ptr, i64, ptr, ...) @snprintf(ptr null, i64 0, ptr %format, i64 %value)
  %wide = sext i32 %length to i64
  %size = add i64 %wide, 1
  %message = alloca i8, i64 %size
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 %size, ptr %format, i64 %value)
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {abi.OUT_OF_RANGE})
  ret ptr %e
}}
"""
