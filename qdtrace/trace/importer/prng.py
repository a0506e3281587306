"""PRNG: keys are pairs of u32, and what is made of them is computed by JAX's implementation of threefry."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.trace import compat
from qdtrace.trace.compat import threefry_prng_impl as threefry
from qdtrace.trace.importer.elements import per_element
from qdtrace.trace.importer.linalg import batched
from qdtrace.trace.importer.registry import RESULT_TYPE, decomposition, formula, rule, scalar_struct, traced_rule
from qdtrace.trace.importer.structural import view
from qdtrace.trace.importer.values import PrivateArray, Value, array_of, join_pairs, rank0, split_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.trace.importer.core import Importer

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
def threefry2x32(imp: Importer, eqn: Any, *words: Value) -> list[Value]:
    """Computes the Threefry block function with 20 rounds (Salmon et al., 2011), as JAX writes it out."""
    aval = eqn.outvars[0].aval
    rounds = traced_rule(formula("threefry2x32"), scalar_struct(np.dtype(np.uint32), 4), {"use_rolled_loops": False})
    block = lambda *elements: tuple(x.item() for x in imp.call(rounds, [rank0(e) for e in elements]))  # noqa: E731
    both = per_element(imp, block, aval, *words, pair=True)
    if isinstance(both, np.ndarray):
        return [array_of((pair[k] for pair in both.ravel().tolist()), aval.shape) for k in (0, 1)]
    assert isinstance(both, PrivateArray)
    raw = PrivateArray(both.var, holders=both.holders)
    return [view(imp, raw, aval.shape, lambda i, k=k: [*i, imp.index(k)]) for k in (0, 1)]
