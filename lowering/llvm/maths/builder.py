"""Expression builder: Python formulas over `Value`s print LLVM text for a vector (or scalar) type.

`+ - * /` and comparisons mean the IEEE operations, in the order written: no instruction carries a fast-math flag, so
error-free transformations stay error-free whatever options the surrounding code is compiled with. `fma` is always a
true fused multiply-add (a call of libm's `fma` on a processor without it: slow, but right); `mad` is `llvm.fmuladd`,
fused only where that is quick, and is used where the extra rounding does not matter. Intrinsics need no declaration:
the parser of LLVM 19 and later declares them.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

import numpy as np

from lowering.llvm.maths.formats import FORMATS
from lowering.llvm.maths.side_by_side import joined, part
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16}


def width(element: str) -> int:
    """Bits of an element type named as in LLVM text."""
    return _BITS[element] if element in _BITS else int(element[1:])


def literal(element: str, value: float) -> str:
    """Returns a constant of an element type; floats are rounded to the type and printed as exact bits."""
    if element in FORMATS:
        rounded = float(np.float32(value)) if element == "float" else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    if element == "i1":
        return "true" if value else "false"
    bits = width(element)
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def _operator(
    of_floats: str, of_integers: str, result: str = "", *, swap: bool = False
) -> Callable[[Value, Value | float], Value]:
    """Returns a method that emits an instruction of two values; the result is of their type, or of `result`."""

    def emit(self: Value, other: Value | float) -> Value:
        b, pair = self.builder, (self, self.builder.value(other, self.element))
        left, right = pair[::-1] if swap else pair
        op = of_floats if self.is_float else of_integers
        return b.emit(f"{op} {b.type(self.element)} {left.text}, {right.text}", result or self.element)

    return emit


@frozen(slots=True, eq=False)
class Value:
    """One SSA value: its text (name or constant) and its element type."""

    builder: Builder
    text: str
    element: str

    @property
    def is_float(self) -> bool:
        """True for floating-point elements."""
        return self.element in _BITS

    __add__ = _operator("fadd", "add")
    __sub__ = _operator("fsub", "sub")
    __mul__ = _operator("fmul", "mul")
    __truediv__ = _operator("fdiv", "sdiv")
    __radd__ = _operator("fadd", "add", swap=True)
    __rsub__ = _operator("fsub", "sub", swap=True)
    __rmul__ = _operator("fmul", "mul", swap=True)
    __rtruediv__ = _operator("fdiv", "sdiv", swap=True)
    __and__, __or__, __xor__ = _operator("", "and"), _operator("", "or"), _operator("", "xor")
    __lshift__ = _operator("", "shl")
    __rshift__ = _operator("", "ashr")
    """Arithmetic shift; `Builder.shift_right` is the logical one."""
    __lt__, __le__ = _operator("fcmp olt", "icmp slt", "i1"), _operator("fcmp ole", "icmp sle", "i1")
    __gt__, __ge__ = _operator("fcmp ogt", "icmp sgt", "i1"), _operator("fcmp oge", "icmp sge", "i1")
    equals = _operator("fcmp oeq", "icmp eq", "i1")
    """Lane-wise equality; false for NaN."""
    differs = _operator("fcmp une", "icmp ne", "i1")
    """Lane-wise inequality; true for NaN."""

    def __neg__(self) -> Value:
        b = self.builder
        return b.emit(f"fneg {b.type(self.element)} {self.text}", self.element) if self.is_float else 0 - self

    def __invert__(self) -> Value:
        return self ^ -1


class Builder:
    """Collects the body of one function over vectors of `lanes` elements (1: plain scalars) side by side.

    Its values are vectors of all lanes; `one` is the builder of one vector, in the same body. `call` names another
    maths function by (name, element); the library gives its symbol and notes that it is needed.
    """

    def __init__(self, lanes: int, resolve: Callable[[str, str, int], str] | None = None, vectors: int = 1) -> None:
        self.lanes = lanes * vectors
        self.vectors = vectors
        self.one = self if vectors == 1 else Builder(lanes, resolve)
        self.lines: list[str] = self.one.lines if vectors > 1 else []
        self.requires: list[str] = self.one.requires if vectors > 1 else []
        self._resolve = resolve
        self._numbers: Iterator[int] = self.one._numbers if vectors > 1 else itertools.count(1)

    # -- text ---------------------------------------------------------------------------------------------------

    def type(self, element: str) -> str:
        """Returns the LLVM type of `lanes` elements."""
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def suffix(self, element: str) -> str:
        """Returns the overload suffix of an intrinsic: `v8f32`."""
        name = f"f{width(element)}" if element in _BITS else element
        return name if self.lanes == 1 else f"v{self.lanes}{name}"

    def fresh(self, stem: str = "v") -> str:
        """Returns a name unused so far in this function, without its sigil."""
        return f"{stem}{next(self._numbers)}"

    def emit(self, instruction: str, element: str) -> Value:
        """Appends an instruction and returns its result."""
        name = f"%{self.fresh()}"
        self.lines.append(f"  {name} = {instruction}")
        return Value(self, name, element)

    def value(self, value: Value | float, element: str) -> Value:
        """Returns the value itself, or a constant in every lane."""
        if isinstance(value, Value):
            return value
        text = literal(element, value)
        return Value(self, text if self.lanes == 1 else f"splat ({element} {text})", element)

    def intrinsic(self, name: str, *args: Value) -> Value:
        """Emits a call of an intrinsic overloaded on the type of its operands, and of that type."""
        element = args[0].element
        operands = ", ".join(f"{self.type(a.element)} {a.text}" for a in args)
        return self.emit(f"call {self.type(element)} @llvm.{name}.{self.suffix(element)}({operands})", element)

    def call(self, name: str, elements: Sequence[str], *args: Value) -> list[Value]:
        """Emits a call of the library's function `name` for the operands' element type; returns its results."""
        symbol = self.need(name, args[0].element, self.lanes)
        kind = self.result_type(elements)
        operands = ", ".join(f"{self.type(a.element)} {a.text}" for a in args)
        result = self.emit(f"call {kind} @{symbol}({operands})", elements[0])
        if len(elements) == 1:
            return [result]
        return [self.emit(f"extractvalue {kind} {result.text}, {k}", element) for k, element in enumerate(elements)]

    def result_type(self, elements: Sequence[str]) -> str:
        """Returns the LLVM type of a function's results: a structure if there are several."""
        types = [self.type(element) for element in elements]
        return types[0] if len(types) == 1 else f"{{ {', '.join(types)} }}"

    def joined(self, results: Sequence[Value]) -> str:
        """Emits the value that a function returns, and returns its text."""
        if len(results) == 1:
            return results[0].text
        kind, whole = self.result_type([result.element for result in results]), "poison"
        for k, value in enumerate(results):
            part = f"{self.type(value.element)} {value.text}, {k}"
            whole = self.emit(f"insertvalue {kind} {whole}, {part}", value.element).text
        return whole

    def need(self, name: str, element: str, lanes: int) -> str:
        """Returns the symbol of a function of the library, and records that it is needed."""
        assert self._resolve is not None
        symbol = self._resolve(name, element, lanes)
        if symbol not in self.requires:
            self.requires.append(symbol)
        return symbol

    # -- arithmetic ---------------------------------------------------------------------------------------------

    def fma(self, x: Value, y: Value | float, z: Value | float) -> Value:
        """x * y + z, rounded once."""
        return self.intrinsic("fma", x, self.value(y, x.element), self.value(z, x.element))

    def mad(self, x: Value, y: Value | float, z: Value | float) -> Value:
        """x * y + z, rounded once or twice, whichever is quicker."""
        return self.intrinsic("fmuladd", x, self.value(y, x.element), self.value(z, x.element))

    def sqrt(self, x: Value) -> Value:
        """Square root, correctly rounded."""
        return self.intrinsic("sqrt", x)

    def abs(self, x: Value) -> Value:
        """Absolute value."""
        return self.intrinsic("fabs", x)

    def copysign(self, x: Value | float, sign: Value) -> Value:
        """|x| with the sign bit of `sign`."""
        return self.intrinsic("copysign", self.value(x, sign.element), sign)

    def trunc(self, x: Value) -> Value:
        """Rounded towards zero."""
        return self.intrinsic("trunc", x)

    def select(self, condition: Value, on_true: Value | float, on_false: Value | float) -> Value:
        """Lane-wise choice; one of the two may be a number."""
        typed = on_true if isinstance(on_true, Value) else on_false
        assert isinstance(typed, Value)
        t, f = self.value(on_true, typed.element), self.value(on_false, typed.element)
        kind = self.type(typed.element)
        return self.emit(f"select {self.type('i1')} {condition.text}, {kind} {t.text}, {kind} {f.text}", typed.element)

    def at_least(self, x: Value, low: float) -> Value:
        """max(x, low), NaN kept."""
        return self.select(x < low, low, x)

    def at_most(self, x: Value, high: float) -> Value:
        """min(x, high), NaN kept."""
        return self.select(x > high, high, x)

    def unordered(self, x: Value, y: Value) -> Value:
        """True where x or y is NaN."""
        return self.emit(f"fcmp uno {self.type(x.element)} {x.text}, {y.text}", "i1")

    def poly(self, x: Value, coefficients: Sequence[float]) -> Value:
        """c0 + c1 x + c2 x^2 + ...: Horner's rule; for more than 6 terms even and odd powers as two chains."""
        c = list(coefficients)
        if len(c) <= 6:
            return self._horner(x, c)
        square = x * x
        return self.mad(self._horner(square, c[1::2]), x, self._horner(square, c[0::2]))

    def _horner(self, x: Value, c: list[float]) -> Value:
        result = self.value(c[-1], x.element)
        for coefficient in reversed(c[:-1]):
            result = self.mad(x, result, coefficient)
        return result

    # -- bits and conversions -----------------------------------------------------------------------------------

    def _cast(self, op: str, x: Value, element: str) -> Value:
        return self.emit(f"{op} {self.type(x.element)} {x.text} to {self.type(element)}", element)

    def bits(self, x: Value) -> Value:
        """Returns the bits of a float as an integer of its width."""
        return self._cast("bitcast", x, f"i{width(x.element)}")

    def from_bits(self, x: Value) -> Value:
        """Returns the f32 or f64 with those bits."""
        return self._cast("bitcast", x, {"i32": "float", "i64": "double"}[x.element])

    def float_of(self, x: Value, element: str) -> Value:
        """Converts a signed integer to a float."""
        return self._cast("sitofp", x, element)

    def resize(self, x: Value, element: str) -> Value:
        """Converts to another width: floats are rounded, integers sign-extended or truncated."""
        if x.element == element:
            return x
        wider = width(element) > width(x.element)
        if x.is_float:
            return self._cast("fpext" if wider else "fptrunc", x, element)
        return self._cast("sext" if wider else "trunc", x, element)

    def zero_extend(self, x: Value, element: str) -> Value:
        """Extends an unsigned integer to more bits."""
        return self._cast("zext", x, element)

    def shift_right(self, x: Value, count: Value | int) -> Value:
        """Logical shift."""
        right = self.value(count, x.element)
        return self.emit(f"lshr {self.type(x.element)} {x.text}, {right.text}", x.element)

    def funnel(self, high: Value, low: Value, count: Value | int) -> Value:
        """The first half of `high` followed by `low`, shifted left; the count is taken modulo the width."""
        return self.intrinsic("fshl", high, low, self.value(count, high.element))

    def power_of_two(self, exponent: Value, element: str) -> Value:
        """2**exponent for exponents of normal numbers."""
        form = FORMATS[element]
        return self.from_bits((exponent + form.bias) << form.mantissa)

    def ldexp(self, x: Value, exponent: Value) -> Value:
        """x * 2**exponent for |exponent| up to twice the range: two exact-or-last-rounding factors."""
        half = exponent >> 1
        return x * self.power_of_two(half, x.element) * self.power_of_two(exponent - half, x.element)

    def round_scaled(self, x: Value, scale: float) -> tuple[Value, Value]:
        """The integer nearest x * scale, as (float, integer); |x * scale| below a quarter of 2**mantissa.

        Adding 1.5 * 2**mantissa leaves the integer in the low bits of the sum, on every processor.
        """
        mantissa = FORMATS[x.element].mantissa
        magic = 1.5 * 2.0**mantissa
        moved = self.fma(x, scale, magic)
        layout = ("<i", "<f") if mantissa == 23 else ("<q", "<d")
        (pattern,) = struct.unpack(layout[0], struct.pack(layout[1], magic))
        return moved - magic, self.bits(moved) - pattern

    # -- exact sums and products ---------------------------------------------------------------------------------

    def two_sum(self, x: Value, y: Value) -> tuple[Value, Value]:
        """x + y as (rounded, error), for any x and y (Knuth)."""
        total = x + y
        from_y = total - x
        return total, (x - (total - from_y)) + (y - from_y)

    def fast_two_sum(self, x: Value | float, y: Value) -> tuple[Value, Value]:
        """x + y as (rounded, error), for |x| >= |y| (Dekker)."""
        x = self.value(x, y.element)
        total = x + y
        return total, y - (total - x)

    def two_product(self, x: Value, y: Value) -> tuple[Value, Value]:
        """x * y as (rounded, error)."""
        product = x * y
        return product, self.fma(x, y, -product)

    # -- control ------------------------------------------------------------------------------------------------

    def any(self, mask: Value) -> str:
        """Returns the name of an i1 that is true if some lane of the mask is."""
        if self.lanes == 1:
            return mask.text
        return self.emit(f"call i1 @llvm.vector.reduce.or.v{self.lanes}i1({self.type('i1')} {mask.text})", "i1").text

    def any_above(self, x: Value, limit: float) -> str:
        """Returns the name of an i1 that is true if some lane of x is above the limit, which NaN is not.

        Several vectors are compared as one, of their largest lanes: LLVM would pack their masks.
        """
        most = self.one.value(limit, x.element)
        for each in self._parts(x):
            most = self.one.select(each > most, each, most)
        return self.one.any(most > limit) if self.vectors > 1 else self.any(x > limit)

    def rarely_above(self, x: Value, limit: float, name: str, quick: Sequence[Value], *args: Value) -> list[Value]:
        """Returns `quick`, but in lanes where x is above the limit the results of the cold function `name(*args)`."""
        return self.rarely(x > limit, name, quick, *args, some=self.any_above(x, limit))

    def rarely(self, mask: Value, name: str, quick: Sequence[Value], *args: Value, some: str = "") -> list[Value]:
        """Returns `quick`, but in lanes of the mask the results of the cold function `name(*args)`.

        `some` is the name of an i1 that is true if there are such lanes.
        """
        some, here = some or self.any(mask), self.fresh("before")
        slow, done = self.fresh("slow"), self.fresh("done")
        self.lines += [f"  br label %{here}", f"{here}:", f"  br i1 {some}, label %{slow}, label %{done}", f"{slow}:"]
        elements = [value.element for value in quick]
        calls = [self.one.call(name, elements, *each) for each in zip(*map(self._parts, args), strict=True)]
        found = [self._whole(parts) for parts in zip(*calls, strict=True)]
        if self.lanes > 1:
            found = [self.select(mask, new, old) for new, old in zip(found, quick, strict=True)]
        self.lines += [f"  br label %{done}", f"{done}:"]
        return [
            self.emit(f"phi {self.type(old.element)} [ {old.text}, %{here} ], [ {new.text}, %{slow} ]", old.element)
            for new, old in zip(found, quick, strict=True)
        ]

    def _parts(self, x: Value) -> list[Value]:
        """Returns the vectors that x consists of."""
        op, lanes, each = self._appending(x.element), self.one.lanes, range(self.vectors)
        return [Value(self.one, part(op, x.element, lanes, x.text, self.vectors, k), x.element) for k in each]

    def _whole(self, parts: Sequence[Value]) -> Value:
        """Returns the vector that consists of these."""
        element = parts[0].element
        made = joined(self._appending(element), element, self.one.lanes, [value.text for value in parts])
        return Value(self, made, element)

    def _appending(self, element: str) -> Callable[[str], str]:
        """Returns a function that appends an instruction and returns the name of its result."""

        def append(instruction: str) -> str:
            return self.emit(instruction, element).text

        return append

    def repeat(self, start: Value, wanted: Callable[[Value], Value], step: Callable[[Value], Value]) -> Value:
        """Applies `step` to all lanes while `wanted` holds in some lane."""
        here, head, body, done = (self.fresh(stem) for stem in ("here", "head", "body", "done"))
        kind, state = self.type(start.element), f"%{self.fresh()}"
        self.lines += [f"  br label %{here}", f"{here}:", f"  br label %{head}", f"{head}:", ""]
        place = len(self.lines) - 1
        value = Value(self, state, start.element)
        some = self.any(wanted(value))
        self.lines += [f"  br i1 {some}, label %{body}, label %{done}", f"{body}:"]
        after = step(value)
        self.lines += [f"  br label %{head}", f"{done}:"]
        self.lines[place] = f"  {state} = phi {kind} [ {start.text}, %{here} ], [ {after.text}, %{body} ]"
        return value
