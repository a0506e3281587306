"""Gradients of loops over every kind of range, index, argument and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from tests.autodiff.lanes import each

X = np.linspace(0.2, 1.7, 7)
N = len(X)
CASES = {}


def case(*args, bounds="raise", wrt=(0,)):
    """Registers a function that gives a program; derivatives are by the arguments `wrt`."""

    def register(make):
        CASES[make.__name__] = make, args, bounds, wrt
        return make

    return register


@case(X)
def steps_of_every_sign():
    def ours(x):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(0, N, 3):
            out[i] = x[i] ** 2
        for i in qd.range(N - 1, 0, -2):
            out[i] = out[i] + jnp.sin(x[i - 1]) * x[i]
        for i in qd.range(N):
            s = qd.local(out[i])
            for k in qd.range(6, -1, -3):
                s.value = s.value * x[k] + k
            for _ in qd.range(5, 2):
                s.value = s.value * 0
            out[i] = s.value
        return out

    return ours


@case(np.zeros(0), 2.0, wrt=(0, 1))
def nothing_to_run_over():
    def ours(x, c):
        out = qd.zeros(3, x.dtype)
        for i in qd.range(x.shape[0]):
            out.at[0].add(x[i] * c)
        for i in qd.range(3):
            out[i] = out[i] + c * c
        return out

    return ours


@case(1.3)
def memory_of_rank_0():
    def ours(x):
        out = qd.zeros((), x.dtype)
        for i in qd.range(5):
            out[()] += x * i + jnp.sin(x)
        out[()] = out[()] * x
        return out

    return ours


@case(X, np.array([0, 3, 7], np.int32))
def bounds_from_memory():
    def ours(x, b):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(b[0] + 1, b[2] - 1):
            out[i] = jnp.sin(x[i]) * x[i - 1]
        for i in qd.range(3):
            for j in qd.range(b[i] // 2, b[i]):
                out.at[i].add(x[j] * x[i])
        return out

    return ours


def gathered():
    def ours(x, k):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(N):
            out.at[k[i]].add(x[k[i]] * x[i])
        return out

    return ours


for _dtype in (np.int8, np.uint16, np.uint64):
    CASES[f"indices of {np.dtype(_dtype)}"] = gathered, (X, np.array([0, 6, 3, 3, 1, 2, 6], _dtype)), "raise", (0,)


@case(X, np.array([0, -3, 12, 6, 1, 2, 100]), bounds="clip")
def indices_out_of_range():
    """The nearest element is loaded, nothing is stored."""

    def ours(x, k):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(N):
            out[i] = x[k[i]] ** 2
        for i in qd.range(N):
            out[k[i]] = x[i] * 3
        return out

    return ours


@case(X, np.array([0, 3, 5, 6, 1, 2, 4]), bounds="unchecked")
def indices_without_checks():
    def ours(x, k):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(N):
            out[k[i]] = x[i] * x[k[i]]
        return out

    return ours


@case(X)
def one_array_as_two_arguments():
    @qd.jit
    def f(x, y):
        for i in qd.range(N):
            x[i] = x[i] * y[i] + 1
        for i in qd.range(N):
            y[i] = jnp.sin(y[i]) * x[i]
        return x, y

    return lambda x: f(x, x)


@case(X, X[::-1], wrt=(0, 1))
def unused_arguments_and_results_of_integers():
    def ours(x, y):
        out, k, z = qd.zeros(N, x.dtype), qd.zeros(N, jnp.int32), qd.full(N, 2.0, x.dtype)
        for i in qd.range(N):
            out[i] = x[i] ** 2
            k[i] = (x[i] * 3).astype(jnp.int32)
        for i in qd.range(N):
            z[i] = k[i] * 2.0
        return out, k, z

    return ours


@case(X - 1)
def branches_that_are_undefined_elsewhere():
    def ours(x):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(N):
            with qd.when(x[i] > 0):
                out[i] = jnp.sqrt(x[i]) / x[i]
            with qd.when(x[i] <= 0):
                out[i] = jnp.log(1 - x[i])
        return out

    return ours


def tasks_under_a_condition():
    def ours(x, n):
        out = qd.zeros(x.shape, x.dtype)
        with qd.when(n > 3):
            for i in qd.range(N):
                out[i] = jnp.sin(x[i])
        with qd.when(n <= 3):
            for i in qd.range(N):
                out[i] = x[i] ** 2
        for i in qd.range(N):
            out[i] = out[i] * x[i]
        return out

    return ours


for _n in (0, 5):
    CASES[f"tasks under a condition of {_n}"] = tasks_under_a_condition, (X, _n), "raise", (0,)


@case(X, 1.5, wrt=(0, 1))
def captured_values_and_arrays_between_loops():
    def ours(x, c):
        w = jnp.cos(x) * c

        def f(x):
            out = qd.zeros(x.shape, x.dtype)
            for i in qd.range(N):
                out[i] = x[i] * w[i] * c
            y = jnp.cumsum(out)
            for i in qd.range(N):
                out[i] = y[i] * x[i]
            return out

        return qd.jit(f)(x)

    return ours


@case(X)
def serial_tasks():
    def ours(x):
        out = qd.zeros(x.shape, x.dtype)
        out[0] = x[0]
        for _ in qd.range(1):
            for j in qd.range(1, N):
                out[j] = out[j - 1] * x[j] + jnp.sin(out[j - 1])
        out[2] = out[2] * out[3]
        return out

    return ours


@case(X)
def private_arrays():
    def ours(x):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(N):
            a, s = qd.local(jnp.zeros(10, x.dtype)), qd.local(jnp.zeros((), x.dtype))
            a[0] = x[i]
            for j in qd.range(1, 10):
                a[j] = jnp.sin(a[j - 1]) * x[i] + a[j // 2]
            for j in qd.range(i + 1):
                s.value = s.value + a[j] * a[9 - j]
                a[j] = a[j] * 2
            out[i] = s.value + a[0]
        return out

    return ours


@case(X)
def loops_of_lax():
    def ours(x):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(N):
            s = lax.fori_loop(0, i, lambda k, c: jnp.sin(c) * x[k], x[i])
            _, c = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + c[1] * c[1] + 0.1, c[1] * 1.1), (s, x[i]))
            out[i] = c * lax.scan(lambda c, v: (c * v + 1, c), x[i], jnp.stack([x[0], x[i], 2.0]))[0]
        return out

    return ours


@case(X)
def chains_in_place():
    def ours(x):
        for k in range(3):
            for i in qd.range(1, N):
                x[i] = jnp.sin(x[i]) * x[i] + k
            for i in qd.range(N // 2):
                x[2 * i] = x[2 * i] * x[2 * i + 1]
        total = qd.zeros((), x.dtype)
        for i in qd.range(N):
            total[()] += x[i] ** 2
        for i in qd.range(N):
            x[i] = x[i] / total[()]
        return x, total

    return ours


@case(X)
def rows_that_a_loop_goes_round():
    def ours(x):
        m = qd.zeros((N, 5), x.dtype)
        for i in qd.range(N):
            m[i, 0] = x[i]
            for k in qd.range(8):
                m[i, (k + 1) % 5] = m[i, (k + 1) % 5] + m[i, k % 5] * jnp.cos(m[i, k % 5])
        return m

    return ours


def loss(f, args, wrt):
    """A weighted sum of all results of floats, as a function of the arguments `wrt`."""

    def total(*values):
        given = dict(zip(wrt, values, strict=True))
        results = jax.tree.leaves(f(*[given.get(k, a) for k, a in enumerate(args)]))
        floats = [r for r in results if jnp.issubdtype(r.dtype, jnp.floating)]
        return sum((r * np.cos(np.arange(r.size) + k).reshape(r.shape)).sum() for k, r in enumerate(floats))

    return total


@pytest.mark.sample(full=3)
@pytest.mark.parametrize("name", CASES)
def test_derivatives(name):
    make, args, bounds, wrt = CASES[name]
    f = make() if name.find("as_two") >= 0 else qd.jit(make(), options={"bounds": bounds})
    qd.check_grads(loss(f, args, wrt), tuple(jnp.asarray(args[k]) for k in wrt), order=2)


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "limit"), [(np.float16, 2e-2), (jnp.bfloat16, 0.15), (np.float32, 1e-5)])
def test_narrow_floats(dtype, limit):
    trips = np.arange(40) % 5

    @each
    def ours(i, x, c):
        v = qd.local(x[i] * c)
        for _ in qd.range(qd_trips[i]):
            v.value = jnp.sin(v.value) + x[i]
        return v.value

    def theirs(x, c):
        v = x * c
        for k in range(4):
            v = jnp.where(k < trips, jnp.sin(v) + x, v)
        return v

    qd_trips = jnp.asarray(trips)
    x, c = jnp.linspace(0.1, 1, 40), jnp.asarray(0.75)
    got = jax.grad(lambda x, c: ours(x, c).sum(), (0, 1))(x.astype(dtype), c.astype(dtype))
    want = jax.grad(lambda x, c: theirs(x, c).sum(), (0, 1))(x, c)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == dtype
        np.testing.assert_allclose(np.asarray(g, float), w, rtol=limit)
