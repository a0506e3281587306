"""PRNG: keys are pairs of u32; threefry written out, the rest by the public threefry implementation of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.compat import threefry_prng_impl
from qdtrace.trace.importer.elementwise import per_element
from qdtrace.trace.importer.registry import RESULT_TYPE, rule, traced_rule
from qdtrace.trace.importer.scalars import constant
from qdtrace.trace.importer.structural import ravel, view
from qdtrace.trace.importer.values import Generated, PrivateArray, Value, array_of, join_pairs, split_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.trace.importer.core import Importer

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def _apply(
    imp: Importer, eqn: Any, fn: Callable[..., Any], params: dict[str, Any], shapes: Sequence[Any], values: list[Any]
) -> Value:
    """Inlines a function of raw key words (arrays u32[2])."""
    with compat.settings_of(eqn):
        closed = traced_rule(fn, shapes, params)
    (result,) = imp.call(closed, values)
    return result


def _words() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2,), np.dtype(np.uint32))


def _over_keys(imp: Importer, key: Value, fn: Callable[[np.ndarray], Value], out_shape: Sequence[int]) -> Value:
    """Applies a function of one raw key to each key of an array, results along the leading axes."""
    keys = imp.scalars(key, "an array of keys")
    if not keys.shape:
        return fn(array_of(keys[()], (2,)))
    rows = [imp.scalars(fn(array_of(pair, (2,))), "random numbers of several keys") for pair in keys.ravel().tolist()]
    return array_of((e for row in rows for e in row.ravel().tolist()), (*keys.shape, *out_shape))


@rule("random_bits")
def random_bits(imp: Importer, eqn: Any, key: Value, *, bit_width: int, shape: Sequence[int]) -> Value:
    """Random integers."""
    imp.dtype_of(eqn.invars[0].aval)
    params = {"bit_width": bit_width, "shape": tuple(shape)}
    fn = lambda raw: _apply(imp, eqn, _bits, params, [_words()], [raw])  # noqa: E731
    return _over_keys(imp, key, fn, shape)


def _bits(raw: Any, *, bit_width: int, shape: tuple[int, ...]) -> Any:
    return threefry_prng_impl.random_bits(raw, bit_width, shape)


def _split(raw: Any, *, shape: tuple[int, ...]) -> Any:
    return threefry_prng_impl.split(raw, shape)


def _fold_in(raw: Any, data: Any) -> Any:
    return threefry_prng_impl.fold_in(raw, data)


def _seed(data: Any) -> Any:
    return threefry_prng_impl.seed(data)


@rule("random_split")
def random_split(imp: Importer, eqn: Any, key: Value, *, shape: Sequence[int]) -> Value:
    """New keys from one."""
    imp.dtype_of(eqn.invars[0].aval)
    params = {"shape": tuple(shape)}
    fn = lambda raw: _as_keys(imp, _apply(imp, eqn, _split, params, [_words()], [raw]))  # noqa: E731
    return _over_keys(imp, key, fn, shape)


def _as_keys(imp: Importer, raw: Value) -> np.ndarray:
    return join_pairs(imp.scalars(raw, "an array of keys"))


@rule("random_fold_in")
def random_fold_in(imp: Importer, eqn: Any, key: Value, data: Value) -> Value:
    """A key and an integer to a new key."""
    imp.dtype_of(eqn.invars[0].aval)
    scalar = jax.ShapeDtypeStruct((), eqn.invars[1].aval.dtype)
    keys, numbers = np.broadcast_arrays(imp.scalars(key), imp.scalars(data))
    out = np.empty(keys.shape, object)
    for at in np.ndindex(*keys.shape):
        raw = array_of(keys[at], (2,))
        number = array_of([numbers[at]], ())
        new = _as_keys(imp, _apply(imp, eqn, _fold_in, {}, [_words(), scalar], [raw, number]))
        out[at] = new[()]
    return out


@rule("random_seed", ignores={"impl": RESULT_TYPE})
def random_seed(imp: Importer, eqn: Any, data: Value) -> Value:
    """Integers to keys."""
    imp.dtype_of(eqn.outvars[0].aval)
    scalar = jax.ShapeDtypeStruct((), eqn.invars[0].aval.dtype)
    numbers = imp.scalars(data)
    out = np.empty(numbers.shape, object)
    for at in np.ndindex(*numbers.shape):
        new = _as_keys(imp, _apply(imp, eqn, _seed, {}, [scalar], [array_of([numbers[at]], ())]))
        out[at] = new[()]
    return out


@rule("random_wrap", ignores={"impl": RESULT_TYPE})
def random_wrap(imp: Importer, eqn: Any, raw: Value) -> Value:
    """Raw words as keys."""
    imp.dtype_of(eqn.outvars[0].aval)
    return _as_keys(imp, raw)


@rule("random_unwrap")
def random_unwrap(imp: Importer, eqn: Any, key: Value) -> Value:
    """Keys as raw words."""
    return split_pairs(imp.scalars(key, "an array of keys"))


@rule("random_clone")
def random_clone(imp: Importer, eqn: Any, key: Value) -> Value:
    """The same key."""
    return key


@rule("iota_2x32_shape")
def iota_2x32_shape(imp: Importer, eqn: Any, *, shape: Sequence[int]) -> list[Value]:
    """High and low words of 0, 1, 2, ... in a shape."""
    shape = tuple(shape)
    size = int(np.prod(shape, dtype=np.int64))
    zero = constant(np.uint32(0))
    if size <= imp.scalar_budget:
        counts = np.arange(size, dtype=np.uint32)
        return [array_of([zero] * size, shape), array_of(map(constant, counts), shape)]
    line = Generated((size,), DType.u32, lambda i: imp.convert(i[0], DType.u32))
    return [
        Generated(shape, DType.u32, lambda i: zero),
        view(imp, line, shape, lambda i: [ravel(imp, i, shape)]),
    ]


@rule("threefry2x32")
def threefry2x32(imp: Importer, eqn: Any, k0: Value, k1: Value, x0: Value, x1: Value) -> list[Value]:
    """The Threefry block function with 20 rounds (Salmon et al., 2011)."""
    shape = eqn.outvars[0].aval.shape
    block = lambda *words: _threefry(imp, *words)  # noqa: E731
    both = per_element(imp, block, shape, DType.u32, (k0, k1, x0, x1), pair=True)
    if isinstance(both, np.ndarray):
        return [array_of((pair[k] for pair in both.ravel().tolist()), shape) for k in (0, 1)]
    assert isinstance(both, PrivateArray)
    raw = PrivateArray(both.var, holders=both.holders)
    return [view(imp, raw, shape, lambda i, k=k: [*i, imp.index(k)]) for k in (0, 1)]


def _threefry(imp: Importer, k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    op = imp.op
    word = lambda value: constant(np.uint32(value))  # noqa: E731
    keys = (k0, k1, op("xor", op("xor", k0, k1), constant(_PARITY)))
    x0, x1 = op("add", x0, keys[0]), op("add", x1, keys[1])
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x0 = op("add", x0, x1)
            rotated = op("or", op("shift_left", x1, word(turn)), op("shift_right_logical", x1, word(32 - turn)))
            x1 = op("xor", rotated, x0)
        x0 = op("add", x0, keys[(group + 1) % 3])
        x1 = op("add", op("add", x1, keys[(group + 2) % 3]), word(group + 1))
    return x0, x1
