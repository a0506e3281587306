"""Expressions of two operations over special values, for tests of rules and of emitters."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Literal, Task, Var, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.ir.program import Atom, Eqn

UNARY: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("neg", "abs", "sign", "sqrt", "floor", "round_even", "exp", "cos", "cosh", "is_finite")),
    *(("integer_pow", {"y": y}) for y in (-3, -1, 0, 1, 2, 3)),
    *(("convert", {"dtype": d}) for d in (DType.f16, DType.f32, DType.f64)),
]
BINARY = ("add", "sub", "mul", "div", "min", "max", "rem", "pow")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_INFO = np.finfo(np.float32)
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -0.3, np.inf, -np.inf, np.nan, float(_INFO.max), float(_INFO.tiny),
             float(_INFO.smallest_subnormal))  # fmt: skip
OUTER_CONSTANTS = (0.0, -0.0, 1.0, -1.0, 0.5, -3.0, np.inf)


def specials() -> tuple[np.ndarray, np.ndarray]:
    """Every pair of special values."""
    ordinary = (0.5, 2.0, 3.0, 1.9, 1e-3)
    positive = [0.0, 1.0, np.inf, float(_INFO.max), float(_INFO.tiny), float(_INFO.smallest_subnormal), *ordinary]
    values = np.array([*positive, *(-v for v in positive), np.nan], np.float32)
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


class Run:
    """Values of a task's equations; those that `before` has as well are taken from it; `wide`: as doubles."""

    def __init__(
        self, eqns: Sequence[Eqn], inputs: Mapping[Any, np.ndarray], before: Run | None = None, *, wide: bool = False
    ) -> None:
        self.wide = wide
        self.eqns = eqns
        self.env: dict[Any, np.ndarray] = {} if before is None else dict(before.env)
        self.stored: list[Atom] = []
        self.made: dict[Any, Eqn] | None = None
        known = set() if before is None else {id(e) for e in before.eqns}
        for eqn in eqns:
            name = eqn.primitive.name
            if name == "store":
                self.stored.append(eqn.invars[1])
            elif name == "load":
                self.env[eqn.outvar] = self._kept(inputs[eqn.invars[0]])
            elif id(eqn) not in known:
                out = np.asarray(_MEANING[name](*map(self.value, eqn.invars), **eqn.params))
                self.env[eqn.outvar] = self._kept(out)
                assert wide or out.dtype == eqn.outvar.dtype.numpy

    def value(self, atom: Atom) -> np.ndarray:
        """What an atom is."""
        return self._kept(np.asarray(atom.value)) if isinstance(atom, Literal) else self.env[atom]

    def _kept(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.float64) if self.wide and array.dtype.kind == "f" else array

    def size(self, atom: Atom) -> np.ndarray:
        """The largest finite number met on the way to an atom."""
        if self.made is None:
            self.made = {v: e for e in self.eqns if e.primitive.name != "load" for v in e.outvars}
        made = None if isinstance(atom, Literal) else self.made.get(atom)
        met = [] if made is None else [self.size(a) for a in made.invars]
        return np.max(np.broadcast_arrays(_finite(self.value(atom)), *met), axis=0)


def _finite(x: np.ndarray) -> np.ndarray:
    wide = np.asarray(x, np.float64)
    return np.where(np.isfinite(wide), np.abs(wide), 0.0)


def _minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(a) | (a < b) | ((a == b) & np.signbit(a)), a, b)


def _sign(a: np.ndarray) -> np.ndarray:
    return np.where((a == 0) | np.isnan(a), a, np.copysign(np.ones_like(a), a))


def _integer_pow(x: np.ndarray, y: int) -> np.ndarray:
    product = {0: np.ones_like(x), 1: x, 2: x * x, 3: x * (x * x)}[abs(y)]
    return 1 / product if y < 0 else product


# NumPy's functions of arrays, many times faster than the interpreter's of one value
_MEANING: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.abs,
    "sqrt": np.sqrt, "floor": np.floor, "round_even": np.rint, "exp": np.exp, "cos": np.cos, "cosh": np.cosh,
    "sign": _sign, "rem": np.fmod, "pow": np.power, "min": _minimum, "max": lambda a, b: -_minimum(-a, -b),
    "select": np.where, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or, "not": np.logical_not, "is_finite": np.isfinite,
    "integer_pow": _integer_pow, "convert": lambda x, dtype: x.astype(dtype.numpy),
    "bitcast": lambda x, dtype: x.view(dtype.numpy),
}  # fmt: skip


class Grid:
    """One task with many expressions over x and y; `texts` says what each is, `outs` where it is stored."""

    def __init__(self, count: int, without: Sequence[str] = ()) -> None:
        self.builder, self.texts, self.outs = Builder(), list[str](), list[Var]()
        self.without = without
        """Primitives that are left out."""
        self.refs = [ref_var(DType.f32, (count,), name) for name in "xy"]
        self.index = scalar_var(DType.i32, "i")
        self.count = count

    def build(self, inner: Any) -> Task:
        """The task with everything around the inner expression `inner(builder, x, y)`."""
        b = self.builder
        with b.block() as block:
            x, y = (b.load(r, self.index) for r in self.refs)
            made, text = inner(b, x, y)
            self.put(made, text)
            if made.dtype is DType.f32:
                self.around(made, text, x, y)
        return Task("range_for", self.index, literal(0, DType.i32), literal(self.count, DType.i32), block.close())

    def put(self, value: Atom, text: str) -> None:
        """Stores a value."""
        self.texts.append(text)
        self.outs.append(ref_var(value.dtype, (self.count,), "out"))
        self.builder.store(self.outs[-1], value, self.index)

    def around(self, made: Atom, text: str, x: Atom, y: Atom) -> None:
        """Every operation on the inner value."""
        b = self.builder
        unary = [u for u in UNARY if u[0] not in self.without]
        binary = [name for name in BINARY if name not in self.without]
        for name, params in unary:
            self.put(b(name, made, **params), f"{name}{params or ''}({text})")
        others = {"x": x, "y": y, text: made, "-y": b("neg", y)}
        others |= {str(c): literal(c, DType.f32) for c in OUTER_CONSTANTS}
        for name, (shown, other) in itertools.product((*binary, *COMPARISONS), others.items()):
            self.put(b(name, made, other), f"{name}({text}, {shown})")
            if name in BINARY:
                self.put(b(name, other, made), f"{name}({shown}, {text})")
        for shown, other in others.items():
            less = b("lt", made, other)
            self.put(b("select", less, made, other), f"select({text} < {shown}, {text}, {shown})")
            self.put(b("select", b("not", less), made, other), f"select(not {text} < {shown}, {text}, {shown})")
            again = b("select", less, b("select", less, made, x), y)
            self.put(again, f"select({text} < {shown}, select(the same, {text}, x), y)")


def one_rounding(x: np.ndarray, y: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Where zeros have one sign, infinities and NaN are the same, and numbers apart by roundings of the largest met."""
    info = np.finfo(x.dtype)
    a, b = x.astype(np.float64), y.astype(np.float64)
    apart = np.abs(a - b)
    near = apart <= 16 * float(info.eps) * np.maximum(_finite(np.maximum(np.abs(a), np.abs(b))), size)
    near |= apart <= 2 * float(info.tiny)
    near &= (a != 0) | (b != 0) | (np.signbit(a) == np.signbit(b))
    # the largest number may round to infinity
    ends = np.minimum(np.abs(a), np.abs(b)) >= 0.999 * float(info.max)
    near = np.where(np.isinf(a) | np.isinf(b), (a == b) | (ends & (np.signbit(a) == np.signbit(b))), near)
    return near | (np.isnan(a) & np.isnan(b))
