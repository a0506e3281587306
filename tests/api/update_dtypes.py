"""Every update of a place by a value of another dtype, at the extremes of both, and what exact arithmetic makes of it.

Accumulations convert the value to the dtype of the place first: integers modulo its range (for min and max to the
nearest that it holds), wider floats by rounding. Other updates are a load, JAX's operator and a store.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = ("bool", *INTEGERS, *FLOATS, "complex64", "complex128")
METHODS = ("add", "subtract", "mul", "multiply", "min", "max")
STATEMENTS = {"+=": operator.iadd, "-=": operator.isub}
ATOMICS = ("atomic_add", "atomic_min", "atomic_max", "atomic_and", "atomic_or", "atomic_xor", "atomic_exchange")
LOADED = {
    "*=": operator.mul, "/=": operator.truediv, "//=": operator.floordiv, "%=": operator.mod, "**=": operator.pow,
    "&=": operator.and_, "|=": operator.or_, "^=": operator.xor, "<<=": operator.lshift, ">>=": operator.rshift,
}  # fmt: skip
"""Statements that are a load, an operator and a store."""
ON_CELLS = {"+=": operator.add, "-=": operator.sub, **LOADED}


def rank(dtype: Any) -> int:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next(k for k, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))


def fits(dtype: Any, of: Any) -> bool:
    """Whether values of a dtype may be stored: none has a fraction or an imaginary part too many."""
    return rank(of) <= max(rank(dtype), 1)


def extremes(dtype: str, other: str) -> np.ndarray:
    """Numbers of a dtype that meet some of another one: small ones, and the largest and smallest."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        some = [0, 1, 3, 100, info.max, info.max - 1, info.min, info.min // 2]
        return np.array(some + ([-1, -7] if info.min else [info.max // 2 + 1, 7]), dtype)
    some = [0.0, -0.0, 1.0, -2.5, 1000.25, -65504.0, float(jnp.finfo(dtype).max), np.inf, np.nan]
    if other.startswith("complex"):
        some = some[:5]
    if other == "bool":  # XLA takes a product with one for a choice, which gives 0 for infinity times false
        some = some[:7]
    if dtype.startswith("complex"):
        return np.array([0, 1, -2.5, 3 + 4j, -1000j, 0.5 - 0.25j], dtype)
    return np.array(some).astype(jnp.dtype(dtype))


def pairs(into: str, of: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of extremes."""
    x, v = np.meshgrid(extremes(into, of), extremes(of, into), indexing="ij")
    return x.ravel(), v.ravel()


def updated(op: str, x: np.ndarray, v: np.ndarray, where: str) -> np.ndarray:
    """What an accumulation of each value at a place of its own leaves."""
    if where == "slice" and op in STATEMENTS:  # a load, a sum by JAX and a store
        both = jnp.promote_types(x.dtype, v.dtype)
        return updated(op, x.astype(both), v.astype(both), "loop").astype(x.dtype)
    op = {"+=": "add", "-=": "subtract", "multiply": "mul"}.get(op, op.removeprefix("atomic_"))
    if op == "exchange":
        return v.astype(x.dtype)
    if x.dtype.kind in "iu" and v.dtype.kind in "iub":
        info = np.iinfo(x.dtype)
        exact: Callable[[int, int], int] = {
            "add": operator.add, "subtract": operator.sub, "mul": operator.mul, "and": operator.and_,
            "or": operator.or_, "xor": operator.xor, "min": min, "max": max,
        }[op]  # fmt: skip
        whole = [exact(int(a), int(b)) for a, b in zip(x, v, strict=True)]
        if op in ("min", "max"):
            whole = [min(max(k, info.min), info.max) for k in whole]
        return np.array([k & (2**info.bits - 1) for k in whole], f"u{x.dtype.itemsize}").view(x.dtype)
    function = {
        "add": np.add, "subtract": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
        "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
    }[op]  # fmt: skip
    return function(x, v.astype(x.dtype)).astype(x.dtype)


def is_refused(op: str, into: Any, of: Any) -> bool:
    """Whether an accumulation is refused by name."""
    bits = op in ("atomic_and", "atomic_or", "atomic_xor")
    if rank(into) == 3 and (op in ATOMICS or op in ("mul", "multiply", "min", "max")):
        return True
    if op == "atomic_exchange":
        return not fits(into, of)
    if bits:
        return rank(into) > 1 or not fits(into, of) or (rank(into) == 0 and rank(of) == 1)
    if op in STATEMENTS:
        return rank(into) == 0 or not fits(into, jnp.promote_types(into, of))
    return rank(into) == 0 or not fits(into, of)


def apply(op: str, b: Any, k: Any, v: Any) -> None:
    """Runs one accumulation."""
    if op == "+=":
        b[k] += v
    elif op == "-=":
        b[k] -= v
    elif op in ATOMICS:
        getattr(qd, op)(b, k, v)
    else:
        getattr(b.at[k], op)(v)


def accumulating(ops: list[str], where: str) -> Callable[..., Any]:
    """A function that runs each operation on a copy of its first argument, in a loop or outside of loops."""

    def f(x: Any, v: Any) -> Any:
        copies = [qd.copy(x) for _ in ops]
        if where == "loop":
            for i in qd.range(x.shape[0]):
                for op, b in zip(ops, copies, strict=True):
                    apply(op, b, i, v[i])
        elif where == "places":
            for op, b in zip(ops, copies, strict=True):
                for k in range(x.shape[0]):
                    apply(op, b, k, v[k])
        else:
            for op, b in zip(ops, copies, strict=True):
                apply(op, b, slice(None), v[...])
        return copies

    return qd.jit(f)


def loading(ops: list[str], where: str) -> Callable[..., Any]:
    """A function that runs each statement on a copy of its first argument: on buffers, or on a cell of each element."""

    def f(x: Any, v: Any) -> Any:
        copies = [qd.copy(x) for _ in ops]
        for i in qd.range(x.shape[0]):
            for op, b in zip(ops, copies, strict=True):
                if where == "cells":
                    c = qd.local(b[i])
                    c = getattr(operator, "i" + ON_CELLS[op].__name__.strip("_"))(c, v[i])
                    b[i] = c
                else:
                    b[i] = LOADED[op](b[i], v[i])
        return copies

    return qd.jit(f)


def in_lanes(x: Any, v: Any, k: Any) -> list[Any]:
    """Every update that JAX has, of an element of the row of a lane."""
    methods = ("add", "subtract", "multiply", "divide", "power", "min", "max")
    changed = [getattr(x.at[k], m)(v) for m in methods if not (m in ("min", "max") and rank(x.dtype) == 3)]
    return [*changed, x.at[k].apply(lambda a: a * a.dtype.type(2))]


def is_equal(op: str, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Whether elements are equal, quotients and powers up to roundings."""
    same = (got == want) | ((got != got) & (want != want))
    if op not in ("/=", "**=", "%=", "//="):
        return same
    eps = float(jnp.finfo(want.dtype).eps) if rank(want.dtype) > 1 else 0.0
    wide = np.complex128 if rank(want.dtype) == 3 else np.float64
    with np.errstate(all="ignore"):
        return same | (abs(got.astype(wide) - want.astype(wide)) <= 1000 * eps * abs(want.astype(wide)))
