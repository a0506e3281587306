"""JAX's transformations of a `qd.jit` function against those of the same function in jnp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 4))
C = 1.3


@qd.jit
def ours(x, y, c):
    """Two loops, the second in place of its argument; a captured scalar in both."""
    out = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] = jnp.sin(x[i] * y[i]) * c
    for i in qd.range(x.shape[0]):
        x[i] = out[i] * jnp.exp(-x[i])
    return x


def theirs(x, y, c):
    return jnp.sin(x * y) * c * jnp.exp(-x)


def loss(f):
    return lambda x, y, c: (f(x, y, c) ** 2).sum()


def scanned(f):
    """A function inside of `lax.scan`."""
    return lambda x, y, c: jax.lax.scan(lambda s, _: (f(s, y, c), s.sum()), x, None, length=3)[0].sum()


def branched(f):
    return lambda x, y, c: jax.lax.cond(c > 1, lambda: f(x, y, c).sum(), lambda: f(y, x, c).sum())


def with_rule_around(f):
    @jax.custom_vjp
    def g(x):
        return f(x, Y, C).sum()

    g.defvjp(lambda x: (g(x), x), lambda x, ct: (ct * f(x, Y, 2 * C),))
    return lambda x, y, c: g(x)


TRANSFORMS = {
    "grad": lambda f: jax.grad(loss(f), (0, 1, 2)),
    "value_and_grad under jit": lambda f: jax.jit(jax.value_and_grad(loss(f), (0, 1, 2))),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1, 2)),
    "jacrev": lambda f: jax.jacrev(f, (0, 1, 2)),
    "hessian": lambda f: jax.hessian(loss(f), (0, 2)),
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f)),
    "grad of grad": lambda f: jax.grad(lambda *a: jax.grad(loss(f))(*a).sum(), (0, 1, 2)),
    "third order": lambda f: jax.jacrev(jax.jacfwd(jax.grad(loss(f)))),
    "grad of hessian": lambda f: jax.grad(lambda *a: (jax.hessian(loss(f))(*a) ** 2).sum()),
    "jvp": lambda f: lambda x, y, c: jax.jvp(f, (x, y, c), (y, x, 1.0)),
    "vjp": lambda f: lambda x, y, c: jax.vjp(f, x, y, c)[1](x),
    "linearize": lambda f: lambda x, y, c: jax.linearize(f, x, y, c)[1](y, x, 2.0),
    "hvp forward over reverse": lambda f: lambda x, y, c: jax.jvp(lambda x: jax.grad(loss(f))(x, y, c), (x,), (y,)),
    "hvp reverse over forward": lambda f: jax.grad(lambda x, y, c: jax.jvp(lambda x: loss(f)(x, y, c), (x,), (y,))[1]),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(loss(f))),
    "has_aux": lambda f: jax.grad(lambda *a: (loss(f)(*a), f(*a)), has_aux=True),
    "in scan": lambda f: jax.grad(scanned(f)),
    "in a branch": lambda f: jax.grad(branched(f), (0, 1)),
    "custom_vjp around": lambda f: jax.grad(with_rule_around(f)),
    "vmap of grad": lambda f: (
        lambda x, y, c: jax.vmap(jax.grad(loss(f), (0, 1)), (0, None, None))(jnp.stack([x, y]), y, c)
    ),
    "grad of vmap": lambda f: jax.grad(
        lambda x, y, c: jax.vmap(loss(f), (None, None, 0))(x, y, jnp.stack([c, 2 * c])).sum(), (0, 1, 2)
    ),
    "nested vmap, other axes": lambda f: (
        lambda x, y, c: jax.vmap(jax.vmap(jax.grad(loss(f)), (1, None, None), 1), (None, 0, None))(
            jnp.stack([x, y], 1), jnp.stack([x, y]), c
        )
    ),
    "vmap of hessian": lambda f: (
        lambda x, y, c: jax.vmap(jax.hessian(loss(f)), (0, None, None))(jnp.stack([x, y]), y, c)
    ),
    "grad of vmap of grad": lambda f: jax.grad(
        lambda x, y, c: (jax.vmap(jax.grad(loss(f)), (None, 0, None))(x, jnp.stack([x, y]), c) ** 2).sum()
    ),
}


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("name", TRANSFORMS)
def test_like_jax(name):
    transform = TRANSFORMS[name]
    got, want = jax.jit(transform(ours))(X, Y, C), jax.jit(transform(theirs))(X, Y, C)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_integers_have_float0():
    @qd.jit
    def gather(x, k):
        out = qd.empty(k.shape, x.dtype)
        for i in qd.range(k.shape[0]):
            out[i] = x[k[i]] ** 2
        return out

    k = np.array([1, 1, 3], np.int32)
    dx, dk = jax.grad(lambda x, k: gather(x, k).sum(), (0, 1), allow_int=True)(X, k)
    assert dk.dtype == jax.dtypes.float0
    want = np.zeros(4)
    np.add.at(want, k, 2 * X[k])
    np.testing.assert_allclose(dx, want, rtol=1e-14)


@pytest.mark.full
def test_donated_arguments_are_differentiated():
    @jax.jit
    def step(x):
        return x - 0.1 * jax.grad(lambda x: loss(ours)(x, Y, C))(x)

    donating = jax.jit(step, donate_argnums=0)
    want = X - 0.1 * jax.grad(lambda x: loss(theirs)(x, Y, C))(X)
    np.testing.assert_allclose(donating(jnp.asarray(X)), want, rtol=1e-10)


def newton(a):
    return jax.lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-12, lambda s: 0.5 * (s + a / s), a * 0 + 1.5)


@pytest.mark.full
def test_a_while_loop_has_a_gradient():
    a = np.linspace(1, 9, 7)
    got = jax.grad(lambda a: qd.vmap(newton)(a).sum())(a)
    np.testing.assert_allclose(got, 0.5 / np.sqrt(a), rtol=1e-9)
    twice = jax.vmap(jax.hessian(lambda a: qd.vmap(newton)(a[None])[0]))(a)
    np.testing.assert_allclose(twice, -0.25 * a**-1.5, rtol=1e-6)
