"""PRNG: keys are pairs of u32; threefry is written out, the rest is the public threefry implementation of JAX."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.compat import threefry_prng_impl as threefry
from qdtrace.trace.importer.elements import per_element
from qdtrace.trace.importer.linalg import batched
from qdtrace.trace.importer.registry import RESULT_TYPE, decomposition, rule
from qdtrace.trace.importer.scalars import constant
from qdtrace.trace.importer.structural import view
from qdtrace.trace.importer.values import PrivateArray, Value, array_of, join_pairs, split_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.trace.importer.core import Importer

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


@decomposition("random_bits")
def random_bits(key: Any, *, bit_width: int, shape: Sequence[int]) -> Any:
    """Returns random integers."""
    return batched(1)(lambda raw: threefry.random_bits(raw, bit_width, tuple(shape)))(jax.random.key_data(key))


@decomposition("random_split")
def random_split(key: Any, *, shape: Sequence[int]) -> Any:
    """Returns new keys made from one."""
    return _keys(batched(1)(lambda raw: threefry.split(raw, tuple(shape)))(jax.random.key_data(key)))


@decomposition("random_fold_in")
def random_fold_in(key: Any, data: Any) -> Any:
    """Makes a new key from a key and an integer."""
    shape = jnp.broadcast_shapes(key.shape, data.shape)
    raw = jax.random.key_data(jnp.broadcast_to(key, shape))
    return _keys(batched(1)(threefry.fold_in)(raw, jnp.broadcast_to(data, shape)))


@rule("random_seed", ignores={"impl": RESULT_TYPE})
def random_seed(imp: Importer, eqn: Any, data: Value) -> Value:
    """Makes keys from integers."""
    imp.dtype_of(eqn.outvars[0].aval)
    with compat.settings_of(eqn):
        return imp.decomposed(_seed, [eqn.invars[0].aval], {}, [data])[0]


def _seed(data: Any) -> Any:
    return _keys(batched(0)(threefry.seed)(data))


def _keys(raw: Any) -> Any:
    return jax.random.wrap_key_data(raw, impl="threefry2x32")


@rule("random_wrap", ignores={"impl": RESULT_TYPE})
def random_wrap(imp: Importer, eqn: Any, raw: Value) -> Value:
    """Returns raw words as keys."""
    imp.dtype_of(eqn.outvars[0].aval)
    return join_pairs(imp.scalars(raw, "an array of keys"))


@rule("random_unwrap")
def random_unwrap(imp: Importer, eqn: Any, key: Value) -> Value:
    """Returns keys as raw words."""
    return split_pairs(imp.scalars(key, "an array of keys"))


@decomposition("iota_2x32_shape")
def iota_2x32_shape(*, shape: Sequence[int]) -> Any:
    """Returns the high and low words of 0, 1, 2, ... in a shape."""
    low = jax.lax.iota(np.uint32, prod(shape)).reshape(shape)
    return jnp.zeros_like(low), low


@rule("threefry2x32")
def threefry2x32(imp: Importer, eqn: Any, k0: Value, k1: Value, x0: Value, x1: Value) -> list[Value]:
    """Computes the Threefry block function with 20 rounds (Salmon et al., 2011)."""
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
