"""Arrays of random keys, as lanes and loops have them: split, put in another order, made anew, drawn from."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.importer.harness import check

KEYS = jax.vmap(jax.random.key)(jnp.array([0, 2**31 - 1], jnp.int32))
COUNTS = 2, 3, 16, 17, 40


def _again(keys):
    return jax.vmap(lambda key: jax.random.split(key)[1])(keys)


def _numbered(keys):
    return jax.vmap(jax.random.fold_in)(keys, jnp.arange(keys.shape[0]))


STEPS = {
    "reversed": lambda keys: keys[::-1],
    "part": lambda keys: keys[keys.shape[0] // 3 :],
    "columns": lambda keys: keys.reshape(-1, 1)[:, 0],
    "more": lambda keys: jnp.concatenate([keys[1:], jax.random.split(keys[0], 19)]),
    "chosen": lambda keys: jnp.where(jnp.arange(keys.shape[0]) % 3 == 0, keys, keys[0]),
    "set": lambda keys: keys.at[-1].set(keys[0]),
    "taken": lambda keys: keys[jax.random.permutation(keys[0], keys.shape[0])],
    "words": lambda keys: jax.random.wrap_key_data(jax.random.key_data(keys) ^ jnp.uint32(7)),
    "again": _again,
    "numbered": _numbered,
    "children": lambda keys: jax.vmap(lambda key: jax.random.split(key, 3))(keys)[:, 1],
    "carried": lambda keys: jax.lax.fori_loop(0, 3, lambda _, keys: _again(keys), keys),
}
ENDS = {
    "scan": lambda keys: jax.lax.scan(lambda s, key: (s / 2 + jax.random.uniform(key), s), 0.0, keys),
    "backward": lambda keys: jax.lax.scan(lambda s, key: (s / 2 + jax.random.uniform(key), s), 0.0, keys, reverse=True),
    "mapped": lambda keys: jax.lax.map(lambda key: jax.random.uniform(key, (2,)), keys),
    "vmapped": lambda keys: jax.vmap(jax.random.bits)(keys),
    "indexed": lambda keys: jax.lax.fori_loop(
        0, keys.shape[0], lambda i, s: s / 2 + jax.random.uniform(keys[(5 * i) % keys.shape[0]]), 0.0
    ),
    "left": lambda keys: keys,
}


def drawn(seed):
    """Returns a random program of one key, with its name and setting of JAX."""
    draw = random.Random(seed)
    count, steps = draw.choice(COUNTS), [draw.choice([*STEPS]) for _ in range(draw.randrange(4))]
    end = draw.choice([*ENDS])

    def program(key):
        keys = jax.random.split(key, count)
        for name in steps:
            keys = STEPS[name](keys)
        return ENDS[end](keys)

    return program, f"{count} {' '.join(steps)} {end}", draw.random() < 0.7


def _words(tree):
    """Returns arrays as NumPy's, those of keys by their words."""
    leaves = jax.tree.leaves(tree)
    return [np.asarray(x if isinstance(x.dtype, np.dtype) else jax.random.key_data(x)) for x in leaves]


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.every_case
def test_random_programs_of_key_arrays(seed):
    agrees(seed)


@pytest.mark.parametrize("seed", range(2, 200))
@pytest.mark.slow
def test_many_random_programs_of_key_arrays(seed):
    agrees(seed)


def agrees(seed):
    """Fails where lanes of the program have other values than JAX."""
    program, name, by_position = drawn(seed)
    with jax.threefry_partitionable(by_position):
        got, want = _words(qd.vmap(program)(KEYS)), _words(jax.vmap(program)(KEYS))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype, name
        np.testing.assert_array_equal(g, w, name)


@pytest.mark.parametrize("by_position", [True, False])
@pytest.mark.every_case
def test_keys_of_a_scan_are_made_in_its_loop(by_position):
    walk = lambda key: jax.lax.scan(lambda s, k: (s + jax.random.uniform(k), None), 0.0, jax.random.split(key, 40))[0]  # noqa: E731
    with jax.threefry_partitionable(by_position):
        program = check(walk, KEYS)
    assert program.count("for") == 1
    assert program.count("store") == 1, "an array of keys is in memory"


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 300])
def test_arrays_of_keys_as_arguments_and_rows(count):
    keys = jax.random.split(jax.random.key(3), (4, count))
    walk = lambda keys, s: jax.lax.scan(lambda s, k: (s / 2 + jax.random.uniform(k), None), s, keys)[0]  # noqa: E731

    @qd.jit
    def rows(keys):
        out = qd.zeros(4)
        for i in qd.range(4):
            out[i] = walk(keys[i], 0.0)
        return out

    @qd.jit
    def elements(keys):
        out = qd.zeros(4)
        for i in qd.range(4):
            for j in qd.range(count):
                out[i] = out[i] / 2 + jax.random.uniform(keys[i, j])
        return out

    want = jax.vmap(lambda keys: walk(keys, 0.0))(keys)
    np.testing.assert_array_equal(rows(keys), want)
    np.testing.assert_array_equal(elements(keys), want)
    np.testing.assert_array_equal(qd.vmap(walk, (1, None))(keys.T, 0.0), want)
    starts = jnp.arange(3.0)
    np.testing.assert_array_equal(
        qd.vmap(walk, (None, 0))(keys[0], starts), jax.vmap(walk, (None, 0))(keys[0], starts)
    )


@pytest.mark.full
def test_gradient_through_a_rollout():
    def last(speed, key):
        step = lambda s, k: (jnp.tanh(s * speed + jax.random.normal(k)), None)  # noqa: E731
        return jax.lax.scan(step, 0.0, jax.random.split(key, 50))[0]

    speeds = jnp.array([0.3, 1.1])
    want = jax.vmap(jax.grad(last))(speeds, KEYS)
    np.testing.assert_allclose(qd.vmap(jax.grad(last))(speeds, KEYS), want, rtol=1e-4)
    np.testing.assert_allclose(jax.grad(lambda x: qd.vmap(last)(x, KEYS).sum())(speeds), want, rtol=1e-4)
