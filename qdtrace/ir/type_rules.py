"""Typing rules of primitives: each maps operands, parameters and types of blocks to types of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qdtrace.ir.types import BOOL, SCALARS, BlockType, DType, RefType, ScalarType, Space, Type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Types = Sequence[Type]
    Params = Mapping[str, Any]
    Blocks = Sequence[BlockType]
    TypeRule = Callable[[Types, Params, Blocks], tuple[Type, ...]]

ACCUM_OPS = ("add", "mul", "min", "max")
ATOMIC_OPS = ("add", "mul", "min", "max", "and", "or", "xor", "exchange", "cas")


class IrTypeError(TypeError):
    """Error of an equation that breaks the typing rule of its primitive."""


Kind = tuple[Callable[[DType], bool], str]
FLOAT: Kind = (lambda d: d.is_float, "float")
INT: Kind = (lambda d: d.is_integer, "integer")
BITS: Kind = (lambda d: not d.is_float, "integer or bool")
TRUTH: Kind = (lambda d: d is DType.bool, "bool")
NUMBER: Kind = (lambda d: d is not DType.bool, "number")
ANY: Kind = (lambda d: True, "any")
"""A predicate for the dtypes that an elementwise operation takes, and their name in messages."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise IrTypeError(message)


def _scalars(types: Types, count: int) -> list[DType]:
    _require(len(types) == count, f"needs {count} operands, got {len(types)}")
    _require(all(isinstance(t, ScalarType) for t in types), "operands must be scalars")
    return [t.dtype for t in types]


def elementwise(arity: int, accepts: Callable[[DType], bool], what: str, result: DType | None = None) -> TypeRule:
    """Returns the rule of `arity` scalars of one accepted dtype; the result has it too, or the dtype `result`."""
    results = {id(SCALARS[d]): (SCALARS[result or d],) for d in DType if accepts(d)}

    def rule(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
        if len(types) == arity and types[-1] is types[0] and arity < 3:  # most: types of one dtype are one object
            found = results.get(id(types[0]))
            if found is not None:
                return found
        dtypes = _scalars(types, arity)
        _require(len(set(dtypes)) == 1, f"needs operands of one dtype, got {', '.join(d.value for d in dtypes)}")
        found = results.get(id(SCALARS[dtypes[0]]))
        if found is None:
            raise IrTypeError(f"needs {what} operands, got {dtypes[0].value}")
        return found

    return rule


def select(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `select`: a condition, and two scalars of one type to choose from."""
    _require(len(types) == 3, "needs 3 operands: condition, on_true, on_false")
    _require(types[0] == BOOL, f"needs a bool condition, got {types[0]}")
    _require(isinstance(types[1], ScalarType) and types[1] == types[2], f"branches differ: {types[1]} and {types[2]}")
    return (types[1],)


def convert(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `convert`: any scalar; the dtype of the result is a parameter."""
    _scalars(types, 1)
    return (SCALARS[params["dtype"]],)


def bitcast(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `bitcast`: a scalar as wide as the dtype in the parameter."""
    (source,) = _scalars(types, 1)
    target = params["dtype"]
    _require(source.bits == target.bits, f"needs equal widths, got {source.value} to {target.value}")
    return (SCALARS[target],)


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


def load(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `load`: a reference and an index for each of its axes."""
    return (SCALARS[_memory(types, 1).dtype],)


def store(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `store`: a reference, a value and an index for each axis."""
    ref = _memory(types, 2)
    _require(types[1] == SCALARS[ref.dtype], f"needs a {ref.dtype.value} value for {ref}, got {types[1]}")
    return ()



def accum(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `accum`: the operands of `store`; the operation is a parameter."""
    store(types, params, blocks)
    _require(params["op"] in ACCUM_OPS, f"unknown accumulation {params['op']!r}")
    return ()


def atomic(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `atomic`: the operands of `accum`, for `cas` a second value; the result is the old value."""
    op = params["op"]
    _require(op in ATOMIC_OPS, f"unknown atomic {op!r}")
    values = 2 if op == "cas" else 1
    ref = _memory(types, 1 + values)
    for t in types[1 : 1 + values]:
        _require(t == SCALARS[ref.dtype], f"needs a {ref.dtype.value} value for {ref}, got {t}")
    if op in ("and", "or", "xor"):
        _require(not ref.dtype.is_float, f"atomic {op} needs integers, got {ref.dtype.value}")
    return (SCALARS[ref.dtype],)


def cell(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `cell`: no operand; dtype and shape are parameters."""
    _require(not types, "takes no operand")
    return (RefType(params["dtype"], tuple(params["shape"]), Space.LOCAL),)


def bound(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `bound`: an index; the size of its axis is a parameter."""
    (dtype,) = _scalars(types, 1)
    _require(dtype.is_integer and dtype.bits >= 32, f"index must have 32 or 64 bits, got {dtype.value}")
    size = params["size"]
    _require(isinstance(size, int) and size >= 0, f"needs a size of 0 or more, got {size!r}")
    return (types[0],)


def check(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `check`: one condition, and the scalars that its message tells."""
    _require(tuple(types[:1]) == (BOOL,), "needs one bool condition")
    _require(len(types) - 1 == str(params.get("told", "")).count("{}"), "needs a value for each hole of `told`")
    _require(all(isinstance(t, ScalarType) for t in types), "tells scalars")
    return ()


def platform(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `platform`: no operand; the result is a condition."""
    _require(not types, "takes no operand")
    return (BOOL,)


def tell(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `tell`: any operands, and no result."""
    return ()


def custom(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `custom`: a value and the operands of its rule."""
    _require(len(types) >= 1, "needs the value")
    _require(all(isinstance(t, ScalarType) for t in types), "operands must be scalars")
    return (types[0],)


def for_(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `for`: bounds and step of one dtype, then the initial carries."""
    _require(len(types) >= 3, "needs start, stop, step and the initial carries")
    dtype = types[0].dtype
    _require(dtype in (DType.i32, DType.i64), f"bounds must be i32 or i64, got {dtype.value}")
    _require(types[0] == types[1] == types[2], "bounds and step must have one dtype")
    (body,) = blocks
    carries = tuple(types[3:])
    _require(body.params == (types[0], *carries), "body parameters must be index and carries")
    _require(body.results == carries, "body results must match the carries")
    return carries


def while_(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `while`: the initial carries."""
    cond, body = blocks
    carries = tuple(types)
    _require(cond.params == carries, "condition parameters must be the carries")
    _require(body.params == carries, "body parameters must be the carries")
    _require(cond.results == (BOOL,), "condition must give one bool")
    _require(body.results == carries, "body results must match the carries")
    return carries


def if_(types: Types, params: Params, blocks: Blocks) -> tuple[Type, ...]:
    """Types `if`: a condition, and blocks with results of the same types."""
    _require(tuple(types) == (BOOL,), "needs one bool condition")
    then, other = blocks
    _require(not then.params and not other.params, "branches take no parameters")
    _require(then.results == other.results, "branches must give the same types")
    return then.results
