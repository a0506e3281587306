"""The closed set of primitives: one row of facts for each.

Each interpretation (interpreter, emitter, differentiation) keeps one table over this set; a test demands an entry
in each, and every primitive in each column (`tests/ir/test_facts`). No other module lists names: it asks for a column,
or compares with an object of this table (`eqn.primitive is LOAD`). Semantics of every primitive are defined by
`qdtrace.interpret` and described in `ir/README.md`.
"""

from __future__ import annotations

import enum
from dataclasses import field
from typing import TYPE_CHECKING, Any

from qdtrace.frozen import frozen
from qdtrace.ir import type_rules as rule
from qdtrace.ir.type_rules import ANY, BITS, FLOAT, INT, NUMBER, TRUTH, elementwise
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.ir.type_rules import TypeRule


class Effect(enum.Enum):
    """An effect of an equation on memory (that of its first operand, or new memory) or on control."""

    READ = "read"
    WRITE = "write"
    ACCUM = "accum"
    """Adds to (or takes the min/max/product with) memory; two of them with one operation commute."""
    ALLOC = "alloc"
    """Allocates memory: two equal equations are not the same value."""
    CHECK = "check"
    """May end the call with an error. No memory changes: two checks of indices may run in either order, and one that a
    check in front of it implies is not needed. Nothing runs after a failing `check`, so nothing may move across one."""

    LANES = "lanes"
    """Depends on which iterations of the task are active together: the equation must not be moved."""

    __hash__ = object.__hash__  # of the member itself: that of `enum` is a function of Python


@frozen(eq=False, slots=True)
class Primitive:
    """An operation of the graph: a row of facts, with the answer of most operations as default."""

    name: str
    type_rule: TypeRule
    effects: frozenset[Effect] = frozenset()
    param_names: tuple[str, ...] = ()
    remarks: frozenset[str] = frozenset()
    """Names of parameters that only messages need: code does not depend on them."""
    commutative: bool = False
    blocks: int = 0
    """Number of blocks that it owns (`for`, `while`, `if`)."""
    control: int = 0
    """Number of operands before the initial values of carries: bounds and step, or the condition."""
    loops: bool = False
    """True if it runs its blocks any number of times (`for`, `while`)."""
    values: int | None = None
    """Number of operands between the reference and its indices (`cas` has one more); None if it is no access."""
    cost: int = 1
    """Work of its code per lane, without that of its blocks; the unit is an addition."""
    latency: int = 1
    """Length of the longest dependence chain in its code; the unit is an addition."""
    instructions: int = 1
    """Approximate number of machine instructions for one register."""
    cheap: bool = True
    """True if a few of them may be executed speculatively to save a branch."""
    maskable: bool = True
    """True if inactive lanes may run it too: it has no effect there, or its operands are masked."""
    is_function: bool = False
    """True if its code is a polynomial or longer, whose last bit depends on the library."""
    any_number: Callable[[DType], bool] = lambda dtype: False
    """Returns whether its code is the same for all numbers of a dtype, so that a variable may replace a constant."""
    is_predicate: bool = False
    """True if it computes a bool from operands of any dtype."""
    negation: str = ""
    """Name of the comparison of integers that holds if and only if this one does not; empty if it is none."""
    mirror: str = ""
    """Name of the comparison with the same result for exchanged operands; empty if it is none."""
    gives_whole: bool = False
    """True if its result is a whole number."""
    has_no_sign: bool = False
    """True if no operands give a result below 0.0, or -0.0; the result may be NaN."""
    locally_constant: bool = False
    """True if it has no result, or one that small changes of the operands do not change."""
    finite_slope: bool = False
    """True if no operand makes a slope of the result infinite or NaN."""
    slope_reads: tuple[tuple[int, ...] | None, ...] | None = None
    """The operands that the derivative by each operand reads, or None if the result is not linear in that operand.
    None for an operation that is linear in no operand."""

    structured: bool = field(init=False)
    """True if it owns blocks."""
    is_access: bool = field(init=False)
    """True if it touches an element of memory: `load`, `store`, `accum` or `atomic`."""
    writes: bool = field(init=False)
    """True if it changes memory."""
    reads: bool = field(init=False)
    """True if its result or effect depends on memory: an accumulation reads what it adds to."""

    def __post_init__(self) -> None:
        # Stored, as passes ask for them some ten times for each equation.
        own = object.__setattr__
        own(self, "structured", self.blocks > 0)
        own(self, "is_access", self.values is not None)
        own(self, "writes", not _WRITES.isdisjoint(self.effects))
        own(self, "reads", not _READS.isdisjoint(self.effects))

    def __repr__(self) -> str:
        return self.name


_READS = frozenset({Effect.READ, Effect.ACCUM})
_WRITES = frozenset({Effect.WRITE, Effect.ACCUM})
PRIMITIVES: dict[str, Primitive] = {}


def _row(name: str, rule: TypeRule, *effects: Effect, **facts: Any) -> Primitive:
    """Adds a primitive to the table and returns it; facts are fields of `Primitive`."""
    made = PRIMITIVES[name] = Primitive(name, rule, frozenset(effects), **facts)
    return made


def _rows(names: str, rule: TypeRule, **facts: Any) -> list[Primitive]:
    """Adds primitives that share a typing rule and facts, and returns them."""
    return [_row(name, rule, **facts) for name in names.split()]


_TWO, _ONE = elementwise(2, *NUMBER), elementwise(1, *NUMBER)
_TEST = elementwise(2, *ANY, result=DType.bool)
_any: dict[str, Any] = {"any_number": ANY[0]}
_floats: dict[str, Any] = {"any_number": FLOAT[0]}
_steps: dict[str, Any] = {"locally_constant": True, "finite_slope": True}
_no_slope: dict[str, Any] = {"locally_constant": True}
_long: dict[str, Any] = {"cheap": False}
_maths: dict[str, Any] = {"is_function": True, "cost": 18, "latency": 10, "cheap": False, "maskable": False}
_unmasked: dict[str, Any] = {"maskable": False}

ADD = _row("add", _TWO, commutative=True, finite_slope=True, slope_reads=((), ()), **_any)
MUL = _row("mul", _TWO, commutative=True, slope_reads=((1,), (0,)), **_floats)
MIN, MAX = _rows("min max", _TWO, commutative=True, finite_slope=True, **_any)
SUB = _row("sub", _TWO, finite_slope=True, slope_reads=((), ()), **_any)
DIV = _row("div", _TWO, cost=6, latency=4, slope_reads=((1,), None), **_floats, **_long)
REM = _row("rem", _TWO, cost=8, latency=6, **_long)
NEG = _row("neg", _ONE, finite_slope=True, slope_reads=((),))
_row("abs", _ONE, finite_slope=True, has_no_sign=True)
SIGN = _row("sign", _ONE, **_steps)
_rows("pow atan2", elementwise(2, *FLOAT), **_maths, **_floats)
_row("nextafter", elementwise(2, *FLOAT), cost=8, finite_slope=True)
_row("integer_pow", _ONE, param_names=("y",), **_long)
_rows(
    "rsqrt cbrt expm1 log log2 log1p sin cos tan asin acos atan sinh tanh asinh acosh atanh erf erf_inv lgamma digamma",
    elementwise(1, *FLOAT),
    **_maths,
)
_rows("exp exp2 logistic cosh erfc", elementwise(1, *FLOAT), has_no_sign=True, **_maths)
SQRT = _row("sqrt", elementwise(1, *FLOAT), cost=6, latency=4, **_long)
_rows("floor ceil round_even round_away trunc", elementwise(1, *FLOAT), gives_whole=True, **_steps)
FMA = _row("fma", elementwise(3, *FLOAT), slope_reads=((1,), (0,), ()), **_floats, **_long)
QUOTIENT = _row("quotient", elementwise(3, *FLOAT), cost=2, **_floats, **_long)
IS_FINITE = _row("is_finite", elementwise(1, *FLOAT, result=DType.bool), is_predicate=True, **_no_slope)
LT = _row("lt", _TEST, is_predicate=True, negation="ge", mirror="gt", **_any, **_no_slope)
LE = _row("le", _TEST, is_predicate=True, negation="gt", mirror="ge", **_any, **_no_slope)
GT = _row("gt", _TEST, is_predicate=True, negation="le", mirror="lt", **_any, **_no_slope)
GE = _row("ge", _TEST, is_predicate=True, negation="lt", mirror="le", **_any, **_no_slope)
EQ = _row("eq", _TEST, commutative=True, is_predicate=True, negation="ne", mirror="eq", **_any, **_no_slope)
NE = _row("ne", _TEST, commutative=True, is_predicate=True, negation="eq", mirror="ne", **_any, **_no_slope)
AND, OR, XOR = _rows("and or xor", elementwise(2, *BITS), commutative=True, **_no_slope)
NOT = _row("not", elementwise(1, *BITS), **_no_slope)
SHIFT_LEFT, SHIFT_RIGHT_LOGICAL, SHIFT_RIGHT_ARITHMETIC = _rows(
    "shift_left shift_right_logical shift_right_arithmetic", elementwise(2, *INT), **_no_slope
)
POPULATION_COUNT, CLZ, AT_MOST = _rows("population_count clz at_most", elementwise(1, *INT), **_no_slope)
SELECT = _row("select", rule.select, finite_slope=True, slope_reads=((), (0,), (0,)), **_any)
LANE_MAX = _row("lane_max", elementwise(1, *INT), Effect.LANES, **_no_slope)
LANE_COUNT, LANE_RANK = [
    _row(name, elementwise(1, *TRUTH, result=DType.i32), Effect.LANES, **_no_slope)
    for name in ("lane_count", "lane_rank")
]
CONVERT = _row("convert", rule.convert, param_names=("dtype",), finite_slope=True, slope_reads=((),))
BITCAST = _row("bitcast", rule.bitcast, param_names=("dtype",), **_steps)
CUSTOM = _row("custom", rule.custom, param_names=("rule", "result"), cost=0)
LOAD = _row("load", rule.load, Effect.READ, values=0, cost=2, instructions=3, finite_slope=True)
STORE = _row("store", rule.store, Effect.WRITE, values=1, cost=2, instructions=3, **_unmasked)
ACCUM = _row("accum", rule.accum, Effect.ACCUM, param_names=("op",), values=1, cost=6, instructions=6, **_unmasked)
ATOMIC = _row(
    "atomic",
    rule.atomic,
    Effect.READ,
    Effect.WRITE,
    param_names=("op",),
    values=1,
    cost=40,
    instructions=12,
    **_unmasked,
)
CELL = _row("cell", rule.cell, Effect.ALLOC, param_names=("dtype", "shape"), cost=0, **_unmasked, **_no_slope)
BOUND = _row(
    "bound",
    rule.bound,
    Effect.CHECK,
    param_names=("size", "axis", "buffer", "shape"),
    remarks=frozenset({"axis", "buffer", "shape"}),
    cost=0,
    instructions=6,
    **_no_slope,
)
CHECK = _row(
    "check",
    rule.check,
    Effect.CHECK,
    param_names=("message", "told"),
    remarks=frozenset({"message", "told"}),
    instructions=4,
    **_no_slope,
)
TELL = _row("tell", rule.tell, Effect.CHECK, param_names=("site", "number"), **_no_slope)
PLATFORM = _row(
    "platform", rule.platform, Effect.CHECK, param_names=("names", "refused", "help"), cost=0, **_no_slope
)
FOR = _row(
    "for", rule.for_, blocks=1, control=3, loops=True, param_names=("unroll", "most"), instructions=12, **_unmasked
)
WHILE = _row("while", rule.while_, blocks=2, loops=True, param_names=("most",), instructions=12, **_unmasked)
IF = _row("if", rule.if_, blocks=2, control=1, param_names=("rare",), instructions=6)


FUNCTIONS = frozenset(name for name, p in PRIMITIVES.items() if p.is_function)
"""Names of the primitives whose code is a polynomial or longer."""


def primitive(name: str) -> Primitive:
    """Returns the primitive of that name; raises KeyError if there is none."""
    return PRIMITIVES[name]
