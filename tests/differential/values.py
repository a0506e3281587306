"""Random scalars: literals, arithmetic, comparisons, conversions and indices in range."""


from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from qdtrace.ir.builder import Builder
from qdtrace.ir.program import Atom, Literal, Var, literal
from qdtrace.ir.types import DType

UNARY = {
    "float": ["neg", "abs", "sign", "sqrt", "floor", "ceil", "round_even", "round_away", "trunc"],
    "signed": ["neg", "abs", "sign", "not", "population_count", "clz"],
    "unsigned": ["neg", "abs", "sign", "not", "population_count", "clz"],
    "bool": ["not"],
}
_BITWISE = ["and", "or", "xor"]
_SHIFTS = ["shift_left", "shift_right_logical", "shift_right_arithmetic"]
BINARY = {
    "float": ["add", "sub", "mul", "div", "rem", "min", "max", "nextafter"],
    "signed": ["add", "sub", "mul", "div", "rem", "min", "max", *_BITWISE, *_SHIFTS],
    "unsigned": ["add", "sub", "mul", "div", "rem", "min", "max", *_BITWISE, *_SHIFTS],
    "bool": _BITWISE,
}
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
BITCASTS = [
    ("f32", "i32"), ("f32", "u32"), ("i32", "u32"), ("f64", "i64"), ("f64", "u64"), ("i64", "u64"), ("i8", "u8"),
    ("f16", "i16"), ("f16", "u16"), ("bf16", "i16"), ("bf16", "u16"), ("i16", "u16"),
]  # fmt: skip
FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, -0.0, 3.25, -7.5, 1e30, 1e-30, float("inf"), float("-inf"), float("nan"))
INTEGERS = (0, 1, 2, 3, -1, 7, 31, 100, -128)


class Values:
    """Draws scalars into the open block of a builder; `scope` has those that can be used."""

    draw: Callable
    builder: Builder
    scope: dict[DType, list[Atom]]
    dtypes: Sequence[DType]

    # Choices.

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return self.draw(st.integers(0, n - 1)) if n > 1 else 0

    def chance(self, n: int) -> bool:
        """True once in n."""
        return self.below(n) == n - 1

    def pick(self, choices: Sequence):
        """One of the choices; earlier ones are simpler."""
        return choices[self.below(len(choices))]

    # Values.

    def keep(self, atom: Atom) -> None:
        """Makes a value available."""
        self.scope[atom.dtype].append(atom)

    def literal_of(self, dtype: DType) -> Literal:
        """A constant."""
        if dtype is DType.bool:
            return literal(self.pick((False, True)), dtype)
        if dtype.is_float and self.chance(8):
            info = ml_dtypes.finfo(dtype.numpy)
            value = float(self.pick((info.max, info.tiny, info.smallest_subnormal)))
            return literal(-value if self.chance(2) else value, dtype)
        value = self.pick(FLOATS if dtype.is_float else INTEGERS)
        if dtype.is_float:
            with np.errstate(over="ignore"):
                return literal(float(np.float64(value).astype(dtype.numpy)), dtype)
        return literal(value % 256 if not dtype.is_signed else value, dtype)

    def value(self, dtype: DType) -> Atom:
        """A value in scope, a constant, or another value converted."""
        have = self.scope[dtype]
        choice = self.below(len(have) + 2)
        if choice < len(have):
            return have[-1 - choice]
        others = [v for d, vs in self.scope.items() if d is not dtype for v in vs]
        if choice > len(have) and others and (not have or self.chance(3)):
            return self.builder.convert(self.pick(others[::-1]), dtype)
        return self.literal_of(dtype)

    def index_below(self, n: int, dtype: DType = DType.i32) -> Atom:
        """An index from 0 to n - 1."""
        how = self.below(3)
        if how == 0 or n == 1:
            return literal(self.below(n), dtype)
        value = self.value(dtype)
        if how == 1:
            return self.builder("abs", self.builder("rem", value, literal(n, dtype)))
        return self.builder("min", self.builder("max", value, literal(0, dtype)), literal(n - 1, dtype))

    # Equations.

    def arithmetic(self) -> None:
        """A unary, binary or ternary operation."""
        dtype = self.pick(self.dtypes)
        kind = dtype.kind.value
        how = self.below(8)
        if how == 7 and dtype is not DType.bool:
            power = self.pick((2, 3, 0, 1, 4) if not dtype.is_float else (2, 3, 0, -1, -2, 4))
            out = self.builder("integer_pow", self.value(dtype), y=power)
        elif how == 6 and dtype.is_float:
            x, y, z = (self.value(dtype) for _ in range(3))
            if self.chance(3):
                out = self.builder("quotient", x, y, self.builder("div", literal(1.0, dtype), y))
            else:
                out = self.builder("fma", x, y, z)
        elif how >= 4:
            out = self.builder(self.pick(UNARY[kind]), self.value(dtype))
        else:
            name = self.pick(BINARY[kind])
            out = self.builder(name, self.value(dtype), self.value(dtype))
        self.keep(out)

    def logic(self) -> None:
        """A comparison."""
        dtype = self.pick(self.dtypes)
        if dtype.is_float and self.chance(4):
            self.keep(self.builder("is_finite", self.value(dtype)))
        else:
            self.keep(self.builder(self.pick(COMPARISONS), self.value(dtype), self.value(dtype)))

    def choice(self) -> None:
        """A select."""
        dtype = self.pick(self.dtypes)
        self.keep(self.builder("select", self.value(DType.bool), self.value(dtype), self.value(dtype)))

    def conversion(self) -> None:
        """A convert or bitcast."""
        source, target = self.pick(self.dtypes), self.pick(self.dtypes)
        pair = (source.value, target.value)
        value = self.value(source)
        if (pair in BITCASTS or pair[::-1] in BITCASTS) and self.chance(2):
            if source.is_float:
                number = self.builder("eq", value, value)
                value = self.builder("select", number, value, literal(0.0, source))
            self.keep(self.builder("bitcast", value, dtype=target))
        elif isinstance(value, Var) and source is not target:
            self.keep(self.builder("convert", value, dtype=target))
