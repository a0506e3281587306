"""Checks of indices and of the user's conditions: one comparison and a branch that is not taken.

If an active lane fails, the number of the check goes into the record of the call and the function returns at once: the
call ends with an error, so nobody sees the missing results, and nothing after the check is executed. The record keeps
the first failure; which one that is among several threads is not determined.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER
from lowering.tables import FAILED, FAILURE, FAILURE_BITS, FIELD
from qdtrace.ir.faults import told_in_a_word
from qdtrace.ir.primitives import CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lowering.llvm.frame import Frame
    from lowering.llvm.text import Text
    from qdtrace.ir.program import Eqn
    from qdtrace.ir.types import DType

FAIL, TELL = "qd_fail", "qd_tell"
WHOLE = [field for field, kind in FAILURE.types.items() if kind == "i64" and field != "number"]
REAL = [field for field, kind in FAILURE.types.items() if kind == "double"]
ONCE = "cold noinline nounwind"
"""Attributes of functions that a call executes at most once."""
_UNLIKELY = '!{!"branch_weights", i32 1, i32 1048575}'


def bound(f: Frame, eqn: Eqn) -> None:
    """Emits `j = bound[size] i`."""
    (index,) = eqn.invars
    bounds(f, eqn, [f.scalar_of(index)])
    f.env[eqn.outvars[0]] = f.value(index)


def bounds(f: Frame, eqn: Eqn, indices: Sequence[str]) -> None:
    """Emits the test of a `bound` for several indices, with one branch; the first that fails is reported."""
    o, kind = f.scalar, REGISTER[eqn.invars[0].dtype]
    test, limit = comparison(eqn)
    bad = [f.where_active(f.text.op(f"icmp {test} {kind} {index}, {limit}")) for index in indices]
    failed = functools.reduce(lambda a, b: f.text.op(f"or i1 {a}, {b}"), bad)
    with failing(f, failed):
        first = indices[-1]
        for index, fails in zip(indices[-2::-1], bad[-2::-1], strict=True):
            first = o.select(fails, kind, index, first)
        widening = "sext" if eqn.invars[0].dtype.is_signed else "zext"
        report(f, eqn, lambda: o.cast(widening, kind, first, "i64"))


def comparison(eqn: Eqn) -> tuple[str, int]:
    """Returns predicate and limit of a failing `bound`; an unsigned comparison finds negative indices too."""
    size, dtype = int(eqn.params["size"]), eqn.invars[0].dtype
    if dtype.is_signed:
        return ("slt", 0) if size >> (dtype.bits - 1) else ("uge", size)
    return ("ult", 0) if size >> dtype.bits else ("uge", size)  # no number is below 0


def check(f: Frame, eqn: Eqn) -> None:
    """Emits `check p`."""
    bad = f.text.op(f"xor i1 {f.scalar_of(eqn.invars[0])}, true")
    told = eqn.invars[1:]
    with failing(f, f.where_active(bad)):
        number = told_in_a_word(eqn) if f.failure else None
        if number is not None:
            one = told[number]
            widening = "sext" if one.dtype.is_signed else "zext"
            report(f, eqn, lambda: f.scalar.cast(widening, REGISTER[one.dtype], f.scalar_of(one), "i64"))
        elif told and not f.failure:
            words = told_words(f.text, [a.dtype for a in told], [f.scalar_of(a) for a in told])
            require_told(f)
            f.text.do(f"call void @{TELL}(ptr %refs, i64 {f.facts.check_numbers[eqn] + 1}, {words})")
        else:
            report(f, eqn)


def told_words(text: Text, dtypes: Sequence[DType], values: Sequence[str]) -> str:
    """Emits operands of the function that records what a check tells: integers in order, then floats in order."""
    whole, real = list[str](), list[str]()
    for dtype, value in zip(dtypes, values, strict=True):
        kind = REGISTER[dtype]
        if dtype.is_float:
            real.append(value if kind == "double" else text.op(f"fpext {kind} {value} to double"))
        else:
            opcode = "sext" if dtype.is_signed else "zext"
            whole.append(value if kind == "i64" else text.op(f"{opcode} {kind} {value} to i64"))
    whole += ["0"] * (len(WHOLE) - len(whole))
    real += ["0.0"] * (len(REAL) - len(real))
    return ", ".join([*(f"i64 {w}" for w in whole), *(f"double {r}" for r in real)])


def leave_if_failed(f: Frame) -> None:
    """Emits a return if the task has failed, as indices that its checks cover may then be out of range."""
    text = f.text
    slot = text.op(f"getelementptr ptr, ptr %refs, i64 {f.table_length + FAILED}")
    failed = text.op(f"load i64, ptr {text.op(f'load ptr, ptr {slot}, align 8')}, align 8")
    with failing(f, text.op(f"icmp ne i64 {failed}, 0")):
        pass


@contextmanager
def failing(f: Frame, condition: str) -> Generator[None]:
    """Opens a block that runs, before the function returns, if an unlikely condition (i1) holds."""
    text = f.text
    fail, fine = text.fresh_label("fail"), text.fresh_label("fine")
    text.branch(condition, fail, fine, f", !prof {text.module.shared_node(_UNLIKELY)}")
    text.begin(fail)
    yield
    text.do(f.leave)
    text.begin(fine)


def report(f: Frame, eqn: Eqn, index: Callable[[], str] = lambda: "0") -> None:
    """Emits the record of a failed check, with the failing index as i64."""
    number = f.facts.check_numbers[eqn]
    if f.failure:
        is_signed = eqn.primitive is CHECK or eqn.invars[0].dtype.is_signed
        value = f.text.op(f"and i64 {_in_failure_bits(f, index(), is_signed)}, {(1 << FAILURE_BITS) - 1}")
        f.text.do(f"store i64 {f.text.op(f'or i64 {value}, {number + 1 << FAILURE_BITS}')}, {f.failure}, align 8")
        return
    note(f, number + 1, index())


def note(f: Frame, number: int, value: str = "0") -> None:
    """Emits a call that stores a failure's number and value in the record of the call."""
    require_failure(f)
    f.text.do(f"call void @{FAIL}(ptr %refs, i64 {number}, i64 {value})")


def _in_failure_bits(f: Frame, value: str, is_signed: bool) -> str:
    """Clamps an i64 to the numbers that a word of failure has room for."""
    least, most = -(1 << FAILURE_BITS - 1), (1 << FAILURE_BITS - 1) - 1
    if not is_signed:
        return f.scalar.select(f.scalar.compare("icmp ugt", "i64", value, str(most)), "i64", str(most), value)
    value = f.scalar.select(f.scalar.compare("icmp slt", "i64", value, str(least)), "i64", str(least), value)
    return f.scalar.select(f.scalar.compare("icmp sgt", "i64", value, str(most)), "i64", str(most), value)


def require_failure(f: Frame) -> None:
    """Adds the function that records failures to the module: the first failure of a call, as a number and a value."""
    _require(f, FAIL, ["value"])


def require_told(f: Frame) -> None:
    """Adds the function that records failures with all that a check tells."""
    _require(f, TELL, [*WHOLE, *REAL])


def _require(f: Frame, name: str, fields: Sequence[str]) -> None:
    module = f.text.module
    if name in module.helpers:
        return
    text = module.function(ONCE)
    slot = text.op(f"getelementptr ptr, ptr %refs, i64 {f.table_length + FAILED}")
    record = text.op(f"load ptr, ptr {slot}, align 8")
    pair = text.op(f"cmpxchg ptr {record}, i64 0, i64 %number monotonic monotonic")
    with text.when(text.op(f"extractvalue {{ i64, i1 }} {pair}, 1")):
        for field in fields:
            place = text.op(f"getelementptr i64, ptr {record}, i64 {FAILURE.offsets[field] // FIELD}")
            text.do(f"store {FAILURE.types[field]} %{field}, ptr {place}, align 8")
    text.do("ret void")
    params = "".join(f", {FAILURE.types[field]} %{field}" for field in fields)
    module.helpers[name] = text.render(f"define internal void @{name}(ptr %refs, i64 %number{params})")
