"""Reverse mode of `qd.while_` around parallel loops, where JAX's `while_loop` has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.compose import loops
from qdtrace.errors import GradientError
from tests.autodiff.machines import made_for

X = np.linspace(0.1, 1.0, 4)


@qd.jit
def ours(x, n, c):
    k = qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: k[()] < n):
        for i in qd.range(x.shape[0]):
            x[i] = jnp.sin(x[i]) * c + 0.1 * x[i]
        k[()] += 1
    return x


def theirs(x, n, c):
    return jax.lax.scan(lambda x, _: (jnp.sin(x) * c + 0.1 * x, None), jnp.asarray(x), None, n)[0]


def loss(f, n):
    return lambda x, c: (f(x, n, c) ** 2).sum()


@pytest.mark.sample(4)
@pytest.mark.parametrize("stack_bytes", [1, 1 << 20], ids=["six states", "all states"])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 30])
def test_first_derivatives(n, stack_bytes, monkeypatch):
    monkeypatch.setattr(loops, "STACK_BYTES", stack_bytes)
    with made_for(stack_bytes):
        got = jax.grad(loss(ours, n), (0, 1))(X, 1.1)
    want = jax.jit(jax.grad(loss(theirs, n), (0, 1)))(X, 1.1)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.full
def test_forward_and_second_derivatives():
    (_, got), (_, want) = (jax.jvp(lambda x, f=f: f(x, 5, 1.1), (X,), (X,)) for f in (ours, theirs))
    np.testing.assert_allclose(got, want, rtol=1e-12)
    got, want = (jax.jit(jax.hessian(loss(f, 5)))(X, 1.1) for f in (ours, theirs))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.full
def test_complex_numbers_that_the_loop_looks_at(n):
    """A complex scalar from outside has an adjoint and a tangent, as complex elements have."""

    @qd.jit
    def loop(x, c):
        k = qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: k[()] < n):
            for i in qd.range(x.shape[0]):
                x[i] = x[i] * c + 0.1 * x[i]
            k[()] += 1
        return x

    def unrolled(x, c):
        for _ in range(n):
            x = x * c + 0.1 * x
        return x

    args = X + 0.3j, 1.1 + 0.4j
    for transform in (
        lambda f: jax.grad(lambda x, c: jnp.real(f(x, c) ** 2).sum(), (0, 1))(*args),
        lambda f: jax.jvp(f, args, (X * 1j, 0.2 - 1j)),
        lambda f: jax.jvp(lambda x, c: jax.vjp(f, x, c)[1](X + 0j), args, (X * 1j, 0.2 - 1j)),
        lambda f: jax.vmap(lambda c: jax.vjp(f, args[0], c)[1](X + 0j))(np.array([1.1j, 0.4])),
    ):
        got, want = transform(loop), jax.jit(transform, static_argnums=0)(unrolled)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.full
def test_reverse_mode_in_the_adjoints():
    def of_adjoints(f):
        return jax.grad(lambda ct: (jax.vjp(lambda x: f(x, 5, 1.1), X)[1](ct)[0] ** 2).sum())(X + 1)

    np.testing.assert_allclose(of_adjoints(ours), of_adjoints(theirs), rtol=1e-10)


V, W = np.array([1.0, -2.0, 0.5, 0.0]), np.array([0.2, 0.3, 1.0, -1.0])


def along(g, v):
    return lambda *at: jax.jvp(g, at, v)[1]


def dot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def back(g, *bars):
    """Gradient of the product of results and given numbers."""
    return jax.grad(lambda *at: dot(g(*at), bars), (0, 1))


D1, D2 = (V, 0.7), (W, -0.4)
MODES = {
    "reverse over forward": lambda f: back(along(f, D1), 1.0),
    "reverse over reverse": lambda f: back(back(f, 1.0), *D1),
    "forward over forward": lambda f: along(along(f, D1), D2),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f, (0, 1)), (0, 1)),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 1)),
    "jacfwd of jacrev": lambda f: jax.jacfwd(jax.jacrev(f, (0, 1)), (0, 1)),
    "forward, reverse, forward": lambda f: along(back(along(f, D1), 1.0), D2),
    "reverse, forward, reverse": lambda f: back(along(back(f, 1.0), D1), *D2),
    "reverse, forward, forward": lambda f: back(along(along(f, D1), D2), 1.0),
    "forward, reverse, reverse": lambda f: along(back(back(f, 1.0), *D1), D2),
    "reverse three times": lambda f: back(back(back(f, 1.0), *D1), *D2),
    "batch of reverse over forward": lambda f: lambda x, c: jax.vmap(back(along(f, D1), 1.0), (0, None))(
        jnp.stack([x, 2 * x]), c
    ),
}
USUAL = ("reverse over forward", "jacrev of jacfwd", "reverse, forward, reverse")


@pytest.mark.sample(full=6)
@pytest.mark.parametrize("name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.full) for n in MODES])
@pytest.mark.parametrize("n", [4, pytest.param(0, marks=pytest.mark.full), pytest.param(40, marks=pytest.mark.full)])
@pytest.mark.full
def test_orders_of_modes(name, n):
    """Reverse mode over another one was refused; over a batch of directions it ended in an error of JAX."""
    with jax.enable_x64(True):
        got, want = (jax.jit(MODES[name](loss(f, n)))(jnp.array(X), 1.1) for f in (ours, theirs))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@qd.jit
def clipped(x, n):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * x, -0.05, 0.05),))
    k = qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: k[()] < n):
        for i in qd.range(x.shape[0]):
            x[i] = f(x[i]) * x[i]
        k[()] += 1
    return x


@pytest.mark.full
def test_rules_for_reverse_mode():
    """Adjoints need not be linear in adjoints, and states change forward: one of a change was given, silently."""
    slope = lambda x, bar: jax.vjp(lambda x: clipped(x, 3), x)[1](bar)[0]  # noqa: E731
    for derivative in (
        lambda: jax.jvp(lambda x: clipped(x, 3), (X,), (V,)),
        lambda: jax.jvp(lambda bar: slope(X, bar), (W,), (X,)),
        lambda: jax.grad(lambda x: slope(x, W).sum())(X),
    ):
        with pytest.raises(GradientError, match=r"`f` (has a rule for reverse mode alone|need not be one)"):
            derivative()


XS, NS, CS = np.stack([X, 2 * X, -X]), np.array([3, 0, 7]), np.array([1.1, 0.9, 1.3])


def masked(x, n, c):
    """The same with as many iterations for all, as `jax.vmap` has it."""

    def body(x, k):
        return jnp.where(k < n, jnp.sin(x) * c + 0.1 * x, x), None

    return jax.lax.scan(body, x, jnp.arange(7))[0]


def squared(f):
    return lambda x, n, c: (f(x, n, c) ** 2).sum()


BATCHES = {
    "of values": lambda f: jax.vmap(f, (0, None, None))(XS, 5, 1.1),
    "of trip counts": lambda f: jax.vmap(f, (None, 0, None))(X, NS, 1.1),
    "jvp": lambda f: jax.vmap(lambda x, n: jax.jvp(lambda x: f(x, n, 1.1), (x,), (x,)))(XS, NS),
    "jvp of one point": lambda f: jax.vmap(lambda t: jax.jvp(lambda x: f(x, 5, 1.1), (X,), (t,))[1])(XS),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 2))(X, 5, 1.1),
    "jacrev": lambda f: jax.jacrev(f, (0, 2))(X, 5, 1.1),
    "grad of vmap": lambda f: jax.grad(lambda x, c: jax.vmap(squared(f), (0, None, None))(x, 5, c).sum(), (0, 1))(
        XS, 1.1
    ),
    "grad of vmap, trip counts": lambda f: jax.jit(
        jax.value_and_grad(lambda x, c: jax.vmap(squared(f), (0, 0, None))(x, NS, c).sum(), (0, 1))
    )(XS, 1.1),
    "grad of vmap, shared values": lambda f: jax.grad(
        lambda x, c: jax.vmap(squared(f), (None, 0, None))(x, NS, c).sum(), (0, 1)
    )(X, 1.1),
    "vmap of grad": lambda f: jax.vmap(jax.grad(squared(f), (0, 2)), (0, 0, None))(XS, NS, 1.1),
    "vmap of grad, shared values": lambda f: jax.vmap(jax.grad(squared(f), (0, 2)), (None, None, 0))(X, 5, CS),
    "grad of nested": lambda f: jax.grad(
        lambda x, c: jax.vmap(jax.vmap(squared(f), (None, 0, None)), (0, None, 0))(x, NS, c).sum(), (0, 1)
    )(XS, CS),
    "vmap of hessian": lambda f: jax.vmap(jax.hessian(squared(f), (0, 2)), (0, 0, None))(XS, NS, 1.1),
}


@pytest.mark.sample(full=3)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.full
def test_batches(name):
    got, want = BATCHES[name](ours), jax.jit(BATCHES[name], static_argnums=0)(masked)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.full
def test_a_batch_thins_its_stacks(monkeypatch):
    monkeypatch.setattr(loops, "STACK_BYTES", 1)
    ns = np.array([30, 0, 17])
    with made_for(1):
        got = jax.vmap(jax.grad(squared(ours), (0, 2)), (0, 0, None))(XS, ns, 1.1)
    for k, n in enumerate(ns):
        want = jax.grad(loss(theirs, n), (0, 1))(XS[k], 1.1)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-10)


@pytest.mark.full
def test_elements_that_ended_leave_no_range():
    """The body is right while the loop goes on, and only then."""

    @qd.jit
    def sums(table, n, x):
        k, total = qd.zeros((), jnp.int32), qd.zeros(x.shape, x.dtype)
        for _ in qd.while_(lambda: k[()] < n):
            for i in qd.range(x.shape[0]):
                total[i] = jnp.sin(total[i] + table[k[()]] * x[i])
            k[()] += 1
        return total

    def rows(table, n, x):
        total = jnp.zeros_like(x)
        for k in range(n):
            total = jnp.sin(total + table[k] * x)
        return total

    table, ns = np.linspace(1, 2, 3), np.array([3, 1, 0])
    got = jax.vmap(sums, (None, 0, 0))(table, ns, XS)
    np.testing.assert_allclose(got, [rows(table, n, x) for n, x in zip(ns, XS, strict=True)], rtol=1e-13)
    got = jax.grad(lambda table: jax.vmap(sums, (None, 0, 0))(table, ns, XS).sum())(table)
    want = jax.grad(lambda table: sum(rows(table, n, x).sum() for n, x in zip(ns, XS, strict=True)))(table)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@qd.jit
def looked_up(x, table, index, n):
    """Reads two arrays that no iteration changes, behind checks, in a loop inside of another one."""
    k, m = qd.zeros((), jnp.int32), qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: k[()] < n):
        for _ in qd.while_(lambda: m[()] < 2):
            for i in qd.range(x.shape[0]):
                x[i] = jnp.sin(x[i]) * table[index[i] + k[()]] + 0.1 * x[i]
            m[()] += 1
        k[()] += 1
        m[()] = 0
    return x


INDEX = np.array([2, 0, 3, 2], np.int32)


def picked(x, table, n):
    for k in range(n):
        for _ in range(2):
            x = jnp.sin(x) * table[INDEX + k] + 0.1 * x
    return x


@pytest.mark.full
def test_arrays_that_no_iteration_changes_have_derivatives_and_are_in_no_state():
    table = np.linspace(0.5, 1.5, 8)
    mine = lambda n: lambda x, t: (looked_up(x, t, INDEX, n) ** 2).sum()  # noqa: E731
    plain = lambda n: lambda x, t: (picked(x, t, n) ** 2).sum()  # noqa: E731
    got, want = (jax.jit(jax.grad(f(3), (0, 1)))(X, table) for f in (mine, plain))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    tables, counts = np.stack([table, 0.5 * table]), jnp.array([1, 3])
    slopes = jax.vmap(lambda t, n: jax.grad(lambda t: mine(n)(X, t))(t))(tables, counts)
    for slope, t, n in zip(slopes, tables, (1, 3), strict=True):
        np.testing.assert_allclose(slope, jax.grad(lambda t, n=n: plain(n)(X, t))(t), rtol=1e-10)
    with pytest.raises(qd.BoundsError, match="index 8 is out of bounds for axis 0 of `table`"):
        qd.block_until_ready(looked_up(X, table, INDEX, 6))
    (call,) = jax.make_jaxpr(lambda x, t: looked_up(x, t, INDEX, 3))(X, table).jaxpr.eqns
    (loop,) = (e.params["loop"] for e in call.params["jaxpr"].eqns if "loop" in e.params)
    assert [a.shape for a in loop.state] == [(), (), (), (4,)]
