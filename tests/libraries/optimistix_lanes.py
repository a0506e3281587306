"""Optimistix: root finding, least squares, minimisation, fixed points; derivatives through them."""

import jax
import jax.numpy as jnp
import optimistix as optx

from tests.libraries.lanes import Lanes, spread, uniform

OPTIMISTIX = Lanes()
TOLERANCES = {"rtol": 1e-10, "atol": 1e-10}
A = spread(0.5, 3.0)


def cubic(y, a):
    return y**3 + y - a


def pair(y, a):
    x, z = y
    return jnp.tanh(x) + z**2 - a, x * z + z - 0.3 * a


def rosenbrock(y, a):
    return jnp.stack([10 * (y[1] - y[0] ** 2), a - y[0]])


def valley(y, a):
    return jnp.sum(rosenbrock(y, a) ** 2)


@OPTIMISTIX(A, rtol=1e-8, slow=False)
def newton(a):
    return optx.root_find(cubic, optx.Newton(**TOLERANCES), 1.0, a).value


@OPTIMISTIX(A, rtol=1e-8)
def newton_of_two(a):
    return optx.root_find(pair, optx.Newton(**TOLERANCES), (1.0, 0.5), a).value


@OPTIMISTIX(A, rtol=1e-8, slow=False)
def newton_gradient(a):
    return jax.grad(lambda a: optx.root_find(cubic, optx.Newton(**TOLERANCES), 1.0, a).value)(a)


@OPTIMISTIX(A, rtol=1e-8)
def newton_jacobian(a):
    return jax.jacfwd(lambda a: jnp.stack(optx.root_find(pair, optx.Newton(**TOLERANCES), (1.0, 0.5), a).value))(a)


@OPTIMISTIX(A, rtol=1e-8)
def newton_checkpointed(a):
    def root(a):
        adjoint = optx.RecursiveCheckpointAdjoint()
        return optx.root_find(cubic, optx.Newton(**TOLERANCES), 1.0, a, adjoint=adjoint).value

    return jax.value_and_grad(root)(a)


@OPTIMISTIX(A, rtol=1e-8)
def newton_statistics(a):
    found = optx.root_find(cubic, optx.Newton(**TOLERANCES), 1.0, a, throw=False)
    return found.value, found.stats["num_steps"], found.result._value


@OPTIMISTIX(A, rtol=1e-8)
def newton_given_up(a):
    found = optx.root_find(cubic, optx.Newton(1e-14, 1e-14), 100.0, a, max_steps=3, throw=False)
    return found.value, found.stats["num_steps"], found.result._value


@OPTIMISTIX(A, rtol=1e-7, slow=False)
def chord(a):
    return optx.root_find(cubic, optx.Chord(**TOLERANCES), 1.0, a).value


@OPTIMISTIX(A, rtol=1e-7, slow=False)
def bisection(a):
    options = {"lower": 0.0, "upper": 4.0}
    return optx.root_find(cubic, optx.Bisection(**TOLERANCES), 1.0, a, options=options).value


@OPTIMISTIX(A, rtol=1e-6)
def bisection_gradient(a):
    options = {"lower": 0.0, "upper": 4.0}
    return jax.grad(lambda a: optx.root_find(cubic, optx.Bisection(**TOLERANCES), 1.0, a, options=options).value)(a)


@OPTIMISTIX(A, rtol=1e-6, slow=False)
def levenberg_marquardt(a):
    return optx.least_squares(rosenbrock, optx.LevenbergMarquardt(**TOLERANCES), jnp.array([0.5, 0.2]), a).value


@OPTIMISTIX(A, rtol=1e-6)
def levenberg_marquardt_gradient(a):
    solve = lambda a: optx.least_squares(rosenbrock, optx.LevenbergMarquardt(**TOLERANCES), jnp.array([0.5, 0.2]), a)  # noqa: E731
    return jax.jacrev(lambda a: solve(a).value)(a)


@OPTIMISTIX(A, rtol=1e-6)
def indirect_levenberg_marquardt(a):
    solver = optx.IndirectLevenbergMarquardt(**TOLERANCES)
    return optx.least_squares(rosenbrock, solver, jnp.array([0.5, 0.2]), a).value


@OPTIMISTIX(A, rtol=1e-6)
def gauss_newton(a):
    return optx.least_squares(rosenbrock, optx.GaussNewton(**TOLERANCES), jnp.array([0.5, 0.2]), a).value


@OPTIMISTIX(A, rtol=1e-6)
def gauss_newton_gradient(a):
    solve = lambda a: optx.least_squares(rosenbrock, optx.GaussNewton(**TOLERANCES), jnp.array([0.5, 0.2]), a)  # noqa: E731
    return jax.jacfwd(lambda a: solve(a).value)(a)


@OPTIMISTIX(A, uniform(6), rtol=1e-6)
def curve_fit(a, noise):
    x = jnp.linspace(0.0, 2.0, 6)
    y = a * jnp.exp(-0.5 * x) + 0.01 * noise
    residual = lambda p, _: p[0] * jnp.exp(-p[1] * x) - y  # noqa: E731
    return optx.least_squares(residual, optx.LevenbergMarquardt(**TOLERANCES), jnp.array([1.0, 1.0])).value


@OPTIMISTIX(A, rtol=1e-6)
def dogleg(a):
    return optx.least_squares(rosenbrock, optx.Dogleg(**TOLERANCES), jnp.array([0.5, 0.2]), a).value


@OPTIMISTIX(A, rtol=1e-4, slow=False)
def bfgs(a):
    return optx.minimise(valley, optx.BFGS(1e-8, 1e-8), jnp.array([0.5, 0.2]), a).value


@OPTIMISTIX(A, rtol=1e-4)
def bfgs_gradient(a):
    return jax.jacrev(lambda a: optx.minimise(valley, optx.BFGS(1e-8, 1e-8), jnp.array([0.5, 0.2]), a).value)(a)


@OPTIMISTIX(A, rtol=1e-4)
def limited_memory_bfgs(a):
    return optx.minimise(valley, optx.LBFGS(1e-8, 1e-8), jnp.array([0.5, 0.2]), a).value


@OPTIMISTIX(A, rtol=1e-4)
def nelder_mead(a):
    return optx.minimise(valley, optx.NelderMead(1e-8, 1e-8), jnp.array([0.5, 0.2]), a, max_steps=1000).value


@OPTIMISTIX(A, rtol=2e-2)  # ends 5e-3 from the minimum: `jax.jit` of one lane and of all differ by 4e-3, slopes also
def nonlinear_cg(a):
    return optx.minimise(valley, optx.NonlinearCG(1e-7, 1e-7), jnp.array([0.5, 0.2]), a, max_steps=2000).value


@OPTIMISTIX(A, rtol=1e-4, atol=1e-6)
def gradient_descent(a):
    bowl = lambda y, a: jnp.sum((y - a) ** 2) + y[0] ** 4  # noqa: E731
    return optx.minimise(bowl, optx.GradientDescent(0.05, 1e-7, 1e-7), jnp.array([0.5, 0.2]), a, max_steps=2000).value


@OPTIMISTIX(A, rtol=1e-5)
def golden(a):
    solver = optx.GoldenSearch(1e-8, 1e-8)
    return optx.minimise(lambda y, a: (y - a) ** 2, solver, 1.0, a, options={"lower": -5.0, "upper": 5.0}).value


@OPTIMISTIX(A, rtol=1e-8, slow=False)
def fixed_point(a):
    return optx.fixed_point(lambda y, a: jnp.cos(y) * 0.5 + a, optx.FixedPointIteration(**TOLERANCES), 1.0, a).value


@OPTIMISTIX(A, rtol=1e-8)
def fixed_point_gradient(a):
    find = lambda a: optx.fixed_point(lambda y, a: jnp.cos(y) * 0.5 + a, optx.FixedPointIteration(**TOLERANCES), 1.0, a)  # noqa: E731
    return jax.grad(lambda a: find(a).value)(a)


@OPTIMISTIX(A, rtol=1e-8)
def fixed_point_by_newton(a):
    return optx.fixed_point(lambda y, a: jnp.cos(y) * 0.5 + a, optx.Newton(**TOLERANCES), 1.0, a).value


@OPTIMISTIX(A, rtol=1e-5)
def best_so_far(a):
    solver = optx.BestSoFarMinimiser(optx.NelderMead(1e-8, 1e-8))
    return optx.minimise(valley, solver, jnp.array([0.5, 0.2]), a, max_steps=40, throw=False).value
