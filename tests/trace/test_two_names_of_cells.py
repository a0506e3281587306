"""`old = c` of a cell is a second name of it: a warning where a store changes what is read by the old name later."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

A = np.array([2.0, 9.0], np.float32)


@qd.jit
def newton(a):
    out = qd.zeros_like(a)
    for i in qd.range(a.shape[0]):
        v, error = qd.local(1.0), qd.local(1.0)
        for _ in qd.while_(lambda error=error: error.value > 1e-6):
            old = v
            v.value = 0.5 * (v + a[i] / v)  # warned
            error.value = jnp.abs(v - old)
        out[i] = v
    return out


@qd.jit
def fibonacci(a):
    out = qd.zeros_like(a)
    for i in qd.range(a.shape[0]):
        p, q = qd.local(0.0), qd.local(1.0)
        for _ in qd.range(4):
            t = p
            p.value = q  # warned
            q.value = t + q
        out[i] = p
    return out


@qd.jit
def added(a):
    for i in qd.range(a.shape[0]):
        s = qd.local(a[i])
        before = s
        s += 1.0  # warned
        a[i] = s - before
    return a


@qd.jit
def private_array(a):
    for i in qd.range(a.shape[0]):
        c = qd.local(jnp.zeros(3))
        old = c
        c[1] = a[i]  # warned
        a[i] = old[1]
    return a


@qd.vmap
def lane(a):
    s = qd.local(a)
    before = s
    s.value = 2 * s  # warned
    return s - before


@qd.jit
def kept(a):
    out = qd.zeros_like(a)
    for i in qd.range(a.shape[0]):
        v, error = qd.local(1.0), qd.local(1.0)
        for _ in qd.while_(lambda error=error: error.value > 1e-6):
            old = v.value
            v.value = 0.5 * (v + a[i] / v)
            error.value = jnp.abs(v - old)
        out[i] = v
    return out


@qd.jit
def not_read_later(a):
    for i in qd.range(a.shape[0]):
        s = qd.local(a[i])
        before = s
        twice = before + s
        s.value = twice
        a[i] = s
    return a


def store(cell, value):
    cell.value = value


@qd.jit
def by_a_helper(a):
    for i in qd.range(a.shape[0]):
        s = qd.local(a[i])
        store(s, 2 * s)
        a[i] = s
    return a


@pytest.mark.parametrize("function", [newton, fibonacci, added, private_array, lane], ids=lambda f: f.__name__)
def test_a_name_that_a_store_changes_is_warned_of(function):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        function(A)
    (warning,) = told
    assert issubclass(warning.category, qd.QdWarning)
    assert "gives one cell two names, so this store changes" in str(warning.message)
    assert ".value` to keep its content" in str(warning.message)
    with open(__file__) as file:
        assert file.read().splitlines()[warning.lineno - 1].endswith("# warned")


@pytest.mark.parametrize("function", [kept, not_read_later, by_a_helper], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("error")
def test_names_that_are_meant(function):
    got = function(A)
    want = {"kept": np.sqrt(A), "not_read_later": 2 * A, "by_a_helper": 2 * A}[function.__name__]
    np.testing.assert_allclose(got, want, rtol=1e-6)  # a rounding of Newton's last step
