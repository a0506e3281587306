"""Float rules on special values: expressions of two operations, over operators and constants that rules look for.

Whatever rules make of an expression, alone or after each other, has the bits of the expression for every pair of
special values; with `fast_math` it may differ by a rounding, never in the sign of a zero, in an infinity or in NaN.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Literal, Task, literal
from qdtrace.ir.types import DType
from qdtrace.passes import algebraic, peephole
from qdtrace.passes.rewrite import RewriteOptions, Rewriter
from qdtrace.passes.rule_table import RuleSet
from tests.passes.harness import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.ir.program import Atom, Eqn

SCALAR_RULES = [r for r in (*algebraic.RULES, *peephole.RULES) if r.stage == "scalar"]
RULES = {fast: RuleSet.of(SCALAR_RULES, fast_math=fast) for fast in (False, True)}
INTEGERS_ONLY = {r.name for r in SCALAR_RULES if r.on in ("bool", "signed", "unsigned", "integer", "bits")}
"""Rules that never see a float operand."""
NOT_OF_FLOATS = {"select_of_condition", "select_bool", "select_extreme", "neg_sub"}
"""Rules of any kind that ask for bools or integers themselves."""

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
    """Values of a task's equations; those that `before` has as well are taken from it."""

    def __init__(self, eqns: Sequence[Eqn], inputs: Mapping[Any, np.ndarray], before: Run | None = None) -> None:
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
                self.env[eqn.outvar] = inputs[eqn.invars[0]]
            elif id(eqn) not in known:
                out = np.asarray(_MEANING[name](*map(self.value, eqn.invars), **eqn.params))
                assert out.dtype == eqn.outvar.dtype.numpy
                self.env[eqn.outvar] = out

    def value(self, atom: Atom) -> np.ndarray:
        """What an atom is."""
        return np.asarray(atom.value) if isinstance(atom, Literal) else self.env[atom]

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


def _integer_pow(x: np.ndarray, y: int) -> np.ndarray:
    product = {0: np.ones_like(x), 1: x, 2: x * x, 3: x * (x * x)}[abs(y)]
    return 1 / product if y < 0 else product


# NumPy's functions of arrays, many times faster than the interpreter's of one value
_MEANING: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.abs,
    "sqrt": np.sqrt, "floor": np.floor, "round_even": np.rint, "exp": np.exp, "cos": np.cos, "cosh": np.cosh,
    "sign": np.sign, "rem": np.fmod, "pow": np.power, "min": _minimum, "max": lambda a, b: -_minimum(-a, -b),
    "select": np.where, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or, "not": np.logical_not, "is_finite": np.isfinite,
    "integer_pow": _integer_pow, "convert": lambda x, dtype: x.astype(dtype.numpy),
    "bitcast": lambda x, dtype: x.view(dtype.numpy),
}  # fmt: skip


class Grid:
    """One task with many expressions over x and y; `texts` says what each is."""

    def __init__(self, count: int) -> None:
        self.builder, self.texts = Builder(), []
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
        self.builder.store(ref_var(value.dtype, (self.count,), "out"), value, self.index)

    def around(self, made: Atom, text: str, x: Atom, y: Atom) -> None:
        """Every operation on the inner value."""
        b = self.builder
        for name, params in UNARY:
            self.put(b(name, made, **params), f"{name}{params or ''}({text})")
        others = {"x": x, "y": y, text: made, "-y": b("neg", y)}
        others |= {str(c): literal(c, DType.f32) for c in OUTER_CONSTANTS}
        for name, (shown, other) in itertools.product((*BINARY, *COMPARISONS), others.items()):
            self.put(b(name, made, other), f"{name}({text}, {shown})")
            if name in BINARY:
                self.put(b(name, other, made), f"{name}({shown}, {text})")
        for shown, other in others.items():
            less = b("lt", made, other)
            self.put(b("select", less, made, other), f"select({text} < {shown}, {text}, {shown})")
            self.put(b("select", b("not", less), made, other), f"select(not {text} < {shown}, {text}, {shown})")
            again = b("select", less, b("select", less, made, x), y)
            self.put(again, f"select({text} < {shown}, select(the same, {text}, x), y)")


def inners() -> list[Any]:
    """What stands inside: a value, one operation on it, or one of two."""

    def unary(name: str, params: dict[str, Any]) -> Any:
        return lambda b, x, y: (b(name, x, **params), f"{name}{params or ''}(x)")

    def binary(name: str, k: int) -> Any:
        def make(b: Builder, x: Atom, y: Atom) -> tuple[Atom, str]:
            c = literal(CONSTANTS[k // 2], DType.f32) if k < 2 * len(CONSTANTS) else (x, y, y)[k - 2 * len(CONSTANTS)]
            pair = (x, c) if k % 2 else (c, x)
            shown = {id(x): "x", id(y): "y"}
            return b(name, *pair), f"{name}({', '.join(shown.get(id(a), str(c)) for a in pair)})"

        return make

    made = [lambda b, x, y: (x, "x")]
    made += [unary(name, params) for name, params in UNARY]
    made += [binary(name, k) for name in BINARY for k in range(2 * len(CONSTANTS) + 3)]
    made += [lambda b, x, y: (b("bitcast", b("bitcast", x, dtype=DType.u32), dtype=DType.f32), "bitcast(bitcast(x))")]
    made += [lambda b, x, y: (b("convert", b("lt", x, y), dtype=DType.f32), "convert(x < y)")]
    made += [lambda b, x, y, c=c: (b("select", literal(c, DType.bool), x, y), f"select({c})") for c in (False, True)]
    made += [lambda b, x, y: (b("convert", b("convert", x, dtype=DType.f64), dtype=DType.f32), "f32(f64(x))")]
    return made


@cache
def fired_over_all(fast_math: bool) -> Counter[str]:
    """Rules applied over all expressions, each of which is compared."""
    fired: Counter[str] = Counter()
    x, y = specials()
    for inner in inners():
        grid = Grid(x.size)
        task = grid.build(inner)
        walk = Rewriter(RewriteOptions(RULES[fast_math]))
        got = walk.rewrite(task)
        fired.update(walk.fired)
        inputs = dict(zip(grid.refs, (x, y), strict=True))
        with np.errstate(all="ignore"):
            before = Run(task.body.eqns, inputs)
            after = Run(got.body.eqns, inputs, before)
            for text, one, other in zip(grid.texts, before.stored, after.stored, strict=True):
                if one is other or before.value(one) is after.value(other):
                    continue
                want, result = (np.broadcast_to(a, x.shape) for a in (before.value(one), after.value(other)))
                if want.tobytes() == result.tobytes():
                    continue
                try:
                    if fast_math and one.dtype.is_float:
                        assert_one_rounding(want, result, before.size(one))
                    else:
                        assert_same_bits(want, result)
                except AssertionError as error:
                    raise AssertionError(f"{text}: {error} by {sorted(walk.fired)}") from None
    return fired


def assert_one_rounding(x: np.ndarray, y: np.ndarray, size: np.ndarray) -> None:
    """Zeros of one sign, the same infinities and NaN; numbers apart by roundings of the largest number met."""
    info = np.finfo(x.dtype)
    a, b = x.astype(np.float64), y.astype(np.float64)
    apart = np.abs(a - b)
    near = apart <= 16 * float(info.eps) * np.maximum(_finite(np.maximum(np.abs(a), np.abs(b))), size)
    near |= apart <= 2 * float(info.tiny)
    near &= (a != 0) | (b != 0) | (np.signbit(a) == np.signbit(b))
    # the largest number may round to infinity
    ends = np.minimum(np.abs(a), np.abs(b)) >= 0.999 * float(info.max)
    near = np.where(np.isinf(a) | np.isinf(b), (a == b) | (ends & (np.signbit(a) == np.signbit(b))), near)
    near |= np.isnan(a) & np.isnan(b)
    assert near.all(), f"{x[~near][:4]} became {y[~near][:4]}"


@pytest.mark.parametrize("fast_math", [False, True])
def test_specials_stay_special(fast_math: bool) -> None:
    assert fired_over_all(fast_math)


def test_every_float_rule_is_tried() -> None:
    wanted = {r.name for r in SCALAR_RULES} - INTEGERS_ONLY - NOT_OF_FLOATS
    assert wanted - set(fired_over_all(True)) == set()
    assert {r.name for r in SCALAR_RULES if r.exact} & wanted - set(fired_over_all(False)) == set()
