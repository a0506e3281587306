"""Cases that reach each import rule: one or more per rule, with the operands that a lane function is called on.

`case("sort", lambda x: lax.sort(x), V)` draws lanes that sort. A shape is given for a size n, which is drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from .kinds import KINDS, Shape
from .points import DTYPES, Points, anything, dtype_of

SCALAR = -1
"""The size of an operand of rank 0."""
SIZES = (2, 17, 40, 0, 1, 16, 256, 257, 5000)
"""Of operands: up to 16 elements are taken from memory as scalars, up to 256 may be scalars."""
SMALL = (2, 17, 0, 1, 5, 16, 40)
"""For rules whose work or code grows faster than the operand."""
MATRIX = (3, 2, 0, 1, 7)
"""Orders of matrices; up to 6 their columns are written out."""
NUMBERS = tuple(KINDS)
OTHER_RELEASE = "a primitive of another supported release of JAX"
ARRAYS = ("argument", "memory", "view")
"""Kinds of operands that must not be constant along an axis."""


@dataclass(frozen=True, eq=False)
class Operand:
    """An operand: its shape for a size, what it holds, and a dtype unless it has that of the case."""

    shape: Callable[[int], Shape]
    points: Points = anything
    dtype: Callable[[np.dtype], Any] | None = None
    kinds: Sequence[str] = NUMBERS


def array(*shape: int | str, points: Points = anything, dtype: Any = None, kinds: Sequence[str] = NUMBERS) -> Operand:
    """An operand; "n" in a shape is the size, "n+1" one more. A scalar has no such axis."""
    at = {"n": 0, "n+1": 1}
    of = None if dtype is None else dtype if callable(dtype) and not isinstance(dtype, type) else lambda _: dtype
    return Operand(
        lambda n: tuple(n + at[s] if isinstance(s, str) else s for s in shape if n != SCALAR or isinstance(s, int)),
        points,
        of,
        kinds,
    )


@dataclass(frozen=True, eq=False)
class Case:
    """A lane function that reaches an import rule."""

    rule: str
    name: str
    fn: Callable[..., Any]
    operands: tuple[Operand, ...]
    sizes: Sequence[int]
    among: Sequence[str]
    """Names of dtypes to draw from."""
    ulps: float
    why: str
    """Why more than the usual error is right."""
    differs: str
    """Why extreme points are not drawn: where JAX's own results differ from run to run, or on purpose."""
    elementwise: bool = False
    costly: bool = False
    """The default run asks for the value alone: the code is long."""
    cut: str = ""
    """The axis with branch cuts, where JAX may have one value for both signs of a zero: the other's is right, too."""

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Names of those that JAX accepts."""
        return tuple(d for d in self.among if self.accepts(d))

    def accepts(self, name: str) -> bool:
        """Whether JAX has the function for this dtype."""
        dtype = dtype_of(name)
        size = self.sizes[0]
        structs = [
            jax.ShapeDtypeStruct(o.shape(size), dtype if o.dtype is None else np.dtype(o.dtype(dtype)))
            for o in self.operands
        ]
        try:
            jax.make_jaxpr(lambda *x: self.fn(*x))(*structs)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError, NotImplementedError):
            return False
        return True


@dataclass
class Table:
    """Cases by rule, and rules that have none with the reason."""

    cases: dict[str, list[Case]] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)

    def case(
        self, rules: str, fn: Callable[..., Any], *operands: Operand, sizes: Sequence[int] = SIZES,
        among: Sequence[str] = DTYPES, ulps: float = 64, why: str = "", differs: str = "", elementwise: bool = False,
        costly: bool = False, cut: str = "",
    ) -> None:  # fmt: skip
        """Adds a case to each of the rules."""
        for rule in rules.split():
            found = self.cases.setdefault(rule, [])
            name = f"{rule}-{len(found)}"
            found.append(Case(rule, name, fn, operands, sizes, among, ulps, why, differs, elementwise, costly, cut))

    def elementwise(self, names: str, arity: int = 1, *, holder: Any = jax.lax, **options: Any) -> None:
        """Cases of functions of numbers: scalars, and arrays of one and two axes."""
        for name in names.split():
            rule = options.get("rule", name)
            fn = getattr(holder, name, None)
            if fn is None:
                self.without(rule, OTHER_RELEASE)
                continue
            rest = {"sizes": (SCALAR, *SIZES), **{k: v for k, v in options.items() if k not in ("rule", "points")}}
            points = options.get("points", anything)
            self.case(rule, fn, *[array("n", points=points)] * arity, elementwise=True, **rest)

    def without(self, names: str, why: str) -> None:
        """Rules that are drawn elsewhere, or cannot be."""
        self.elsewhere.update(dict.fromkeys(names.split(), why))


TABLE = Table()
case, elementwise, without = TABLE.case, TABLE.elementwise, TABLE.without
