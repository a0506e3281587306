"""Operands and results that XLA passes to a handler: each is checked against a table, and its address is taken.

The same for every platform. A table of the program begins with its *signature* (`tables.SIGNATURE`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import MEMSET, Cell, External, Fields, Function, c_string, function
from lowering.runtime import abi
from lowering.tables import CHECK, PLACE, SIGNATURE
from qdtrace.ir.program import ref_type
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowering.llvm.host import I64, Code, Operand, Ptr, Value
    from lowering.runtime.layout import Layout
    from lowering.tables import Record

    Back = Callable[[Code, Value, Fields, Value, Value], None]

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


def signature_of(layout: Layout) -> tuple[list[str], dict[str, object]]:
    """Returns constants that describe each operand and result, and the fields of the program's signature."""
    rows = [
        (f"{kind} {k}" + (f" (`{v.hint}`)" if v.hint else ""), abi.XLA_DTYPES[v.dtype], ref_type(v).size)
        for kind, refs in (("operand", layout.program.params), ("result", layout.written))
        for k, v in enumerate(refs)
    ]
    if layout.passes_constants:
        rows.insert(len(layout.program.params), ("the constants", abi.XLA_BYTE, len(layout.constants)))
    if layout.scratch_bytes:
        rows.append(("the scratch result", abi.XLA_BYTE, layout.scratch_bytes))
    return _signature(layout.program.name, rows, layout.operand_count)


def given_signature(layout: Layout) -> tuple[list[str], dict[str, object]]:
    """Returns the same of a program in memory of the caller: two words of 32 bits for each address, and a byte that
    says that it has run."""
    rows = [("the addresses", abi.XLA_DTYPES[DType.i32], 2 * layout.slot_count), ("the end", abi.XLA_BYTE, 1)]
    return _signature(layout.program.name, rows, 1)


def _signature(name: str, rows: Sequence[tuple[str, int, int]], operands: int) -> tuple[list[str], dict[str, object]]:
    records = [CHECK.constant(dtype=d, elements=n, label=f"@label_{k}") for k, (_, d, n) in enumerate(rows)]
    lines = [
        f"@name = private constant {c_string(name)}",
        *(f"@label_{k} = private constant {c_string(label)}" for k, (label, _, _) in enumerate(rows)),
        f"@checks = private constant {CHECK.table(records)}",
    ]
    return lines, {"name": "@name", "args": operands, "results": len(rows) - operands, "checks": "@checks"}


SNPRINTF = External("i32 snprintf(ptr, i64, ptr, ...)")


def error_of(c: Code, frame: Value, code: int, text: str, *values: Operand) -> Value:
    """Returns XLA's error with a text, a format of C, and values for it."""
    message = c.memory(f"[{MESSAGE_SIZE} x i8]")
    SNPRINTF(c, message, MESSAGE_SIZE, c.string(text), *values)
    return abi.new_error(c, frame, message, code)


@function("cold noinline")
def counts_error(c: Code, frame: Ptr, program: Ptr, got_args: I64, got_results: I64) -> Ptr:
    """Returns the error of a call with another number of operands or results."""
    p = Fields(SIGNATURE, program)
    text = "qdtrace: program `%s` needs %lld operands and %lld results, got %lld and %lld"
    return error_of(c, frame, abi.INVALID_ARGUMENT, text, p.name, p.args, p.results, got_args, got_results)


@function("cold noinline")
def buffer_error(c: Code, frame: Ptr, program: Ptr, check: Ptr, got_dtype: I64, got_elements: I64) -> Ptr:
    """Returns the error of an operand or result with another dtype or size."""
    needs, name = Fields(CHECK, check), Fields(SIGNATURE, program).name
    with c.when(needs.dtype.differs(got_dtype)):
        want, got = abi.dtype_name(c, needs.dtype), abi.dtype_name(c, got_dtype)
        text = "qdtrace: program `%s` needs dtype %s for %s, got %s"
        c.give(error_of(c, frame, abi.INVALID_ARGUMENT, text, name, want, needs.label, got))
    text = "qdtrace: program `%s` needs %lld elements in %s, got %lld"
    return error_of(c, frame, abi.INVALID_ARGUMENT, text, name, needs.elements, needs.label, got_elements)


@function("alwaysinline")
def element_count(c: Code, buffer: Ptr) -> I64:
    """Returns the number of elements of one of XLA's buffers."""
    count, dims = Cell(c.value(1, "i64")), buffer.load("ptr", abi.BUFFER_DIMS)
    with c.each(0, buffer.load("i64", abi.BUFFER_RANK)) as axis:
        count.value = count.value * dims.word(axis).load("i64")
    return count.value


@function("alwaysinline")
def collect_list(c: Code, frame: Ptr, program: Ptr, buffers: Ptr, count: I64, checks: Ptr, slots: Ptr) -> Ptr:
    """Checks buffers against the table and stores their addresses; returns null, or the error."""
    with c.each(0, count) as i:
        buffer, check = buffers.word(i).load("ptr"), Fields(CHECK, checks).row(i)
        dtype, elements = buffer.load("i32", abi.BUFFER_DTYPE).to("i64"), element_count(c, buffer)
        with c.when(dtype.differs(check.dtype) | elements.differs(check.elements)):
            c.give(buffer_error(c, frame, program, check, dtype, elements))
        slots.word(i).store(buffer.load("ptr", abi.BUFFER_DATA), "ptr")
    return c.value(None, "ptr")


@function("alwaysinline")
def collect(c: Code, frame: Ptr, program: Ptr, slots: Ptr) -> Ptr:
    """Stores the addresses of operands and results, in order, if all are right; returns null, or the error."""
    p = Fields(SIGNATURE, program)
    args, results, checks = p.args, p.results, p.checks
    got_args, got_results = frame.load("i64", abi.FRAME_ARG_COUNT), frame.load("i64", abi.FRAME_RESULT_COUNT)
    with c.when(args.differs(got_args) | results.differs(got_results)):
        c.give(counts_error(c, frame, program, got_args, got_results))
    error = collect_list(c, frame, program, frame.load("ptr", abi.FRAME_ARGS), args, checks, slots)
    c.give_if(error.differs(None), error)
    further = Fields(CHECK, checks).row(args), slots.word(args)
    return collect_list(c, frame, program, frame.load("ptr", abi.FRAME_RESULTS), results, *further)


@function("alwaysinline")
def locate(c: Code, places: Ptr, count: I64, slots: Ptr, addresses: Ptr) -> None:
    """Stores the addresses, as numbers, of places in the memory of the slots."""
    with c.each(0, count) as i:
        place = Fields(PLACE, places).row(i)
        addresses.word(i).store(slots.word(place.slot).load("i64") + place.offset)


@function()
def clear_results(c: Code, program: Ptr, slots: Ptr) -> None:
    """Fills all results with zeros."""
    p = Fields(SIGNATURE, program)
    args, checks = p.args, Fields(CHECK, p.checks)
    with c.each(args, args + p.results) as k:
        check = checks.row(k)
        MEMSET(c, slots.word(k).load("ptr"), 0, check.elements * abi.dtype_size(c, check.dtype), 0)


def run_of(table: Record, traits: int, further: int, back: Back) -> Function:
    """Returns `qd_run`, which runs a program of a table in a call of XLA's: it collects the addresses of operands and
    results, with room for `further` ones, and goes on with `back`."""

    def qd_run(c: Code, frame: Ptr, program: Ptr) -> Ptr:
        c.give_if(abi.answer_metadata(c, frame, traits))
        fields = Fields(table, program)
        count = fields.args + fields.results
        slots = c.array("ptr", count + further)
        error = collect(c, frame, program, slots)
        c.give_if(error.differs(None), error)
        back(c, frame, fields, slots, slots.word(count))
        return c.value(None, "ptr")

    return Function(qd_run, "")


def run_given_of(table: Record, back: Back) -> Function:
    """Returns `qd_run_given`, which runs a program in memory of the caller: its operand is the list of the addresses of
    operands and results (`given_signature`)."""

    def qd_run_given(c: Code, frame: Ptr, program: Ptr) -> Ptr:
        c.give_if(abi.answer_metadata(c, frame, 0))
        fields = Fields(table, program)
        passed = c.array("ptr", fields.args + fields.results)
        error = collect(c, frame, program, passed)
        c.give_if(error.differs(None), error)
        addresses, count = passed.word(0).load("ptr"), Fields(CHECK, fields.checks).elements >> 1
        slots = c.array("ptr", count + 1)
        with c.each(0, count) as k:
            slots.word(k).store(addresses.word(k).load("ptr"), "ptr")
        back(c, frame, fields, slots, slots.word(count))
        return c.value(None, "ptr")

    return Function(qd_run_given, "")
