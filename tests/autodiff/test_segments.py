"""Segments of a loop: programs made for a GPU, compiled for the CPU, at numbers of iterations around their length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.analysis.machine import CPU, GPU
from qdtrace.autodiff.loops.policy import LoopSize
from qdtrace.ir.walk import walk_all
from tests.autodiff.lanes import each
from tests.autodiff.machines import limited, programs_for

X = np.linspace(0.2, 1.4, 9)
CONSTANT = [0, 1, 2, 3, 7, 9, 10, 11, 12, 19, 20, 21, 40, 97, 100, 1000]


def slope(s, r):
    return 10.0 * (s[1] - s[0]), s[0] * (r - s[2]) - s[1], s[0] * s[1] - 2.6666667 * s[2]


def along(s, h, k):
    return tuple(a + h * b for a, b in zip(s, k, strict=True))


def runge_kutta(s, r, dt=0.005):
    k1 = slope(s, r)
    k2 = slope(along(s, 0.5 * dt, k1), r)
    k3 = slope(along(s, 0.5 * dt, k2), r)
    k4 = slope(along(s, dt, k3), r)
    return tuple(x + dt / 6 * (a + 2 * b + 2 * c + d) for x, a, b, c, d in zip(s, k1, k2, k3, k4, strict=True))


def lorenz(steps):
    @qd.jit
    def run(rho):
        out = qd.empty(rho.shape, rho.dtype)
        for i in qd.range(rho.shape[0]):
            state, r = [qd.local(rho.dtype.type(v)) for v in (1.0, 0.5, 0.1)], rho[i]
            for _ in qd.range(steps):
                for old, new in zip(state, runge_kutta([v.value for v in state], r), strict=True):
                    old.value = new
            out[i] = state[0].value + state[1].value * state[2].value
        return out

    return run


@jax.jit
def slopes_of_lorenz(x, trips):
    """The derivative of each lane of `lorenz(trips)` by JAX, in a program for any number of iterations."""

    def result(r):
        s = (jnp.ones_like(r), 0.5 * jnp.ones_like(r), 0.1 * jnp.ones_like(r))
        s = lax.fori_loop(0, trips, lambda _, s: runge_kutta(s, r), s)
        return s[0] + s[1] * s[2]

    return forward(result, x)


def gradient(function):
    return jax.jit(jax.grad(lambda *args: function(*args).sum()))


def forward(function, x, *more):
    """The derivative of each lane by JAX's forward mode."""
    return jax.jvp(jax.vmap(lambda x: function(x, *more)), (x,), (jnp.ones_like(x),))[1]


def stored(function, *args, machine=GPU):
    """What is kept of the one loop."""
    with programs_for(machine):
        (choice,) = qd.jit(gradient(function)).lower(*args).storage
    return choice


# How much is kept.


@pytest.mark.cpu
@pytest.mark.parametrize(("steps", "nbytes"), [(1, 1200), (2, 600), (4, 300), (5, 240), (8, 240), (10, 120)])
def test_bytes_of_a_hundred_steps(steps, nbytes):
    rho = np.ones(64, np.float32)
    machine = limited(GPU, steps=steps)
    choice = stored(lorenz(100), rho, machine=machine)
    assert choice.nbytes == nbytes
    with programs_for(machine):
        found = qd.jit(gradient(lorenz(100))).lower(rho).memory_analysis()
    assert found["stack_per_lane"] == nbytes


def test_the_reason_says_how_many_iterations_are_one():
    choice = stored(lorenz(100), np.ones(64, np.float32))
    assert choice.reason == (
        "one in 10 of at most 100 states of 12 bytes are kept, the steps between are run again at once: "
        "120 bytes a lane"
    )
    assert (choice.steps, choice.rest, choice.slots) == (10, 0, 10)


@pytest.mark.cpu
def test_every_state_on_a_cpu():
    assert stored(lorenz(100), np.ones(64, np.float32), machine=CPU).reason.startswith("all of at most 100 states")


@pytest.mark.parametrize(
    ("trips", "is_exact", "most", "steps", "rest", "segments"),
    [
        (100, True, 10, 10, 0, 10),
        (97, True, 10, 8, 1, 12),
        (0, True, 10, 1, 0, 0),
        (1, True, 10, 1, 0, 1),
        (7, True, 10, 7, 0, 1),
        (12, True, 10, 6, 0, 2),
        (11, True, 10, 8, 3, 1),
        (100, True, 1, 1, 0, 100),
        (100, False, 10, 8, 7, 13),
        (5, False, 10, 4, 3, 2),
        (None, False, 10, 8, 7, None),
        (None, False, 1, 1, 0, None),
    ],
)
def test_lengths(trips, is_exact, most, steps, rest, segments):
    size = LoopSize(trips, 12, is_exact=is_exact, most_steps=most)
    assert (size.steps(), size.rest(), size.segments()) == (steps, rest, segments)


def test_bodies_of_many_values_are_not_replayed_together():
    @each
    def run(i, x):
        a = [qd.local(x[i] + k) for k in range(30)]
        for _ in qd.range(64):
            for k in range(30):
                a[k].value = jnp.sin(a[k].value * a[k - 1].value)
        return sum(v.value for v in a)

    assert stored(run, X).steps == 1


def test_a_segment_is_straight_code():
    """One loop for the sweep and one for the walk, with no condition in them."""
    with programs_for(GPU):
        (program,) = (low := qd.jit(gradient(lorenz(100))).lower(np.ones(64, np.float32))).programs
        text = low.graph()
    loops = [e for e in program.optimised_for(GPU).all_eqns if e.primitive.name == "for"]
    assert [e.primitive.loops for e in loops] == [True, True]
    for loop in loops:
        assert not any(e.blocks for e in walk_all(loop.blocks[0].eqns))
    stores = [sum(e.primitive.name == "store" for e in loop.blocks[0].eqns) for loop in loops]
    assert stores == [3, 0]
    assert text.count("lane_max") == 0


# That it is right.


@pytest.mark.full
@pytest.mark.sample(3, full=4)
@pytest.mark.parametrize("steps", [10, 3])
@pytest.mark.parametrize("trips", CONSTANT)
def test_constant_numbers_of_iterations(trips, steps):
    with programs_for(limited(GPU, steps=steps)):
        got = gradient(lorenz(trips))(X)
    np.testing.assert_allclose(got, slopes_of_lorenz(X, trips), rtol=1e-9, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("trips", [5, 23, 30])
def test_a_loop_in_a_branch(trips):
    @each
    def ours(i, x):
        a = qd.local(x[i])
        with qd.when(x[i] > 0.7):
            for k in qd.range(trips):
                a.value = a.value + 0.1 * jnp.sin(a.value * x[i] + k)
        return a.value * a.value

    with programs_for(GPU):
        qd.check_grads(ours, (X,))


def accumulating(trips):
    @qd.jit
    def run(x, table):
        total = qd.zeros((4,), x.dtype)
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a, n = qd.local(x[i]), qd.local(jnp.int32(1))
            for k in qd.range(trips if trips is not None else i):
                n.value = (n.value * 3 + k) % 7
                a.value = a.value + 0.1 * jnp.sin(a.value * table[n.value])
                total[n.value % 4] += a.value * a.value
            out[i] = a.value
        return total, out

    return run


@pytest.mark.full
@pytest.mark.parametrize("trips", [None, 4, 25])
def test_accumulations_in_the_body_are_made_once(trips):
    """Integers are carried and name elements; the table's gradient is a sum over all iterations of all lanes."""
    table, weights = jnp.linspace(0.5, 1.5, 7), np.array([1.0, -2.0, 0.5, 3.0])

    def loss(x, table):
        total, out = accumulating(trips)(x, table)
        return (weights * total).sum() + (out**3).sum()

    x = jnp.linspace(0.2, 1.4, 40)
    with programs_for(GPU):
        np.testing.assert_allclose(jax.jit(jax.value_and_grad(loss))(x, table)[0], loss(x, table), rtol=1e-12)
        qd.check_grads(loss, (x, table))


@pytest.mark.full
@pytest.mark.parametrize("trips", [16, 19, 23])
@pytest.mark.parametrize("is_known", [True, False])
def test_checks_of_every_iteration_are_made(trips, is_known):
    """The index that is out of bounds is that of the last iteration, in a segment or in the rest."""

    @each
    def run(i, x, table, n):
        a = qd.local(x[i])
        for k in qd.range(trips if is_known else n):
            a.value = jnp.sin(a.value) * table[k * k % (trips * trips)]
        return a.value

    def slopes(size):
        return jax.jit(jax.grad(lambda x: run(x, np.ones(size), np.int32(trips)).sum()))(X)

    with programs_for(GPU):
        most = (trips - 1) ** 2
        assert np.isfinite(slopes(most + 1)).all()
        with pytest.raises(Exception, match=rf"index {most} is out of bounds for axis 0 of `table`"):
            qd.block_until_ready(slopes(most))


@pytest.mark.full
def test_memory_that_the_loop_changes():
    """An element that each iteration loads and stores, and a private array."""

    @qd.jit
    def ours(x):
        for i in qd.range(x.shape[0]):
            w = qd.local(jnp.zeros(3, x.dtype))
            for k in qd.range(22):
                w[k % 3] = jnp.cos(w[(k + 1) % 3] + x[i])
                x[i] = x[i] + 0.1 * jnp.sin(x[i] * w[k % 3])
            x[i] = x[i] * w[1]
        return x

    with programs_for(GPU):
        qd.check_grads(ours, (X,))


def arrays_of(steps, size):
    """A table that each iteration makes for itself, with indices that depend on data."""

    @each
    def ours(i, x):
        a = qd.local(x[i])
        for k in qd.range(steps):
            table = qd.local(jnp.zeros(size, x.dtype))
            place = (10 * jnp.abs(a.value)).astype(jnp.int32) % size
            table[place] = jnp.sin(a.value + k)
            table[(place + 1) % size] = a.value * x[i]
            a.value = 0.5 * a.value + table[place] * table[(place + 1) % size]
        return a.value

    return ours


@pytest.mark.full
def test_memory_of_an_iteration():
    with programs_for(GPU):
        qd.check_grads(arrays_of(21, 300), (X,))
        segments = qd.jit(gradient(arrays_of(20, 300))).lower(X)
    every = qd.jit(gradient(arrays_of(20, 300))).lower(X)
    # all iterations of a segment have the same memory
    assert segments.storage[0].steps == 10
    assert segments.memory_analysis()["stack_per_lane"] <= every.memory_analysis()["stack_per_lane"]


@pytest.mark.full
def test_short_loops_inside_are_unrolled_first():
    @each
    def ours(i, x):
        s, k = qd.local(jnp.full(3, x[i])), qd.local(jnp.zeros(3, x.dtype))
        for t in qd.range(100):
            for c in qd.range(3):
                k[c] = jnp.sin(s[(c + 1) % 3] * x[i] + t)
            for c in qd.range(3):
                s[c] += 0.05 * k[c]
        return s[0] * s[1] + s[2]

    choice = stored(ours, X)
    assert (choice.steps, choice.nbytes) == (10, 10 * 3 * X.itemsize)
    with programs_for(GPU):
        qd.check_grads(ours, (X,))


@pytest.mark.full
@pytest.mark.parametrize("trips", [20, 27])
def test_second_derivatives(trips):
    @each
    def ours(i, x):
        a = qd.local(x[i])
        for _ in qd.range(trips):
            a.value = a.value + 0.05 * jnp.sin(a.value * x[i])
        return a.value

    with programs_for(GPU):
        qd.check_grads(ours, (X,), order=2)
