"""Rules of the elementwise primitives: one function per primitive returns a Python expression of its operands.

f16 and bf16 arrive as f32; rules that round end in `round_to`, as in `lowering.llvm.arithmetic`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowering.llvm.types import SMALL_FLOATS, compute_dtype
from lowering.triton.maths import LIBDEVICE
from lowering.triton.types import NAME, type_of
from qdtrace.ir.powers import power
from qdtrace.ir.primitives import POPULATION_COUNT, SHIFT_LEFT, SHIFT_RIGHT_ARITHMETIC, SHIFT_RIGHT_LOGICAL
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.triton.frame import Frame
    from qdtrace.ir.program import Eqn

    Rule = Callable[[Frame, Eqn], str]

EXPRESSIONS: dict[str, Rule] = {}
_NAN = "propagate_nan=tl.PropagateNan.ALL"


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for primitives."""

    def register(fn: Rule) -> Rule:
        for name in names:
            EXPRESSIONS[name] = fn
        return fn

    return register


def round_to(dtype: DType, expression: str) -> str:
    """Returns code that rounds an f32 to f16 or bf16 and keeps it as f32; other dtypes are unchanged."""
    return f"({expression}).to(tl.{NAME[dtype]}).to(tl.float32)" if dtype in SMALL_FLOATS else expression


def _dtype(eqn: Eqn) -> DType:
    return eqn.invars[0].dtype


def _typed(f: Frame, eqn: Eqn) -> list[str]:
    return [f.typed(a) for a in eqn.invars]


def _operator(name: str, spelled: str) -> None:
    def apply(f: Frame, eqn: Eqn) -> str:
        a, b = f.operands(eqn.invars)
        return round_to(_dtype(eqn), f"{a} {spelled} {b}")

    EXPRESSIONS[name] = apply


for _name, _spelled in {"add": "+", "sub": "-", "mul": "*"}.items():
    _operator(_name, _spelled)


def _comparison(name: str, spelled: str) -> None:
    def apply(f: Frame, eqn: Eqn) -> str:
        if _dtype(eqn) is DType.bool and not eqn.primitive.commutative:
            a, b = (f"{x}.to(tl.int32)" for x in _typed(f, eqn))
        else:
            a, b = f.operands(eqn.invars)
        return f"{a} {spelled} {b}"

    EXPRESSIONS[name] = apply


for _name, _spelled in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    _comparison(_name, _spelled)
for _name, _spelled in {"and": "&", "or": "|", "xor": "^"}.items():
    _operator(_name, _spelled)


@rule("not")
def _not(f: Frame, eqn: Eqn) -> str:
    return f"~{f.typed(eqn.invars[0])}"


def quotient(dtype: DType, a: str, b: str) -> str:
    """Returns code of a correctly rounded division of floats."""
    return round_to(dtype, f"{a} / {b}" if dtype is DType.f64 else f"tl.div_rn({a}, {b})")


@rule("div", "quotient")
def _div(f: Frame, eqn: Eqn) -> str:
    if _dtype(eqn).is_float:
        return quotient(_dtype(eqn), *_typed(f, eqn)[:2])
    return _divided(f, eqn, "//", "divide")


@rule("rem")
def _rem(f: Frame, eqn: Eqn) -> str:
    if _dtype(eqn).is_float:
        return function(f, eqn, "rem")
    return _divided(f, eqn, "%", "remainder")


def _divided(f: Frame, eqn: Eqn, operator: str, helper: str) -> str:
    by, dtype = eqn.invars[1], _dtype(eqn)
    if isinstance(by, Literal) and int(by.value) not in (0, -1):
        a, b = f.operands(eqn.invars)
        return f"{a} {operator} {b}"
    name = f.module.helper(helper if dtype.is_signed else f"{helper}_unsigned")
    return f"{name}({', '.join(_typed(f, eqn))})"


def _extreme(name: str, spelled: str, on_bool: str) -> None:
    def apply(f: Frame, eqn: Eqn) -> str:
        a, b = _typed(f, eqn)
        if _dtype(eqn) is DType.bool:
            return f"{a} {on_bool} {b}"
        return f"tl.{spelled}({a}, {b}, {_NAN})" if _dtype(eqn).is_float else f"tl.{spelled}({a}, {b})"

    EXPRESSIONS[name] = apply


_extreme("min", "minimum", "&")
_extreme("max", "maximum", "|")


@rule("select")
def _select(f: Frame, eqn: Eqn) -> str:
    condition, a, b = eqn.invars
    return f"tl.where({f.typed(condition)}, {f.operand(a)}, {f.operand(b)})"


@rule("neg")
def _neg(f: Frame, eqn: Eqn) -> str:
    x = f.typed(eqn.invars[0])
    return f"{x} * -1.0" if _dtype(eqn).is_float else f"0 - {x}"  # 0.0 - x would give 0.0 for 0.0


@rule("abs")
def _abs(f: Frame, eqn: Eqn) -> str:
    x, d = f.typed(eqn.invars[0]), _dtype(eqn)
    if d.is_float:
        return f"tl.abs({x})"
    return f"tl.where({x} < 0, 0 - {x}, {x})" if d.is_signed else x


@rule("sign")
def _sign(f: Frame, eqn: Eqn) -> str:
    x, d = f.typed(eqn.invars[0]), _dtype(eqn)
    if d.is_float:
        return f"{f.module.helper('sign')}({x})"
    positive = f"({x} > 0).to({type_of(d)})"
    return f"{positive} - ({x} < 0).to({type_of(d)})" if d.is_signed else positive


@rule("sqrt")
def _sqrt(f: Frame, eqn: Eqn) -> str:
    x, d = f.typed(eqn.invars[0]), _dtype(eqn)
    return round_to(d, f"tl.sqrt({x})" if d is DType.f64 else f"tl.sqrt_rn({x})")


@rule("floor", "ceil")
def _whole(f: Frame, eqn: Eqn) -> str:
    return f"tl.{eqn.primitive.name}({f.typed(eqn.invars[0])})"


def function(f: Frame, eqn: Eqn, name: str) -> str:
    """Returns a call of the function of Triton's device library for a primitive."""
    f.module.uses_libdevice = True
    return round_to(_dtype(eqn), f"libdevice.{LIBDEVICE[name]}({', '.join(_typed(f, eqn))})")


@rule(*LIBDEVICE)
def _function(f: Frame, eqn: Eqn) -> str:
    return function(f, eqn, eqn.primitive.name)


@rule("logistic")
def _logistic(f: Frame, eqn: Eqn) -> str:
    f.module.uses_libdevice = True
    name = f.module.helper("logistic_double" if _dtype(eqn) is DType.f64 else "logistic")
    return round_to(_dtype(eqn), f"{name}({f.typed(eqn.invars[0])})")


EXPRESSIONS["rem"] = _rem


@rule("fma")
def _fma(f: Frame, eqn: Eqn) -> str:
    return round_to(_dtype(eqn), f"tl.fma({', '.join(_typed(f, eqn))})")


@rule("is_finite")
def _is_finite(f: Frame, eqn: Eqn) -> str:
    return f'tl.abs({f.typed(eqn.invars[0])}) < float("inf")'


@rule("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shift(f: Frame, eqn: Eqn) -> str:
    (a, by), d, prim = _typed(f, eqn), _dtype(eqn), eqn.primitive
    amount, bits = eqn.invars[1], d.bits
    signed, unsigned = f"tl.int{bits}", f"tl.uint{bits}"
    own = type_of(d)
    if prim is SHIFT_RIGHT_ARITHMETIC and not d.is_signed:
        a = f"{a}.to({signed})"
    if prim is SHIFT_RIGHT_LOGICAL and d.is_signed:
        a = f"{a}.to({unsigned})"
    if isinstance(amount, Literal) and 0 <= int(amount.value) < bits:
        moved = f"({a} {'<<' if prim is SHIFT_LEFT else '>>'} {int(amount.value)})"
    else:
        helper = {SHIFT_LEFT: "shift_left", SHIFT_RIGHT_LOGICAL: "shift_right"}.get(prim, "shift_sign")
        moved = f"{f.module.helper(helper)}({a}, {by}.to({unsigned}), {bits})"
    return moved if prim is SHIFT_LEFT else f"{moved}.to({own})"


@rule("population_count", "clz")
def _count(f: Frame, eqn: Eqn) -> str:
    x, d = f.typed(eqn.invars[0]), _dtype(eqn)
    wide = f"{x}.to(tl.uint{d.bits}).to(tl.uint64)"
    if eqn.primitive is POPULATION_COUNT:
        return f"{f.module.helper('population_count')}({wide}).to({type_of(d)})"
    count = f"{f.module.helper('leading_zeros')}({wide})"
    return f"({count} - {64 - d.bits}).to({type_of(d)})" if d.bits < 64 else f"{count}.to({type_of(d)})"


@rule("convert")
def _convert(f: Frame, eqn: Eqn) -> str:
    x, source, target = f.typed(eqn.invars[0]), _dtype(eqn), eqn.params["dtype"]
    if source is target:
        return x
    if target is DType.bool:
        return f"{x} != 0"
    if source.is_float and target.is_integer:
        first, last = int(np.iinfo(target.numpy).min), int(np.iinfo(target.numpy).max)
        ends = ", ".join(f"tl.full((), {end}, {type_of(target)})" for end in (first, last))
        return f"{f.module.helper('saturate')}({x}, {float(first)}, {float(last + 1)}, {ends})"
    if source is DType.f64 and target in SMALL_FLOATS:
        return round_to(target, f"{f.module.helper('narrow')}({x})")
    if target.is_float:
        whole = f"{x}.to({type_of(target)})" if compute_dtype(source) is not compute_dtype(target) else x
        return round_to(target, whole)
    return f"{x}.to({type_of(target)})"


@rule("bitcast")
def _bitcast(f: Frame, eqn: Eqn) -> str:
    x, source, target = f.typed(eqn.invars[0]), _dtype(eqn), eqn.params["dtype"]
    if source is target:
        return x
    if source in SMALL_FLOATS:
        x = f"{x}.to(tl.{NAME[source]})"
    x = f"{x}.to(tl.{NAME[target]}, bitcast=True)"
    return f"{x}.to(tl.float32)" if target in SMALL_FLOATS else x


@rule("integer_pow")
def _integer_pow(f: Frame, eqn: Eqn) -> str:
    """Emits the products; f16 and bf16 are rounded at the end."""
    x, d, y = f.typed(eqn.invars[0]), _dtype(eqn), int(eqn.params["y"])
    one = f"tl.full((), 1, {type_of(d)})"
    result = power(x, abs(y), lambda a, b: f.text.let("square" if a == b else "power", f"{a} * {b}"))
    if result is None:
        return f"{x} * 0 + 1" if not d.is_float else f"tl.where({x} == {x}, {one}, {one})"
    if y > 0:
        return round_to(d, result)
    if d.is_float:
        return quotient(d, one, result)
    return f"{f.module.helper('divide' if d.is_signed else 'divide_unsigned')}({one}, {result})"


def emit(f: Frame, eqn: Eqn) -> None:
    """Emits an elementwise equation."""
    f.bind(eqn.outvars[0], EXPRESSIONS[eqn.primitive.name](f, eqn))
