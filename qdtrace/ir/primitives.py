"""The closed set of primitives: name, arity, typing rule and effects.

Each interpretation (interpreter, emitter, differentiation) keeps one table over this set; a test demands an entry
in each. Semantics of every primitive are defined by `qdtrace.interpret` and described in `ir/README.md`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qdtrace.ir.types import BOOL, BlockType, DType, RefType, ScalarType, Space, Type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Types = Sequence[Type]
    Params = Mapping[str, Any]
    Blocks = Sequence[BlockType]
    TypeRule = Callable[[Types, Params, Blocks], tuple[Type, ...]]


class Effect(enum.Enum):
    """What an equation does to memory: to what its first operand refers to, or by making some."""

    READ = "read"
    WRITE = "write"
    ACCUM = "accum"
    """Adds to (or takes the min/max/product with) memory; two of them with one operation commute."""
    ALLOC = "alloc"
    """Makes new memory: two equal equations are not the same value."""
    CHECK = "check"
    """May end the call with an error. No memory changes: two checks of indices may run in either order, and one that a
    check in front of it implies is not needed. Behind a `check` that fails nothing is executed: none moves in front."""

    LANES = "lanes"
    """Depends on which iterations of the task run together here: the equation stays where it is."""

    __hash__ = object.__hash__  # of the member itself: that of `enum` is a function of Python


WRITES = frozenset({Effect.WRITE, Effect.ACCUM})
"""Effects that change memory."""


class IrTypeError(TypeError):
    """An equation breaks the typing rule of its primitive."""


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """An operation of the graph."""

    name: str
    type_rule: TypeRule
    effects: frozenset[Effect] = frozenset()
    param_names: tuple[str, ...] = ()
    commutative: bool = False
    structured: bool = False
    """Owns blocks (`for`, `while`, `if`)."""
    loops: bool = False
    """Runs its blocks any number of times (`for`, `while`)."""
    remarks: frozenset[str] = frozenset()
    """Parameters that only messages need: code does not depend on them."""
    values: int | None = None
    """Operands between the reference and its indices; None for what touches no element (of `cas` it is one more)."""
    cost: int = 1
    """Operations of a lane that its code has, in additions; what is in its blocks comes on top."""
    is_function: bool = False
    """Code of it is a polynomial and more, and the last bit depends on the library."""

    def __repr__(self) -> str:
        return self.name


PRIMITIVES: dict[str, Primitive] = {}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise IrTypeError(message)


def _scalars(types: Types, count: int) -> list[DType]:
    _require(len(types) == count, f"needs {count} operands, got {len(types)}")
    _require(all(isinstance(t, ScalarType) for t in types), "operands must be scalars")
    return [t.dtype for t in types]


def _elementwise(arity: int, accepts: Callable[[DType], bool], what: str, result: DType | None = None) -> TypeRule:
    def rule(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
        dtypes = _scalars(types, arity)
        _require(len(set(dtypes)) == 1, f"needs operands of one dtype, got {', '.join(d.value for d in dtypes)}")
        _require(accepts(dtypes[0]), f"needs {what} operands, got {dtypes[0].value}")
        return (ScalarType(result or dtypes[0]),)

    return rule


def _define(names: str, rule: TypeRule, *effects: Effect, **facts: Any) -> None:
    """Adds primitives that share a typing rule, effects and facts, which are fields of `Primitive`."""
    for name in names.split():
        PRIMITIVES[name] = Primitive(name, rule, frozenset(effects), **facts)


def _select(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _require(len(types) == 3, "needs 3 operands: condition, on_true, on_false")
    _require(types[0] == BOOL, f"needs a bool condition, got {types[0]}")
    _require(isinstance(types[1], ScalarType) and types[1] == types[2], f"branches differ: {types[1]} and {types[2]}")
    return (types[1],)


def _convert(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _scalars(types, 1)
    return (ScalarType(params["dtype"]),)


def _bitcast(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    (source,) = _scalars(types, 1)
    target = params["dtype"]
    _require(source.bits == target.bits, f"needs equal widths, got {source.value} to {target.value}")
    return (ScalarType(target),)


def _memory(types: Types, first_index: int) -> RefType:
    ref = types[0] if types else None
    if not isinstance(ref, RefType):
        raise IrTypeError("first operand must be a reference")
    indices = types[first_index:]
    _require(len(indices) == ref.ndim, f"needs {ref.ndim} indices for {ref}, got {len(indices)}")
    for t in indices:
        ok = isinstance(t, ScalarType) and t.dtype in (DType.i32, DType.i64)
        _require(ok, f"index must be i32 or i64, got {t}")
    return ref


def _load(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    return (ScalarType(_memory(types, 1).dtype),)


def _store(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    ref = _memory(types, 2)
    _require(types[1] == ScalarType(ref.dtype), f"needs a {ref.dtype.value} value for {ref}, got {types[1]}")
    return ()


ACCUM_OPS = ("add", "mul", "min", "max")
ATOMIC_OPS = ("add", "mul", "min", "max", "and", "or", "xor", "exchange", "cas")


def _accum(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _store(types, params, blocks)
    _require(params["op"] in ACCUM_OPS, f"unknown accumulation {params['op']!r}")
    return ()


def _atomic(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    op = params["op"]
    _require(op in ATOMIC_OPS, f"unknown atomic {op!r}")
    values = 2 if op == "cas" else 1
    ref = _memory(types, 1 + values)
    for t in types[1 : 1 + values]:
        _require(t == ScalarType(ref.dtype), f"needs a {ref.dtype.value} value for {ref}, got {t}")
    if op in ("and", "or", "xor"):
        _require(not ref.dtype.is_float, f"atomic {op} needs integers, got {ref.dtype.value}")
    return (ScalarType(ref.dtype),)


def _cell(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _require(not types, "takes no operand")
    return (RefType(params["dtype"], tuple(params["shape"]), Space.LOCAL),)


def _bound(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    (dtype,) = _scalars(types, 1)
    _require(dtype.is_integer and dtype.bits >= 32, f"index must have 32 or 64 bits, got {dtype.value}")
    size = params["size"]
    _require(isinstance(size, int) and size >= 0, f"needs a size of 0 or more, got {size!r}")
    return (types[0],)


def _check(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _require(tuple(types) == (BOOL,), "needs one bool condition")
    return ()


def _platform(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _require(not types, "takes no operand")
    return (BOOL,)


def _custom(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _require(len(types) >= 1, "needs the value")
    _require(all(isinstance(t, ScalarType) for t in types), "operands must be scalars")
    return (types[0],)


def _for(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _require(len(types) >= 3, "needs start, stop, step and the initial carries")
    dtype = types[0].dtype
    _require(dtype in (DType.i32, DType.i64), f"bounds must be i32 or i64, got {dtype.value}")
    _require(types[0] == types[1] == types[2], "bounds and step must have one dtype")
    (body,) = blocks
    carries = tuple(types[3:])
    _require(body.params == (types[0], *carries), "body parameters must be index and carries")
    _require(body.results == carries, "body results must match the carries")
    return carries


def _while(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    cond, body = blocks
    carries = tuple(types)
    _require(cond.params == carries, "condition parameters must be the carries")
    _require(body.params == carries, "body parameters must be the carries")
    _require(cond.results == (BOOL,), "condition must give one bool")
    _require(body.results == carries, "body results must match the carries")
    return carries


def _if(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    _require(tuple(types) == (BOOL,), "needs one bool condition")
    then, other = blocks
    _require(not then.params and not other.params, "branches take no parameters")
    _require(then.results == other.results, "branches must give the same types")
    return then.results


_Kind = tuple[Callable[[DType], bool], str]
_FLOAT: _Kind = (lambda d: d.is_float, "float")
_INT: _Kind = (lambda d: d.is_integer, "integer")
_BITS: _Kind = (lambda d: not d.is_float, "integer or bool")
_NUMBER: _Kind = (lambda d: d is not DType.bool, "number")
_ANY: _Kind = (lambda d: True, "any")

_define("add mul min max", _elementwise(2, *_NUMBER), commutative=True)
_define("sub", _elementwise(2, *_NUMBER))
_define("div", _elementwise(2, *_NUMBER), cost=6)
_define("rem", _elementwise(2, *_NUMBER), cost=8)
_define("neg abs sign", _elementwise(1, *_NUMBER))
_define("pow atan2", _elementwise(2, *_FLOAT), is_function=True, cost=18)
_define("nextafter", _elementwise(2, *_FLOAT), cost=8)
_define("integer_pow", _elementwise(1, *_NUMBER), param_names=("y",))
_define(
    "rsqrt cbrt exp exp2 expm1 log log2 log1p logistic sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc erf_inv lgamma digamma",
    _elementwise(1, *_FLOAT),
    is_function=True,
    cost=18,
)
_define("sqrt", _elementwise(1, *_FLOAT), cost=6)
_define("floor ceil round_even round_away trunc", _elementwise(1, *_FLOAT))
_define("fma", _elementwise(3, *_FLOAT))
_define("quotient", _elementwise(3, *_FLOAT), cost=2)
_define("is_finite", _elementwise(1, *_FLOAT, result=DType.bool))
_define("lt le gt ge", _elementwise(2, *_ANY, result=DType.bool))
_define("eq ne", _elementwise(2, *_ANY, result=DType.bool), commutative=True)
_define("and or xor", _elementwise(2, *_BITS), commutative=True)
_define("not", _elementwise(1, *_BITS))
_define("shift_left shift_right_logical shift_right_arithmetic", _elementwise(2, *_INT))
_define("population_count clz", _elementwise(1, *_INT))
_define("select", _select)
_define("lane_max", _elementwise(1, *_INT), Effect.LANES)
_define("convert", _convert, param_names=("dtype",))
_define("bitcast", _bitcast, param_names=("dtype",))
_define("custom", _custom, param_names=("rule", "result"), cost=0)
_define("load", _load, Effect.READ, values=0, cost=2)
_define("store", _store, Effect.WRITE, values=1, cost=2)
_define("accum", _accum, Effect.ACCUM, param_names=("op",), values=1, cost=6)
_define("atomic", _atomic, Effect.READ, Effect.WRITE, param_names=("op",), values=1, cost=40)
_define("cell", _cell, Effect.ALLOC, param_names=("dtype", "shape"), cost=0)
_define(
    "bound",
    _bound,
    Effect.CHECK,
    param_names=("size", "axis", "buffer", "shape"),
    remarks=frozenset({"axis", "buffer", "shape"}),
    cost=0,
)
_define("check", _check, Effect.CHECK, param_names=("message",), remarks=frozenset({"message"}))
_define("tell", lambda types, params, blocks: (), Effect.CHECK, param_names=("site", "number"))
_define("platform", _platform, Effect.CHECK, param_names=("names", "refused", "help"), cost=0)
_define("for", _for, structured=True, loops=True, param_names=("unroll",))
_define("while", _while, structured=True, loops=True)
_define("if", _if, structured=True, param_names=("rare",))


FUNCTIONS = frozenset(name for name, p in PRIMITIVES.items() if p.is_function)
"""Names of the primitives whose code is a polynomial and more."""


def primitive(name: str) -> Primitive:
    """The primitive of that name; raises KeyError."""
    return PRIMITIVES[name]
