"""Failed checks as errors of XLA: the texts of a program's checks, and the error of one with the number it refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.runtime import abi
from lowering.runtime.abi import c_string

if TYPE_CHECKING:
    from collections.abc import Sequence

FAULT_SIZE = 4096
"""Bytes of the message of a failed check, at most."""


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
  %message = alloca [{FAULT_SIZE} x i8]
  %index = sub i64 %number, 1
  %place = getelementptr ptr, ptr %faults, i64 %index
  %format = load ptr, ptr %place
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {FAULT_SIZE}, ptr %format, i64 %value)
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {abi.OUT_OF_RANGE})
  ret ptr %e
}}
"""
