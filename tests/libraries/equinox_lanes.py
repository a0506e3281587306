"""Equinox: networks, its loops, and what its filters leave in a jaxpr."""

import functools

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np

from tests.libraries.lanes import Lanes, keys, spread, uniform

EQUINOX = Lanes()


def drawn(make):
    """A network whose weights NumPy draws: JAX would compile the draw of each shape whenever tests are collected."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.uniform(-0.5, 0.5, x.shape), x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x,
        eqx.filter_eval_shape(lambda: make(key=jax.random.key(0))),
    )


NETWORK = drawn(functools.partial(eqx.nn.MLP, 3, 2, 8, 2))
DEEP = drawn(functools.partial(eqx.nn.MLP, 3, "scalar", 32, 3, activation=jnp.tanh))


@EQUINOX(uniform(3), slow=False)
def mlp(x):
    return NETWORK(x)


@EQUINOX(uniform(3), slow=False)
def mlp_gradient(x):
    return jax.grad(DEEP)(x)


@EQUINOX(uniform(3))
def mlp_parameter_gradient(x):
    grads = eqx.filter_grad(lambda net: jnp.sum(net(x) ** 2))(NETWORK)
    return jax.tree.leaves(eqx.filter(grads, eqx.is_array))


@EQUINOX(uniform(3))
def mlp_jacobian(x):
    return jax.jacfwd(NETWORK)(x), jax.jacrev(NETWORK)(x)


@EQUINOX(uniform(3))
def mlp_laplacian(x):
    return jnp.trace(jax.hessian(DEEP)(x))


@EQUINOX(uniform(3))
def jitted(x):
    return eqx.filter_jit(NETWORK)(x)


@EQUINOX(uniform(3), uniform(4, seed=1))
def recurrent(x, h):
    cell = eqx.nn.GRUCell(3, 4, key=jax.random.key(2))
    long = eqx.nn.LSTMCell(3, 4, key=jax.random.key(3))
    return cell(x, h), long(x, (h, h))


@EQUINOX(uniform(8))
def layers(x):
    norm = eqx.nn.LayerNorm(8)
    rms = eqx.nn.RMSNorm(8)
    drop = eqx.nn.Dropout(0.5, inference=True)
    return drop(norm(x)) + rms(x), eqx.nn.PReLU(0.1)(x)


@EQUINOX(uniform(2, 6))
def convolution(x):
    return eqx.nn.Conv1d(2, 3, 3, key=jax.random.key(4))(x), eqx.nn.AvgPool1d(2, 2)(x), eqx.nn.MaxPool1d(2, 2)(x)


@EQUINOX(uniform(3, 4))
def attention(x):
    return eqx.nn.MultiheadAttention(2, 4, key=jax.random.key(5))(x, x, x)


@EQUINOX(keys(), uniform(8))
def dropout(key, x):
    return eqx.nn.Dropout(0.5)(x, key=jax.random.wrap_key_data(key))


def newton(kind, **options):
    def root(a):
        def step(c):
            x, k = c
            return 0.5 * (x + a / x), k + 1

        return eqxi.while_loop(lambda c: jnp.abs(c[0] ** 2 - a) > 1e-9, step, (a, 0), kind=kind, **options)

    return root


@EQUINOX(spread(1.0, 90.0), slow=False)
def loop_lax(a):
    return newton("lax")(a)


@EQUINOX(spread(1.0, 90.0), slow=False)
def loop_checkpointed(a):
    return newton("checkpointed", checkpoints=4)(a)


@EQUINOX(spread(1.0, 90.0))
def loop_checkpointed_limited(a):
    return newton("checkpointed", max_steps=4)(a)


@EQUINOX(spread(1.0, 90.0), slow=False)
def loop_checkpointed_gradient(a):
    return jax.grad(lambda a: newton("checkpointed", checkpoints=3)(a)[0])(a)


@EQUINOX(spread(1.0, 90.0))
def loop_checkpointed_gradient_all(a):
    return jax.grad(lambda a: newton("checkpointed", max_steps=12)(a)[0])(a)


@EQUINOX(spread(1.0, 90.0))
def loop_checkpointed_gradient_long(a):
    def sine(a):
        return eqxi.while_loop(
            lambda c: c[1] < 40, lambda c: (c[0] + 0.1 * jnp.sin(c[0]), c[1] + 1), (a, 0), kind="checkpointed",
            checkpoints=4,
        )[0]  # fmt: skip

    return jax.value_and_grad(sine)(a)


@EQUINOX(spread(1.0, 90.0), slow=False)
def loop_bounded(a):
    return newton("bounded", max_steps=16)(a)


@EQUINOX(spread(1.0, 90.0))
def loop_bounded_gradient(a):
    return jax.value_and_grad(lambda a: newton("bounded", max_steps=12)(a)[0])(a)


@EQUINOX(spread(1.0, 90.0))
def loop_bounded_base(a):
    return newton("bounded", max_steps=20, base=4)(a)


@EQUINOX(spread(1.0, 90.0))
def loop_forward_derivative(a):
    return jax.jvp(lambda a: newton("lax")(a)[0], (a,), (1.0,))


def filled(kind):
    def fill(a):
        def step(c):
            k, x, out = c
            return k + 1, x * 0.5, out.at[k].set(x)

        start = (jnp.array(0), a, jnp.zeros(24))
        return eqxi.while_loop(
            lambda c: (c[0] < 24) & (c[1] > 1), step, start, kind=kind, max_steps=24, buffers=lambda c: c[2]
        )

    return fill


@EQUINOX(spread(1.0, 9000.0), slow=False)
def loop_buffers_checkpointed(a):
    return filled("checkpointed")(a)


@EQUINOX(spread(1.0, 9000.0))
def loop_buffers_lax(a):
    return filled("lax")(a)


@EQUINOX(spread(1.0, 9000.0))
def loop_buffers_bounded(a):
    return filled("bounded")(a)


@EQUINOX(spread(1.0, 9000.0))
def loop_buffers_gradient(a):
    return jax.grad(lambda a: jnp.sum(filled("checkpointed")(a)[2] ** 2))(a)


@EQUINOX(uniform(6))
def scan_checkpointed(x):
    step = lambda c, v: (jnp.sin(c + v), c * v)  # noqa: E731
    total = lambda x: sum(jnp.sum(r) for r in eqxi.scan(step, 1.0, x, kind="checkpointed", checkpoints=3))  # noqa: E731
    return total(x), jax.grad(total)(x)


@EQUINOX(spread(0.0, 3.0), slow=False)
def no_error(a):
    return eqx.error_if(a, a < -1, "a is too small") * 2


@EQUINOX(spread(0.0, 3.0), slow=False)
def no_error_gradient(a):
    return jax.grad(lambda a: eqx.error_if(a, a < -1, "a is too small") ** 2)(a)


@EQUINOX(spread(0.0, 3.0))
def no_error_of_several(a):
    return eqx.branched_error_if(a, a < -1, jnp.int32(a), ["one", "two", "three", "four"]) * 2


@EQUINOX(spread(0.0, 3.0))
def internals(a):
    y = eqxi.nondifferentiable_backward(a * 2 + 1)
    return eqxi.nextafter(a), eqxi.unvmap_any(a > 100), eqxi.unvmap_all(a > -1), eqxi.unvmap_max(jnp.int32(a) * 0), y


@EQUINOX(spread(0.0, 3.0))
def not_inlined(a):
    f = eqxi.noinline(lambda x: jnp.sin(x) * 2)
    return f(a) + f(a + 1), jax.grad(f)(a)
