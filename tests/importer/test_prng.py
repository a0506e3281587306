"""jax.random inside a body gives the bits that JAX gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.importer.harness import check

SEEDS = np.array([0, 1, 7, 2**31 - 1], np.int32)
WORDS = np.array([[0, 0], [1, 2], [2**32 - 1, 5], [77, 3]], np.uint32)
KEYS = jax.vmap(jax.random.key)(jnp.asarray(SEEDS))


@pytest.mark.full
def test_seed_split_fold_in_and_raw_keys():
    check(lambda s: jax.random.key_data(jax.random.key(s)), SEEDS, exact=True)
    check(lambda s: jax.random.PRNGKey(s), SEEDS, exact=True)
    check(lambda k, s: jax.random.fold_in(k, s), KEYS, SEEDS, exact=True)
    check(lambda k: jax.random.split(k, 3), KEYS, exact=True)
    check(lambda w: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(w))), WORDS, exact=True)


@pytest.mark.full
@pytest.mark.parametrize("width", ["uint8", "uint16", "uint32"])
def test_bits(width):
    check(lambda k: jax.random.bits(k, (5,), width), KEYS, exact=True)


@pytest.mark.full
def test_64_bits():
    with jax.enable_x64(True):
        check(lambda k: jax.random.bits(k, (3,), "uint64"), KEYS, exact=True)
        check(lambda k: jax.random.uniform(k, (2,), jnp.float64), KEYS, exact=True)


@pytest.mark.parametrize("around", [False, True])
def test_bits_depend_on_the_setting_where_they_are_drawn(around):
    def bits(k):
        return jax.random.bits(k, (3,)), jax.random.key_data(jax.random.split(k, 3)), jax.random.poisson(k, 3.0)

    def other(k):
        with jax.threefry_partitionable(not around):
            return bits(k)

    with jax.threefry_partitionable(around):
        check(lambda k: (bits(k), other(k)), KEYS, exact=True)


DISTRIBUTIONS = {
    "uniform": lambda k: jax.random.uniform(k, (3,), minval=-1.0, maxval=2.0),
    "normal": lambda k: jax.random.normal(k, (2, 2)),
    "randint": lambda k: jax.random.randint(k, (4,), -5, 17),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (5,)),
    "exponential": lambda k: jax.random.exponential(k, (2,)),
    "categorical": lambda k: jax.random.categorical(k, jnp.array([0.1, 2.0, 0.3])),
    "choice": lambda k: jax.random.choice(k, 7),
    "permutation": lambda k: jax.random.permutation(k, 5),
    "gumbel": lambda k: jax.random.gumbel(k),
    "truncated_normal": lambda k: jax.random.truncated_normal(k, -1.0, 1.0),
    "cauchy": lambda k: jax.random.cauchy(k),
    "laplace": lambda k: jax.random.laplace(k),
    "rademacher": lambda k: jax.random.rademacher(k, (3,)),
    "multivariate": lambda k: jax.random.multivariate_normal(k, jnp.zeros(2), jnp.eye(2)),
    "poisson": lambda k: jax.random.poisson(k, 3.0),
}


@pytest.mark.full
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name):
    check(DISTRIBUTIONS[name], KEYS)


@pytest.mark.full
def test_rejection_sampling_stops_per_element():
    def sample(k):
        def body(state):
            k, _, n = state
            k, now = jax.random.split(k)
            return k, jax.random.normal(now), n + 1

        return jax.lax.while_loop(lambda s: s[1] < 0.5, body, (k, -1.0, 0))[1:]

    check(sample, KEYS)


@pytest.mark.full
def test_keys_in_scans_and_conditions():
    def f(k, s):
        keys = jax.random.split(k, 6)
        total = jax.lax.scan(lambda c, k: (c + jax.random.uniform(k), None), 0.0, keys)[0]
        chosen = jnp.where(s > 1, keys[0], keys[1])
        return total, jax.random.bits(jax.lax.cond(s > 0, lambda: chosen, lambda: k))

    check(f, KEYS, SEEDS)


@pytest.mark.full
@pytest.mark.parametrize("count", [18, 256, 400])
def test_many_numbers_are_made_in_a_loop(count):
    program = check(lambda k: jnp.sum(jax.random.uniform(k, (count,))), KEYS[:2])
    assert program.count("for") >= 1
    assert program.count() < 1000


@pytest.mark.full
@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("count", [16, 17, 18, 33])
def test_numbers_are_the_same_written_out_and_in_a_loop(count, by_position):
    def f(k):
        bits = jax.random.bits(k, (count,))
        return bits, bits[3], jax.random.bits(k, (2, count), "uint8"), jax.random.permutation(k, count)

    with jax.threefry_partitionable(by_position):
        check(f, KEYS, exact=True)


def test_batches_of_keys():
    check(lambda k: jax.vmap(jax.random.uniform)(jax.random.split(k, 3)), KEYS)


@pytest.mark.full
@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg", "philox2x32", "philox4x32", "threefry4x32"])
def test_other_kinds_of_keys_are_refused(impl):
    key, lanes = jax.random.key(3, impl=impl), jnp.arange(4)
    keys = jax.random.split(key, 4)
    words = jax.random.key_data(keys)
    programs = (
        (jax.random.bits, keys),
        (jax.random.split, keys),
        (jax.random.key_data, keys),
        (lambda k: k, keys),
        (lambda w: jax.random.bits(jax.random.wrap_key_data(w, impl=impl)), words),
        (lambda i: jax.random.bits(jax.random.fold_in(key, i)), lanes),
        (lambda i: jax.random.bits(jax.random.key(i, impl=impl)), lanes),
        (lambda i: jnp.where(i > 2, keys, keys[0]), lanes),
    )
    for f, x in programs:
        with pytest.raises(qd.UnsupportedError, match=r"threefry2x32 keys, got key<(.|\n)*impl=\"threefry2x32\""):
            qd.vmap(f)(x)


@pytest.mark.full
def test_ways_around_other_kinds_of_keys():
    fixed = jax.random.split(jax.random.key(3, impl="threefry2x32"), 4)
    assert (qd.vmap(jax.random.bits)(fixed) == jax.vmap(jax.random.bits)(fixed)).all()
    drawn = jax.vmap(jax.random.bits)(jax.random.split(jax.random.key(3, impl="rbg"), 4))
    assert (qd.vmap(lambda b: b + 1)(drawn) == drawn + 1).all()
