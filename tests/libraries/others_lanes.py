"""Quadax, Jaxopt, Interpax, and the solver of differential equations that JAX has."""

import interpax
import jax
import jax.numpy as jnp
import jaxopt
import quadax
from jax.experimental import ode

from tests.libraries.lanes import Lanes, spread, uniform

OTHERS = Lanes()
A = spread(0.5, 3.0)
STOP = {"rtol": 1e-8, "atol": 1e-8}
"""Adaptive rules end within their own tolerance."""


def wave(x, a):
    return jnp.exp(-a * x) * jnp.cos(3 * x)


@OTHERS(A, **STOP)
def quadgk(a):
    y, info = quadax.quadgk(wave, [0.0, 2.0], args=(a,))
    return y, info.status


@OTHERS(A, **STOP)
def quadgk_infinite(a):
    return quadax.quadgk(lambda x, a: jnp.exp(-a * x**2), [-jnp.inf, jnp.inf], args=(a,))[0]


@OTHERS(A, **STOP)
def quadgk_derivative(a):
    return jax.jacfwd(lambda a: quadax.quadgk(wave, [0.0, 2.0], args=(a,))[0])(a)


@OTHERS(A)
def fixed_rule_gradient(a):
    return jax.grad(lambda a: quadax.GaussKronrodRule(21).integrate(wave, 0.0, 2.0, (a,))[0])(a)


@OTHERS(A, **STOP)
def quadcc(a):
    return quadax.quadcc(wave, [0.0, 2.0], args=(a,))[0]


@OTHERS(A, **STOP)
def quadts(a):
    return quadax.quadts(lambda x, a: jnp.sqrt(x) * a, [0.0, 1.0], args=(a,))[0]


@OTHERS(A, **STOP)
def romberg(a):
    return quadax.romberg(wave, [0.0, 2.0], args=(a,), divmax=8)[0]


@OTHERS(A, slow=False, **STOP)
def fixed_rule(a):
    return quadax.GaussKronrodRule(21).integrate(wave, 0.0, 2.0, (a,))[0]


@OTHERS(uniform(7))
def sampled(y):
    x = jnp.linspace(0.0, 1.0, 7)
    return quadax.trapezoid(y, x=x), quadax.simpson(y, x=x), quadax.cumulative_trapezoid(y, x=x)


@OTHERS(A, rtol=1e-6)  # the tolerance of the solve
def odeint(a):
    return ode.odeint(lambda y, t, a: -a * y + jnp.sin(t), 1.0, jnp.linspace(0.0, 2.0, 4), a, rtol=1e-8, atol=1e-8)


def cubic(y, a):
    return y**3 + y - a


def valley(y, a):
    return 100 * (y[1] - y[0] ** 2) ** 2 + (a - y[0]) ** 2


def residual(y, a):
    return jnp.stack([10 * (y[1] - y[0] ** 2), a - y[0]])


@OTHERS(A, rtol=1e-6, slow=False)
def jaxopt_bisection(a):
    return jaxopt.Bisection(cubic, lower=0.0, upper=4.0, tol=1e-10, check_bracket=False).run(a=a).params


@OTHERS(A, rtol=1e-6)
def jaxopt_bisection_gradient(a):
    solver = jaxopt.Bisection(cubic, lower=0.0, upper=4.0, tol=1e-10, check_bracket=False)
    return jax.grad(lambda a: solver.run(a=a).params)(a)


@OTHERS(A, rtol=1e-4)
def jaxopt_bfgs(a):
    return jaxopt.BFGS(valley, tol=1e-8, maxiter=100).run(jnp.array([0.5, 0.2]), a).params


@OTHERS(A, rtol=1e-4)
def jaxopt_lbfgs(a):
    return jaxopt.LBFGS(valley, tol=1e-8, maxiter=100).run(jnp.array([0.5, 0.2]), a).params


@OTHERS(A, rtol=1e-3)
def jaxopt_lbfgs_gradient(a):
    bowl = lambda y, a: jnp.sum((y - a) ** 2) + y[0] ** 4  # noqa: E731
    return jax.jacrev(lambda a: jaxopt.LBFGS(bowl, tol=1e-9).run(jnp.array([0.5, 0.2]), a).params)(a)


@OTHERS(A, rtol=1e-3, atol=1e-5)
def jaxopt_gradient_descent(a):
    bowl = lambda y, a: jnp.sum((y - a) ** 2) + y[0] ** 4  # noqa: E731
    return jaxopt.GradientDescent(bowl, tol=1e-7, maxiter=200).run(jnp.array([0.5, 0.2]), a).params


@OTHERS(A, rtol=1e-3, atol=1e-5)
def jaxopt_projected_gradient(a):
    bowl = lambda y, a: jnp.sum((y - a) ** 2)  # noqa: E731
    solver = jaxopt.ProjectedGradient(bowl, jaxopt.projection.projection_non_negative, maxiter=100)
    return solver.run(jnp.array([0.5, 0.2]), a=a - 1).params


@OTHERS(A, rtol=1e-5)
def jaxopt_gauss_newton(a):
    return jaxopt.GaussNewton(residual, tol=1e-8).run(jnp.array([0.5, 0.2]), a).params


@OTHERS(A, rtol=1e-5)
def jaxopt_levenberg_marquardt(a):
    return jaxopt.LevenbergMarquardt(residual, tol=1e-8).run(jnp.array([0.5, 0.2]), a).params


@OTHERS(A, rtol=1e-6)
def jaxopt_fixed_point(a):
    return jaxopt.FixedPointIteration(lambda y, a: 0.5 * jnp.cos(y) + a, tol=1e-9).run(jnp.array(1.0), a).params


@OTHERS(A, rtol=1e-5)
def jaxopt_anderson(a):
    return jaxopt.AndersonAcceleration(lambda y, a: 0.5 * jnp.cos(y) + a, tol=1e-9).run(jnp.array([1.0]), a).params


@OTHERS(A, rtol=1e-5)
def jaxopt_broyden(a):
    return jaxopt.Broyden(cubic, tol=1e-9, maxiter=50).run(jnp.array([1.0]), a).params


@OTHERS(A, rtol=1e-2)  # stops where a line search fails, far from the tolerance
def jaxopt_nonlinear_cg(a):
    return jaxopt.NonlinearCG(valley, tol=1e-7, maxiter=300).run(jnp.array([0.5, 0.2]), a).params


@OTHERS(uniform(4))
def jaxopt_projections(x):
    p = jaxopt.projection
    return p.projection_simplex(x), p.projection_l1_ball(x), p.projection_l2_ball(x), p.projection_box(x, (0.0, 0.5))


@OTHERS(uniform(3, 3), uniform(3, seed=1), rtol=1e-5, atol=1e-7)
def jaxopt_linear(a, b):
    matvec = lambda x: a @ a.T @ x + x  # noqa: E731
    return jaxopt.linear_solve.solve_cg(matvec, b, tol=1e-12), jaxopt.linear_solve.solve_gmres(matvec, b, tol=1e-12)


KNOTS = jnp.linspace(0.0, 5.0, 6)


def interpolated(method):
    def run(ys, x):
        value = interpax.interp1d(x, KNOTS, ys, method=method)
        return value, jax.grad(lambda x: interpax.interp1d(x, KNOTS, ys, method=method))(x)

    run.__name__ = f"interpax_{method}"
    OTHERS(uniform(6), spread(0.2, 4.7), slow=method not in ("linear", "cubic"))(run)


for name in ("nearest", "linear", "cubic", "cubic2", "catmull-rom", "cardinal", "monotonic", "monotonic-0", "akima"):
    interpolated(name)


@OTHERS(uniform(6), spread(0.2, 4.7))
def interpax_extrapolated(ys, x):
    return interpax.interp1d(x + 4, KNOTS, ys, method="cubic", extrap=True), interpax.interp1d(x + 4, KNOTS, ys)


@OTHERS(uniform(6), spread(0.2, 7.7))
def interpax_periodic(ys, x):
    return interpax.interp1d(x, KNOTS, ys, method="cubic", period=6.0)


@OTHERS(uniform(4, 5), spread(0.2, 2.7), spread(0.1, 3.9))
def interpax_2d(f, x, y):
    xs, ys = jnp.arange(4.0), jnp.arange(5.0)
    return interpax.interp2d(x, y, xs, ys, f, method="linear"), interpax.interp2d(x, y, xs, ys, f, method="cubic")


@OTHERS(uniform(3, 3, 3), spread(0.2, 1.7))
def interpax_3d(f, x):
    ks = jnp.arange(3.0)
    return interpax.interp3d(x, x, x, ks, ks, ks, f, method="linear")


@OTHERS(uniform(6), spread(0.2, 4.7))
def interpax_splines(ys, x):
    cubic = interpax.CubicSpline(KNOTS, ys, check=False)
    pchip = interpax.PchipInterpolator(KNOTS, ys, check=False)
    akima = interpax.Akima1DInterpolator(KNOTS, ys, check=False)
    return cubic(x), cubic(x, 1), pchip(x), akima(x)


@OTHERS(uniform(6), spread(0.2, 4.7))
def interpax_prepared(ys, x):
    return interpax.Interpolator1D(KNOTS, ys, method="cubic")(x)
