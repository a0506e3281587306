"""The library: a function by name, dtype and number of lanes, as LLVM text.

`function_for("exp", DType.f32, 16)` is called as `@{symbol}`; `definitions` has what modules need of functions.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from lowering.llvm.maths import error_function, exponential, gamma, inverse, logarithm, power, remainder, trigonometric
from lowering.llvm.maths.builder import Builder, Value
from lowering.llvm.maths.definitions import BY_SYMBOL, CALL, COLD, INLINE, PLAIN, Form, MathFunction, collect
from qdtrace.frozen import frozen
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

_ELEMENTS = {DType.f32: "float", DType.f64: "double"}
_SHORT = {"float": "f32", "double": "f64"}
@frozen(slots=True)
class _Entry:
    """The formula of a function, its number of arguments, and its attributes in f32 and f64."""

    formula: Callable[..., Value | tuple[Value, ...]]
    arguments: int = 1
    single: str = INLINE
    double: str = CALL


_ENTRIES: dict[str, _Entry] = {
    "exp": _Entry(exponential.exp, double=INLINE),
    "exp2": _Entry(exponential.exp2, double=INLINE),
    "expm1": _Entry(exponential.expm1),
    "logistic": _Entry(exponential.logistic, double=INLINE),
    "tanh": _Entry(exponential.tanh),
    "sinh": _Entry(exponential.sinh, single=CALL),
    "cosh": _Entry(exponential.cosh, single=CALL),
    "log": _Entry(logarithm.log, double=INLINE),
    "log2": _Entry(logarithm.log2),
    "log1p": _Entry(logarithm.log1p),
    "asinh": _Entry(logarithm.asinh, single=CALL),
    "acosh": _Entry(logarithm.acosh, single=CALL),
    "atanh": _Entry(logarithm.atanh, single=CALL),
    "sin": _Entry(trigonometric.sin, double=INLINE),
    "cos": _Entry(trigonometric.cos, double=INLINE),
    "tan": _Entry(trigonometric.tan),
    "asin": _Entry(inverse.asin),
    "acos": _Entry(inverse.acos),
    "atan": _Entry(inverse.atan),
    "atan2": _Entry(inverse.atan2, arguments=2),
    "pow": _Entry(power.pow, arguments=2),
    "cbrt": _Entry(power.cbrt, single=CALL),
    "rsqrt": _Entry(power.rsqrt, double=INLINE),
    "erf": _Entry(error_function.erf),
    "erfc": _Entry(error_function.erfc, single=CALL),
    "erf_inv": _Entry(error_function.erf_inv, single=CALL),
    "lgamma": _Entry(gamma.lgamma, single=CALL),
    "digamma": _Entry(gamma.digamma, single=CALL),
    "rem": _Entry(remainder.rem, arguments=2),
}
NAMES: frozenset[str] = frozenset(_ENTRIES)
"""Names of the functions that callers may use; all take and return one dtype."""
APART = frozenset({("acos", DType.f32), ("digamma", DType.f32)})
"""Functions that take longer where one call serves vectors side by side: registers do not hold their values."""

_PARTS: dict[str, _Entry] = {
    "sin_by_quarters": _Entry(trigonometric.sin_by_quarters, 1, COLD, COLD),
    "cos_by_quarters": _Entry(trigonometric.cos_by_quarters, 1, COLD, COLD),
    "sin_and_cos": _Entry(trigonometric.sin_and_cos, double=INLINE),
    "reduce_huge": _Entry(trigonometric.reduce_huge, 1, COLD, COLD),
    "pow_patch": _Entry(power.patch, 3, COLD, COLD),
    "rem_patch": _Entry(remainder.patch, 3, COLD, COLD),
}
_INLINED_COLD = {"sin": "sin_and_cos", "cos": "sin_and_cos"}
"""Other formulas of functions, which are shorter where cold functions are inlined."""
PLACES = {"sin": 0, "cos": 1}
"""Numbers of the results of a function that has several."""


def function_for(name: str, dtype: DType, lanes: int, form: Form = PLAIN, vectors: int = 1) -> MathFunction:
    """Returns the function over vectors side by side of `lanes` elements (1: scalars) of f32 or f64.

    Raises KeyError for others.
    """
    if name not in NAMES:
        raise KeyError(name)
    if form.inline_cold:
        name = _INLINED_COLD.get(name, name)
    return _build(name, _ELEMENTS[dtype], lanes, vectors)


_SYMBOL = re.compile(r"qdm\.(\w+)\.(f32|f64)x(\d+)(?:x(\d+))?")


def module_of(symbol: str) -> str:
    """Returns a module that exports one function."""
    match = _SYMBOL.fullmatch(symbol)
    if match is None:
        raise KeyError(symbol)
    element = next(e for e, short in _SHORT.items() if short == match[2])
    function = _build(match[1], element, int(match[3]), int(match[4] or 1))
    return collect([function]).replace("define internal", "define", 1)  # the function comes before what it requires


def _resolve(name: str, element: str, lanes: int) -> str:
    return _build(name, element, lanes).symbol


@functools.cache
def _build(name: str, element: str, lanes: int, vectors: int = 1) -> MathFunction:
    entry = _ENTRIES.get(name) or _PARTS[name]
    b = Builder(lanes, _resolve, vectors)
    names = [f"%x{k}" for k in range(entry.arguments)]
    made = entry.formula(b, *(Value(b, x, element) for x in names))
    results = made if isinstance(made, tuple) else (made,)
    kind = b.result_type([result.element for result in results])
    returned = b.joined(results)
    symbol = f"qdm.{name}.{_SHORT[element]}x{lanes}" + (f"x{vectors}" if vectors > 1 else "")
    text = "\n".join(
        [
            f"define internal {kind} @{symbol}({', '.join(f'{b.type(element)} {x}' for x in names)}) "
            f"{entry.single if element == 'float' else entry.double} {{",
            "entry:",
            *b.lines,
            f"  ret {kind} {returned}",
            "}",
            "",
        ]
    )
    function = MathFunction(symbol, text, tuple(b.requires), kind if len(results) > 1 else "")
    BY_SYMBOL[function.symbol] = function
    return function
