"""Diffrax: explicit, implicit and stochastic solvers, controllers, what is saved, events, adjoints."""

import diffrax as dfx
import jax
import jax.numpy as jnp

from tests.libraries.lanes import Lanes, keys, spread, uniform

DIFFRAX = Lanes()
A = spread(0.5, 2.0)
PID = dfx.PIDController(rtol=1e-6, atol=1e-8)
ADAPTIVE = {"rtol": 1e-7, "atol": 1e-9}
"""Steps that a rounding accepts or rejects change results by less than the tolerance of the solve."""


def decay(t, y, a):
    return -a * y + jnp.sin(t)


def lotka(t, y, a):
    x, z = y
    return a * x - 0.5 * x * z, -0.8 * z + 0.3 * x * z


def robertson(t, y, k):
    x, z, w = y
    return jnp.stack([-0.04 * x + 1e4 * z * w, 0.04 * x - 1e4 * z * w - k * z**2, k * z**2])


def solve(a, solver, *, field=decay, y0=1.0, t1=2.0, dt0=0.1, **options):
    return dfx.diffeqsolve(dfx.ODETerm(field), solver, 0.0, t1, dt0, y0, args=a, **options)


def fixed(solver, slow=True):
    def run(a):
        return solve(a, solver()).ys

    run.__name__ = f"fixed_{solver.__name__.lower()}"
    DIFFRAX(A, slow=slow)(run)


for method in (
    dfx.Euler, dfx.Heun, dfx.Midpoint, dfx.Ralston, dfx.Bosh3, dfx.Tsit5, dfx.Dopri5, dfx.Dopri8, dfx.LeapfrogMidpoint,
    dfx.ReversibleHeun,
):  # fmt: skip
    fixed(method, slow=method not in (dfx.Euler, dfx.Dopri5))


def adaptive(solver, slow=True):
    def run(a):
        return solve(a, solver(), stepsize_controller=PID, field=lotka, y0=(1.0, a), t1=5.0).ys

    run.__name__ = f"adaptive_{solver.__name__.lower()}"
    DIFFRAX(A, **ADAPTIVE, slow=slow)(run)


for method in (dfx.Bosh3, dfx.Tsit5, dfx.Dopri5, dfx.Dopri8):
    adaptive(method, slow=method is not dfx.Tsit5)


def implicit(solver, slow=True):
    def run(k):
        start = jnp.array([1.0, 0.0, 0.0])
        return solve(
            k, solver(), stepsize_controller=PID, field=robertson, y0=start, t1=10.0, dt0=1e-4, max_steps=None
        ).ys

    run.__name__ = f"implicit_{solver.__name__.lower()}"
    DIFFRAX(spread(2e7, 4e7), rtol=1e-6, atol=1e-9, slow=slow)(run)


for method in (dfx.Kvaerno3, dfx.Kvaerno4, dfx.Kvaerno5):
    implicit(method, slow=method is not dfx.Kvaerno3)


@DIFFRAX(A)
def implicit_euler(a):
    import optimistix as optx

    return solve(a, dfx.ImplicitEuler(optx.Newton(1e-9, 1e-9))).ys


@DIFFRAX(A, rtol=2e-4)  # the tolerance of the solve: `jax.jit` of one lane and of all differ by 3e-5
def implicit_explicit(a):
    control = dfx.PIDController(rtol=1e-4, atol=1e-6)
    terms = dfx.MultiTerm(dfx.ODETerm(lambda t, y, a: jnp.sin(t) * y), dfx.ODETerm(lambda t, y, a: -a * y**3))
    return dfx.diffeqsolve(terms, dfx.KenCarp4(), 0.0, 2.0, 0.1, 1.0, args=a, stepsize_controller=control).ys


@DIFFRAX(A)
def semi_implicit_euler(a):
    terms = dfx.ODETerm(lambda t, p, a: p), dfx.ODETerm(lambda t, q, a: -a * q)
    return dfx.diffeqsolve(terms, dfx.SemiImplicitEuler(), 0.0, 2.0, 0.05, (1.0, 0.0), args=a).ys


@DIFFRAX(A, **ADAPTIVE)
def saved_at_times(a):
    return solve(a, dfx.Tsit5(), saveat=dfx.SaveAt(ts=jnp.linspace(0.0, 2.0, 9)), stepsize_controller=PID).ys


@DIFFRAX(A)
def saved_at_both_ends(a):
    solution = solve(a, dfx.Tsit5(), saveat=dfx.SaveAt(t0=True, t1=True))
    return solution.ts, solution.ys


@DIFFRAX(A, slow=False)
def saved_at_steps(a):
    solution = solve(a, dfx.Tsit5(), saveat=dfx.SaveAt(steps=True), max_steps=32)
    return solution.ts, solution.ys


@DIFFRAX(A, **ADAPTIVE)
def saved_at_all_steps_adaptive(a):
    solution = solve(a, dfx.Dopri5(), saveat=dfx.SaveAt(steps=True), max_steps=64, stepsize_controller=PID)
    return solution.ts, solution.ys, solution.stats["num_steps"]


@DIFFRAX(A, **ADAPTIVE)
def saved_function(a):
    saved = dfx.SaveAt(ts=jnp.linspace(0.0, 2.0, 5), fn=lambda t, y, args: jnp.sum(y**2))
    return solve(a, dfx.Tsit5(), field=lambda t, y, a: -a * y, y0=jnp.ones(3), saveat=saved, stepsize_controller=PID).ys


@DIFFRAX(A, **ADAPTIVE)
def saved_in_groups(a):
    groups = [dfx.SubSaveAt(ts=jnp.linspace(0.5, 2.0, 4)), dfx.SubSaveAt(t1=True, fn=lambda t, y, args: y**2)]
    return solve(a, dfx.Tsit5(), saveat=dfx.SaveAt(subs=groups), stepsize_controller=PID).ys


@DIFFRAX(A, spread(0.1, 1.9), **ADAPTIVE)
def dense(a, t):
    solution = solve(a, dfx.Tsit5(), saveat=dfx.SaveAt(dense=True), stepsize_controller=PID, max_steps=64)
    return solution.evaluate(t), solution.derivative(t)


@DIFFRAX(A, **ADAPTIVE)
def statistics(a):
    solution = solve(a, dfx.Tsit5(), stepsize_controller=PID)
    return solution.stats["num_accepted_steps"], solution.stats["num_rejected_steps"], solution.result._value


@DIFFRAX(A, **ADAPTIVE)
def controlled_by_pi(a):
    control = dfx.PIDController(rtol=1e-6, atol=1e-8, pcoeff=0.4, icoeff=0.3, dcoeff=0.1, dtmax=0.3, dtmin=1e-4)
    return solve(a, dfx.Tsit5(), stepsize_controller=control).ys


@DIFFRAX(A, **ADAPTIVE)
def step_chosen(a):
    return solve(a, dfx.Tsit5(), dt0=None, stepsize_controller=PID).ys


@DIFFRAX(A, **ADAPTIVE)
def clipped_steps(a):
    control = dfx.ClipStepSizeController(PID, step_ts=jnp.array([0.3, 1.1]), jump_ts=jnp.array([0.7]))
    field = lambda t, y, a: -a * y + jnp.where(t < 0.7, 1.0, -1.0)  # noqa: E731
    return solve(a, dfx.Tsit5(), field=field, stepsize_controller=control).ys


@DIFFRAX(A)
def steps_to(a):
    return solve(a, dfx.Tsit5(), dt0=None, stepsize_controller=dfx.StepTo(ts=jnp.array([0.0, 0.5, 1.25, 2.0]))).ys


@DIFFRAX(A, **ADAPTIVE)
def final_time_of_lanes(a):
    return solve(a, dfx.Tsit5(), t1=a, stepsize_controller=PID).ys


@DIFFRAX(A, **ADAPTIVE, slow=False)
def event(a):
    falls = dfx.Event(lambda t, y, args, **_: y < 0.4)
    solution = solve(a, dfx.Tsit5(), field=lambda t, y, a: -a * y, event=falls, stepsize_controller=PID)
    return solution.ts, solution.ys, solution.result._value


@DIFFRAX(spread(5.0, 12.0), rtol=1e-5)
def event_located(h):
    import optimistix as optx

    field = lambda t, y, args: jnp.stack([y[1], -9.81])  # noqa: E731
    ground = dfx.Event(lambda t, y, args, **_: y[0], optx.Newton(1e-8, 1e-8))
    start = jnp.stack([h, 0.0])
    solution = solve(None, dfx.Tsit5(), field=field, y0=start, t1=4.0, event=ground, stepsize_controller=PID)
    return solution.ts, solution.ys


@DIFFRAX(A, rtol=1e-5)
def event_steady(a):
    steady = dfx.Event(dfx.steady_state_event(1e-4, 1e-4))
    field = lambda t, y, a: -a * (y - 2)  # noqa: E731
    return solve(a, dfx.Tsit5(), field=field, t1=50.0, event=steady, stepsize_controller=PID).ys


def sde(solver, words, a, *, adaptive=False, levy=None):
    area = dfx.BrownianIncrement if levy is None else levy
    key = jax.random.wrap_key_data(words)
    path = dfx.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(), key=key, levy_area=area)
    terms = dfx.MultiTerm(dfx.ODETerm(lambda t, y, a: -a * y), dfx.ControlTerm(lambda t, y, a: 0.2 + 0.1 * a, path))
    control = dfx.PIDController(rtol=1e-2, atol=1e-2) if adaptive else dfx.ConstantStepSize()
    return dfx.diffeqsolve(terms, solver, 0.0, 1.0, 0.1, 1.0, args=a, stepsize_controller=control).ys


@DIFFRAX(keys(), A, slow=False)
def sde_euler(words, a):
    return sde(dfx.Euler(), words, a)


@DIFFRAX(keys(), A)
def sde_heun(words, a):
    return sde(dfx.Heun(), words, a)


@DIFFRAX(keys(), A)
def sde_milstein(words, a):
    return sde(dfx.ItoMilstein(), words, a)


@DIFFRAX(keys(), A)
def sde_srk(words, a):
    return sde(dfx.SRA1(), words, a, levy=dfx.SpaceTimeLevyArea)


@DIFFRAX(keys(), A, rtol=1e-7)
def sde_adaptive(words, a):
    return sde(dfx.SPaRK(), words, a, levy=dfx.SpaceTimeLevyArea, adaptive=True)


@DIFFRAX(keys(), A)
def sde_vector(words, a):
    key = jax.random.wrap_key_data(words)
    path = dfx.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(2,), key=key)
    noise = lambda t, y, a: jnp.stack([jnp.stack([0.1 * a, 0.2 * y[0]]), jnp.stack([y[1], 0.3 * a])])  # noqa: E731
    terms = dfx.MultiTerm(dfx.ODETerm(lambda t, y, a: -a * y), dfx.ControlTerm(noise, path))
    return dfx.diffeqsolve(terms, dfx.Euler(), 0.0, 1.0, 0.1, jnp.ones(2), args=a).ys


@DIFFRAX(keys(), A)
def sde_unsafe_path(words, a):
    path = dfx.UnsafeBrownianPath(shape=(), key=jax.random.wrap_key_data(words))
    terms = dfx.MultiTerm(dfx.ODETerm(lambda t, y, a: -a * y), dfx.ControlTerm(lambda t, y, a: 0.2, path))
    return dfx.diffeqsolve(terms, dfx.Euler(), 0.0, 1.0, 0.1, 1.0, args=a, adjoint=dfx.DirectAdjoint()).ys


@DIFFRAX(A, slow=False)
def forward_mode(a):
    return jax.jacfwd(lambda a: solve(a, dfx.Tsit5(), adjoint=dfx.ForwardMode()).ys)(a)


@DIFFRAX(A, **ADAPTIVE)
def forward_mode_adaptive(a):
    return jax.jacfwd(lambda a: solve(a, dfx.Tsit5(), adjoint=dfx.ForwardMode(), stepsize_controller=PID).ys)(a)


@DIFFRAX(A)
def direct_adjoint_forward(a):
    return jax.jacfwd(lambda a: solve(a, dfx.Tsit5(), adjoint=dfx.DirectAdjoint(), max_steps=32).ys)(a)


@DIFFRAX(A)
def direct_adjoint_gradient(a):
    return jax.grad(lambda a: solve(a, dfx.Tsit5(), adjoint=dfx.DirectAdjoint(), max_steps=32).ys[0])(a)


@DIFFRAX(A, slow=False)
def checkpointed_gradient(a):
    return jax.value_and_grad(lambda a: solve(a, dfx.Tsit5(), max_steps=64).ys[0])(a)


@DIFFRAX(A, **ADAPTIVE)
def checkpointed_gradient_adaptive(a):
    f = lambda a: solve(a, dfx.Tsit5(), field=lotka, y0=(1.0, a), stepsize_controller=PID, max_steps=256).ys[0][0]  # noqa: E731
    return jax.grad(f)(a)


@DIFFRAX(A, **ADAPTIVE)
def checkpointed_gradient_saved(a):
    saved = dfx.SaveAt(ts=jnp.linspace(0.0, 2.0, 5))
    return jax.grad(lambda a: jnp.sum(solve(a, dfx.Tsit5(), saveat=saved, max_steps=64).ys ** 2))(a)


@DIFFRAX(A, rtol=1e-6)
def backsolve_gradient(a):
    f = lambda a: solve(a, dfx.Tsit5(), adjoint=dfx.BacksolveAdjoint(), stepsize_controller=PID).ys[0]  # noqa: E731
    return jax.grad(f)(a)


@DIFFRAX(A, rtol=1e-6)
def backsolve(a):
    return solve(a, dfx.Tsit5(), adjoint=dfx.BacksolveAdjoint(), stepsize_controller=PID).ys


@DIFFRAX(A)
def direct_adjoint(a):
    return solve(a, dfx.Tsit5(), adjoint=dfx.DirectAdjoint(), max_steps=32).ys


@DIFFRAX(A, rtol=1e-6)
def implicit_gradient(a):
    return jax.grad(lambda a: solve(a, dfx.Kvaerno3(), stepsize_controller=PID, max_steps=256).ys[0])(a)


@DIFFRAX(A, rtol=1e-6)
def steady_state(a):
    steady = dfx.Event(dfx.steady_state_event(1e-6, 1e-6))
    field = lambda t, y, a: -a * (y - a**2)  # noqa: E731
    return solve(
        a, dfx.Tsit5(), field=field, t1=jnp.inf, event=steady, stepsize_controller=PID, adjoint=dfx.ImplicitAdjoint()
    ).ys


@DIFFRAX(A, rtol=1e-6)
def implicit_adjoint(a):
    return jax.grad(lambda a: steady_state(a)[0])(a)


@DIFFRAX(uniform(3), **ADAPTIVE)
def neural(y0):
    import equinox as eqx

    net = eqx.nn.MLP(3, 3, 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    f = lambda y0: jnp.sum(solve(None, dfx.Tsit5(), field=lambda t, y, args: net(y), y0=y0, max_steps=32).ys ** 2)  # noqa: E731
    return jax.value_and_grad(f)(y0)


@DIFFRAX(uniform(6), spread(0.5, 4.5))
def interpolation(ys, t):
    linear = dfx.LinearInterpolation(jnp.arange(6.0), ys)
    cubic = dfx.CubicInterpolation(jnp.arange(6.0), dfx.backward_hermite_coefficients(jnp.arange(6.0), ys))
    return linear.evaluate(t), cubic.evaluate(t), cubic.derivative(t)


@DIFFRAX(uniform(6, 2))
def controlled(ys):
    path = dfx.LinearInterpolation(jnp.arange(6.0), ys)
    field = lambda t, y, args: jnp.stack([jnp.sin(y), jnp.cos(y)])  # noqa: E731
    return dfx.diffeqsolve(dfx.ControlTerm(field, path).to_ode(), dfx.Tsit5(), 0.0, 5.0, 0.25, 1.0).ys


@DIFFRAX(A)
def not_thrown(a):
    solution = solve(a, dfx.Tsit5(), max_steps=3, throw=False)
    return solution.result._value, solution.ts
