"""PRNG: keys are pairs of u32, and what is made of them is computed by JAX's implementation of threefry."""

from __future__ import annotations

import functools
from math import prod
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.ir.program import Literal
from qdtrace.trace import compat
from qdtrace.trace.compat import threefry_prng_impl as threefry
from qdtrace.trace.importer.elements import length_of, per_element
from qdtrace.trace.importer.memory import UNROLL
from qdtrace.trace.importer.registry import (
    RESULT_TYPE,
    batched,
    decomposition,
    formula,
    rule,
    scalar_struct,
    traced_rule,
)
from qdtrace.trace.importer.structural import loaded, ravel
from qdtrace.trace.importer.values import Formula, Value, array_of, join_pairs, split_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Pair

_MOST_KEYS = 1 << 31
"""Most keys whose positions are made where they are read, in 32 bits."""


@decomposition("random_bits")
def random_bits(key: jax.Array, *, bit_width: int, shape: Sequence[int]) -> jax.Array:
    """Returns random integers."""
    return batched(1)(lambda raw: threefry.random_bits(raw, bit_width, tuple(shape)))(jax.random.key_data(key))


@rule("random_split")
def random_split(imp: Importer, eqn: JaxprEqn, key: Value, *, shape: Sequence[int]) -> Value:
    """Returns new keys made from one: many are made where they are read, as each is a hash of its own."""
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    dtype = imp.dtype_of(aval)
    with compat.settings_of(eqn):
        if out.size <= UNROLL or prod(shape) > _MOST_KEYS:
            return imp.decomposed(_split, [aval], {"shape": tuple(shape)}, [key])[0]
        params = {"count": prod(shape), "is_hash_of_position": compat.splits_by_position()}
        hashed = traced_rule(_split_key, scalar_struct(np.dtype(np.uint32), 3), params)
    keys = imp.in_memory(key)

    def at(index: Sequence[Atom]) -> Pair:
        position = imp.convert(ravel(imp, index[aval.ndim :], shape), dtype)
        words = (*imp.element(keys, index[: aval.ndim]), position)
        return tuple(imp.call_on_scalars(hashed, words))

    return Formula(out.shape, dtype, at, pair=True, operands=(keys,))


def _split(key: jax.Array, *, shape: Sequence[int]) -> jax.Array:
    return _keys(batched(1)(lambda raw: threefry.split(raw, tuple(shape)))(jax.random.key_data(key)))


def _split_key(
    first: jax.Array, second: jax.Array, position: jax.Array, *, count: int, is_hash_of_position: bool
) -> tuple[jax.Array, jax.Array]:
    """Returns the words of one of `count` keys made from a key.

    It is the hash of its position; before JAX's setting `threefry_partitionable`, its words are among those of the
    hashes of (k, count + k), which stand in two rows one after the other.
    """
    block = functools.partial(formula("threefry2x32"), first, second, use_rolled_loops=False)
    if is_hash_of_position:
        high, low = block(jnp.zeros_like(position), position)
        return high, low
    words = []
    for place in (2 * position, 2 * position + 1):
        column = place % count
        above, below = block(column, column + count)
        words.append(jnp.where(place < count, above, below))
    return words[0], words[1]


@decomposition("random_fold_in")
def random_fold_in(key: jax.Array, data: jax.Array) -> jax.Array:
    """Makes a new key from a key and an integer."""
    shape = jnp.broadcast_shapes(key.shape, data.shape)
    raw = jax.random.key_data(jnp.broadcast_to(key, shape))
    return _keys(batched(1)(threefry.fold_in)(raw, jnp.broadcast_to(data, shape)))


@rule("random_seed", ignores={"impl": RESULT_TYPE})
def random_seed(imp: Importer, eqn: JaxprEqn, data: Value) -> Value:
    """Makes keys from integers."""
    imp.dtype_of(eqn.outvars[0].aval)
    with compat.settings_of(eqn):
        return imp.decomposed(_seed, [eqn.invars[0].aval], {}, [data])[0]


def _seed(data: jax.Array) -> jax.Array:
    return _keys(batched(0)(threefry.seed)(data))


def _keys(raw: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(raw, impl="threefry2x32")


@rule("random_wrap", ignores={"impl": RESULT_TYPE})
def random_wrap(imp: Importer, eqn: JaxprEqn, raw: Value) -> Value:
    """Returns raw words as keys."""
    aval = eqn.outvars[0].aval
    dtype = imp.dtype_of(aval)
    if isinstance(raw, np.ndarray):
        return join_pairs(raw)
    words = (imp.index(0), imp.index(1))
    at = lambda index: tuple(imp.element(raw, [*index, word]) for word in words)  # noqa: E731
    return loaded(imp, Formula(aval.shape, dtype, at, pair=True, operands=(raw,)))


@rule("random_unwrap")
def random_unwrap(imp: Importer, eqn: JaxprEqn, key: Value) -> Value:
    """Returns keys as raw words."""
    if isinstance(key, np.ndarray):
        return split_pairs(key)
    aval = eqn.outvars[0].aval
    return loaded(imp, Formula(aval.shape, imp.dtype_of(aval), lambda index: _word(imp, key, index), operands=(key,)))


def _word(imp: Importer, key: Value, index: Sequence[Atom]) -> Atom:
    *place, word = index
    first, second = imp.element(key, place)
    if type(word) is Literal:
        return second if word.value else first
    return imp.choose(imp.op("eq", word, imp.index(0)), first, second)


@decomposition("iota_2x32_shape")
def iota_2x32_shape(*, shape: Sequence[int]) -> object:
    """Returns the high and low words of 0, 1, 2, ... in a shape."""
    low = jax.lax.iota(np.uint32, prod(shape)).reshape(shape)
    return jnp.zeros_like(low), low


@rule("threefry2x32")
def threefry2x32(imp: Importer, eqn: JaxprEqn, *words: Value) -> list[Value]:
    """Computes the Threefry block function with 20 rounds (Salmon et al., 2011), as JAX writes it out."""
    aval = eqn.outvars[0].aval
    rounds = traced_rule(formula("threefry2x32"), scalar_struct(np.dtype(np.uint32), 4), {"use_rolled_loops": False})
    block = lambda *elements: tuple(imp.call_on_scalars(rounds, elements))  # noqa: E731
    both = per_element(imp, block, aval, *words, length=length_of(rounds), pair=True)
    if isinstance(both, np.ndarray):
        return [array_of((pair[k] for pair in both.ravel().tolist()), aval.shape) for k in (0, 1)]
    part = lambda k: Formula(aval.shape, both.dtype, lambda i: imp.element(both, i)[k], operands=(both,))  # noqa: E731
    return [loaded(imp, part(0)), loaded(imp, part(1))]
