"""Random keys in `qd.local`: each iteration carries its own through its loops and conditions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace import TraceTypeError

KEY = jax.random.key(3)


@pytest.mark.parametrize("debug", [False, True])
def test_a_key_is_carried_as_by_scan(debug) -> None:
    def steps(key, most):
        def body(state):
            key, total, count = state
            key, now = jax.random.split(key)
            return key, total + jax.random.uniform(now), count + 1

        return jax.lax.while_loop(lambda s: (s[1] < most) & (s[2] < 9), body, (key, 0.0, 0))

    @qd.jit(options={"debug": debug})
    def walked(key, most):
        total, count, last = qd.zeros_like(most), qd.zeros(most.shape, jnp.int32), qd.zeros_like(most)
        for i in qd.range(most.shape[0]):
            k, t, n = qd.local(jax.random.fold_in(key, i)), qd.local(0.0), qd.local(0)
            for _ in qd.while_(lambda: (t < most[i]) & (n < 9)):  # noqa: B023
                k.value, now = jax.random.split(k.value)
                t += jax.random.uniform(now)
                n += 1
            total[i], count[i], last[i] = t, n, jax.random.normal(k.value)
        return total, count, last

    most = jnp.array([0.5, 3.0, 1.5])
    keys = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(jnp.arange(3))
    end, total, count = jax.vmap(steps)(keys, most)
    got = walked(KEY, most)
    np.testing.assert_allclose(got[0], total, rtol=1e-6)
    np.testing.assert_array_equal(got[1], count)
    np.testing.assert_allclose(got[2], jax.vmap(jax.random.normal)(end), rtol=1e-5)


def test_arrays_of_keys_and_conditions() -> None:
    @qd.jit
    def drawn(keys):
        out = qd.zeros((2, 3))
        for i in qd.range(2):
            k = qd.local(jax.random.split(keys[i], 3))
            assert k.shape == (3,)
            with qd.when(i == 1):
                k[0] = k[2]
                k[1:] = jax.random.split(k[1], 2)
            for j in qd.range(3):
                out[i, j] = jax.random.uniform(k[j])
        return out

    keys = jax.random.split(KEY, 2)
    one, two = (jax.random.split(key, 3) for key in keys)
    two = jnp.concatenate([two[2:], jax.random.split(two[1], 2)])
    want = jax.vmap(jax.vmap(jax.random.uniform))(jnp.stack([one, two]))
    np.testing.assert_array_equal(drawn(keys), want)


def test_in_a_lane_with_a_derivative() -> None:
    def lane(key, scale):
        k, x = qd.local(key), qd.local(1.0)
        for _ in qd.range(4):
            k.value, now = jax.random.split(k.value)
            x.value = x + scale * x * jax.random.normal(now)
        return x.value

    def by_scan(key, scale):
        def body(state, _):
            key, now = jax.random.split(state[0])
            return (key, state[1] + scale * state[1] * jax.random.normal(now)), None

        return jax.lax.scan(body, (key, 1.0), None, length=4)[0][1]

    keys, scale = jax.random.split(KEY, 5), jnp.linspace(0.1, 0.5, 5)
    got = jax.grad(lambda s: qd.vmap(lane)(keys, s).sum())(scale)
    want = jax.grad(lambda s: jax.vmap(by_scan)(keys, s).sum())(scale)
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_only_a_key_may_be_stored() -> None:
    @qd.jit
    def mixed(x):
        for i in qd.range(2):
            k = qd.local(KEY)
            k.value = 3
            x[i] = jax.random.uniform(k.value)
        return x

    with pytest.raises(TraceTypeError, match=r"^a qd\.local of a random key needs a key"):
        mixed(jnp.zeros(2))
