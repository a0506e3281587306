"""`qd.check_grads` finds derivatives that are wrong, and says where."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import GradientError, TraceValueError

X = np.linspace(0.2, 1.5, 4)


@qd.jit
def right(x, c, k):
    out, total = qd.empty(x.shape, x.dtype), qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] = jnp.sin(x[k[i]]) * c
        total[()] += x[i] ** 3
    return {"out": out, "total": total}


@pytest.mark.full
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", [1, 2])
def test_right_derivatives_pass(order, dtype):
    qd.check_grads(right, (X.astype(dtype), dtype(1.3), np.array([3, 1, 1, 0])), order=order)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_small_derivatives_of_large_values(seed):
    """What a difference loses to the rounding of the values is no fault of the derivative."""
    qd.check_grads(lambda x: 1e6 + 1e-9 * jnp.sin(3 * x).sum(), (X,), modes=["fwd"], seed=seed)
    with pytest.raises(GradientError):
        qd.check_grads(lambda x: 1e6 + slanted(x, x).sum(), (X,), modes=["fwd"], seed=seed)


@jax.custom_jvp
def slanted(x, y):
    return x * y


slanted.defjvp(lambda p, t: (p[0] * p[1], p[1] * t[0] + 1.01 * p[0] * t[1]))


def test_a_wrong_tangent():
    qd.check_grads(lambda x: slanted(x, 2.0), (X,), modes=["fwd"])
    with pytest.raises(
        GradientError, match=r"derivative of result \['b'\] by argument \[1\] disagrees at \(.,\): jvp gives"
    ):
        qd.check_grads(lambda x, y: {"a": x + y, "b": slanted(x, y)}, (X, X + 1), modes=["fwd"])


def test_a_wrong_adjoint():
    @jax.custom_vjp
    def doubled(x):
        return 2 * x

    doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (2.1 * g,))

    @jax.custom_jvp
    def f(x):
        return 2 * x

    # forward mode is right, reverse mode is that of the other function
    f.defjvp(
        lambda p, t: (2 * p[0], jax.custom_derivatives.linear_call(lambda _, t: 2 * t, lambda _, c: 2.1 * c, (), t[0]))
    )
    with pytest.raises(GradientError, match=r"derivative of result by argument \[0\] disagrees: <w, J v> gives"):
        qd.check_grads(f, (X,), modes=["rev"])


def test_a_wrong_second_derivative():
    @jax.custom_jvp
    def square(x):
        return x * x

    square.defjvp(lambda p, t: (p[0] ** 2, 2 * jax.lax.stop_gradient(p[0]) * t[0]))
    qd.check_grads(square, (X,))
    with pytest.raises(GradientError, match="tangent of result"):
        qd.check_grads(square, (X,), order=2)


def test_nothing_to_check():
    with pytest.raises(TraceValueError, match="needs an argument of floats"):
        qd.check_grads(lambda k: k, (np.arange(3),))
    with pytest.raises(
        TraceValueError, match=r"needs modes out of fwd, rev and order 1 or more, got .'backward',. and 1"
    ):
        qd.check_grads(right, (X,), modes=["backward"])


def newton(a):
    return jax.lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-6 * a, lambda s: 0.5 * (s + a / s), a)


@pytest.mark.full
def test_steps_are_a_part_of_each_element():
    """A step of a part of the largest element would make the smallest negative, and this loop endless."""
    qd.check_grads(lambda a: qd.vmap(newton)(a).sum(), (jnp.linspace(2.0, 1e6, 1000),))


SPREAD = [[1e-6, 1.0, 1e6], [1e-20, 1e-10], [0.0, 1e-3, 5.0], [0.0, 0.0], [-1e-4, 1e4], [3.0]]


@jax.custom_jvp
def steep(x):
    return 3 * x


steep.defjvp(lambda p, t: (3 * p[0], 3.6 * t[0]))


@pytest.mark.every_case
@pytest.mark.parametrize("values", SPREAD)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_elements_of_any_size(values, dtype):
    x = np.array(values, dtype)
    signs = np.sign(x)

    def same_side(x):
        if not isinstance(x, jax.core.Tracer):
            assert np.all((np.sign(x) == signs) | (signs == 0))
        return x

    qd.check_grads(lambda x: same_side(x) * jnp.sqrt(jnp.abs(x) + (signs == 0)), (x,))
    with pytest.raises(GradientError, match="jvp gives"):
        qd.check_grads(lambda x: steep(same_side(x)), (x,), modes=["fwd"])


def test_a_given_step_is_absolute():
    with pytest.raises(GradientError):  # across the kink at 0
        qd.check_grads(jnp.abs, (np.full(3, 1e-4),), modes=["fwd"], step=1.0, rtol=1e-6)
    qd.check_grads(jnp.abs, (np.full(3, 1e-4),), modes=["fwd"])
