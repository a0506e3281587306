"""Operands and results that XLA passes to a handler: each is checked against a table, and its address is taken.

The same for every platform. A table of the program begins with its *signature* (`tables.SIGNATURE`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.runtime import abi
from lowering.runtime.abi import c_string
from lowering.tables import CHECK, PLACE, SIGNATURE
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from lowering.runtime.layout import Layout
    from qdtrace.ir.program import Var

MESSAGE_SIZE = 512
ENTRY, TABLE = "qd_handler", "qd_table"
"""Symbols of a handler: the function that XLA calls, and the table by whose address a log finds the program."""


def entry_lines(records: str, table: str) -> list[str]:
    """Returns the end of a handler: its list of tasks or commands, its table, which names that list, and its entry."""
    return [
        f"@{TABLE} = constant {records}",
        f"@program = private constant {table}",
        f"define ptr @{ENTRY}(ptr %frame) {{",
        "  %error = tail call ptr @qd_run(ptr %frame, ptr @program)",
        "  ret ptr %error",
        "}",
    ]


def _label(kind: str, number: int, var: Var) -> str:
    return f"{kind} {number}" + (f" (`{var.hint}`)" if var.hint else "")


def signature_of(layout: Layout) -> tuple[list[str], dict[str, object]]:
    """Returns constants that describe each operand and result, and the fields of the program's signature."""
    rows = [
        (_label(kind, k, v), abi.XLA_DTYPES[v.dtype], ref_type(v).size)
        for kind, refs in (("operand", layout.program.params), ("result", layout.written))
        for k, v in enumerate(refs)
    ]
    if layout.passes_constants:
        rows.insert(len(layout.program.params), ("the constants", abi.XLA_BYTE, len(layout.constants)))
    if layout.scratch_bytes:
        rows.append(("the scratch result", abi.XLA_BYTE, layout.scratch_bytes))
    records = [CHECK.constant(dtype=d, elements=n, label=f"@label_{k}") for k, (_, d, n) in enumerate(rows)]
    lines = [
        f"@name = private constant {c_string(layout.program.name)}",
        *(f"@label_{k} = private constant {c_string(label)}" for k, (label, _, _) in enumerate(rows)),
        f"@checks = private constant {CHECK.table(records)}",
    ]
    operands = layout.operand_count
    return lines, {"name": "@name", "args": operands, "results": len(rows) - operands, "checks": "@checks"}


def format_constant(name: str, text: str) -> str:
    """Returns a constant of LLVM IR that is a format for `snprintf`."""
    return f"@{name} = private constant {c_string(text)}"


OPERANDS = f"""
{abi.dtype_names()}
{format_constant("say_counts", "qdtrace: program `%s` needs %lld operands and %lld results, got %lld and %lld")}
{format_constant("say_dtype", "qdtrace: program `%s` needs dtype %s for %s, got %s")}
{format_constant("say_elements", "qdtrace: program `%s` needs %lld elements in %s, got %lld")}
{format_constant("unknown", "an unknown dtype")}
declare i32 @snprintf(ptr, i64, ptr, ...)

define internal i64 @element_count(ptr %buffer) alwaysinline {{
entry:
  %rank = call i64 @load_i64(ptr %buffer, i64 {abi.BUFFER_RANK})
  %dims = call ptr @load_ptr(ptr %buffer, i64 {abi.BUFFER_DIMS})
  br label %head
head:
  %axis = phi i64 [0, %entry], [%axis1, %body]
  %n = phi i64 [1, %entry], [%n1, %body]
  %inside = icmp slt i64 %axis, %rank
  br i1 %inside, label %body, label %done
body:
  %p = getelementptr i64, ptr %dims, i64 %axis
  %d = load i64, ptr %p
  %n1 = mul i64 %n, %d
  %axis1 = add i64 %axis, 1
  br label %head
done:
  ret i64 %n
}}

define internal ptr @dtype_name(i64 %code) cold {{
  %known = icmp ult i64 %code, {max(abi.XLA_DTYPES.values()) + 1}
  br i1 %known, label %look, label %other
look:
  %p = getelementptr ptr, ptr @dtype_names, i64 %code
  %name = load ptr, ptr %p
  ret ptr %name
other:
  ret ptr @unknown
}}

define internal ptr @counts_error(ptr %frame, ptr %program, i64 %got_args, i64 %got_results) cold noinline {{
  %message = alloca [{MESSAGE_SIZE} x i8]
  {SIGNATURE.load("%program", "name", "args", "results")}
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {MESSAGE_SIZE}, ptr @say_counts, ptr %name,
       i64 %args, i64 %results, i64 %got_args, i64 %got_results)
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {abi.INVALID_ARGUMENT})
  ret ptr %e
}}

define internal ptr @buffer_error(ptr %frame, ptr %program, ptr %check, i64 %got_dtype,
                                  i64 %got_elements) cold noinline {{
  %message = alloca [{MESSAGE_SIZE} x i8]
  {SIGNATURE.load("%program", "name")}
  {CHECK.load("%check", "label", "dtype", "elements")}
  %same = icmp eq i64 %dtype, %got_dtype
  br i1 %same, label %size, label %type
size:
  %n0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {MESSAGE_SIZE}, ptr @say_elements, ptr %name,
        i64 %elements, ptr %label, i64 %got_elements)
  br label %raise
type:
  %want = call ptr @dtype_name(i64 %dtype)
  %got = call ptr @dtype_name(i64 %got_dtype)
  %n1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {MESSAGE_SIZE}, ptr @say_dtype, ptr %name,
        ptr %want, ptr %label, ptr %got)
  br label %raise
raise:
  %e = call ptr @new_error(ptr %frame, ptr %message, i32 {abi.INVALID_ARGUMENT})
  ret ptr %e
}}

; checks %count buffers of a list against the table and stores their data pointers; null, or the error
define internal ptr @collect_list(ptr %frame, ptr %program, i64 %list_offset, i64 %count, ptr %checks,
                                  ptr %slots) alwaysinline {{
entry:
  %list = call ptr @load_ptr(ptr %frame, i64 %list_offset)
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %keep]
  %inside = icmp slt i64 %i, %count
  br i1 %inside, label %body, label %done
body:
  %pb = getelementptr ptr, ptr %list, i64 %i
  %buffer = load ptr, ptr %pb
  %check_offset = mul i64 %i, {CHECK.size}
  %check = getelementptr i8, ptr %checks, i64 %check_offset
  %pd = getelementptr i8, ptr %buffer, i64 {abi.BUFFER_DTYPE}
  %dtype32 = load i32, ptr %pd
  %dtype = zext i32 %dtype32 to i64
  %n = call i64 @element_count(ptr %buffer)
  {CHECK.load("%check", dtype="want_dtype", elements="want_n")}
  %dtype_ok = icmp eq i64 %dtype, %want_dtype
  %n_ok = icmp eq i64 %n, %want_n
  %ok = and i1 %dtype_ok, %n_ok
  br i1 %ok, label %keep, label %bad
keep:
  %data = call ptr @load_ptr(ptr %buffer, i64 {abi.BUFFER_DATA})
  %ps = getelementptr ptr, ptr %slots, i64 %i
  store ptr %data, ptr %ps
  %i1 = add i64 %i, 1
  br label %head
bad:
  %e = call ptr @buffer_error(ptr %frame, ptr %program, ptr %check, i64 %dtype, i64 %n)
  ret ptr %e
done:
  ret ptr null
}}

; stores the addresses of operands and results, in order, when all are as they must be; null, or the error
define internal ptr @collect(ptr %frame, ptr %program, ptr %slots) alwaysinline {{
  {SIGNATURE.load("%program", "args", "results", "checks")}
  %got_args = call i64 @load_i64(ptr %frame, i64 {abi.FRAME_ARG_COUNT})
  %got_results = call i64 @load_i64(ptr %frame, i64 {abi.FRAME_RESULT_COUNT})
  %args_ok = icmp eq i64 %args, %got_args
  %results_ok = icmp eq i64 %results, %got_results
  %ok = and i1 %args_ok, %results_ok
  br i1 %ok, label %look, label %wrong
wrong:
  %e0 = call ptr @counts_error(ptr %frame, ptr %program, i64 %got_args, i64 %got_results)
  ret ptr %e0
look:
  %e1 = call ptr @collect_list(ptr %frame, ptr %program, i64 {abi.FRAME_ARGS}, i64 %args, ptr %checks, ptr %slots)
  %args_good = icmp eq ptr %e1, null
  br i1 %args_good, label %more, label %bad
bad:
  ret ptr %e1
more:
  %skip = mul i64 %args, {CHECK.size}
  %result_checks = getelementptr i8, ptr %checks, i64 %skip
  %result_slots = getelementptr ptr, ptr %slots, i64 %args
  %e2 = call ptr @collect_list(ptr %frame, ptr %program, i64 {abi.FRAME_RESULTS}, i64 %results, ptr %result_checks,
                               ptr %result_slots)
  ret ptr %e2
}}

; addresses, as numbers, of %count places in the memory of the slots
define internal void @locate(ptr %places, i64 %count, ptr %slots, ptr %addresses) alwaysinline {{
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %body]
  %inside = icmp slt i64 %i, %count
  br i1 %inside, label %body, label %done
body:
  %at = mul i64 %i, {PLACE.size}
  %place = getelementptr i8, ptr %places, i64 %at
  {PLACE.load("%place", "slot", "offset")}
  %ps = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %ps
  %address = add i64 %base, %offset
  %pa = getelementptr i64, ptr %addresses, i64 %i
  store i64 %address, ptr %pa
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""

CLEAR_RESULTS = f"""
{abi.dtype_sizes()}
; fills all results with zeros
define internal void @clear_results(ptr %program, ptr %slots) {{
entry:
  {SIGNATURE.load("%program", "args", "results", "checks")}
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %body]
  %inside = icmp slt i64 %i, %results
  br i1 %inside, label %body, label %done
body:
  %k = add i64 %args, %i
  %check_offset = mul i64 %k, {CHECK.size}
  %check = getelementptr i8, ptr %checks, i64 %check_offset
  {CHECK.load("%check", "dtype", "elements")}
  %ps = getelementptr i64, ptr @dtype_sizes, i64 %dtype
  %size = load i64, ptr %ps
  %bytes = mul i64 %elements, %size
  %pd = getelementptr ptr, ptr %slots, i64 %k
  %data = load ptr, ptr %pd
  call void @llvm.memset.p0.i64(ptr %data, i8 0, i64 %bytes, i1 false)
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""
