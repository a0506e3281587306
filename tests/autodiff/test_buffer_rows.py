# ruff: noqa: B023 - conditions of loops are asked while they are traced
"""Loops over rows of buffers: rows that an iteration alone accesses are private arrays in a derivative, if tapes of
what they load would be longer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import GradientError
from qdtrace.ir.printer import print_program
from tests.autodiff import buffer_rows
from tests.autodiff.machines import MACHINES
from tests.autodiff.test_random_tasks import case_of
from tests.lowering.harness import KERNELS

RNG = np.random.default_rng(0)


def cholesky(a, size):
    """The factor of each matrix in place, in its lower half."""
    for i in qd.range(a.shape[0]):
        for j in qd.range(size):
            s = qd.local(a[i, j, j])
            for k in qd.range(j):
                s.value -= a[i, j, k] * a[i, j, k]
            a[i, j, j] = jnp.sqrt(s.value)
            for r in qd.range(j + 1, size):
                t = qd.local(a[i, r, j])
                for k in qd.range(j):
                    t.value -= a[i, r, k] * a[i, j, k]
                a[i, r, j] = t.value / a[i, j, j]
    return a


def elimination(a, size):
    """Both factors of each matrix in place, without exchanges."""
    for i in qd.range(a.shape[0]):
        for j in qd.range(size):
            for r in qd.range(j + 1, size):
                a[i, r, j] = a[i, r, j] / a[i, j, j]
                for k in qd.range(j + 1, size):
                    a[i, r, k] = a[i, r, k] - a[i, r, j] * a[i, j, k]
    return a


def cholesky_of_jax(a, size):
    for j in range(size):
        a = a.at[j, j].set(jnp.sqrt(a[j, j] - jnp.sum(a[j, :j] ** 2)))
        a = a.at[j + 1 :, j].set((a[j + 1 :, j] - a[j + 1 :, :j] @ a[j, :j]) / a[j, j])
    return a


def elimination_of_jax(a, size):
    for j in range(size):
        a = a.at[j + 1 :, j].set(a[j + 1 :, j] / a[j, j])
        a = a.at[j + 1 :, j + 1 :].add(-jnp.outer(a[j + 1 :, j], a[j, j + 1 :]))
    return a


PAIRS = {"cholesky": (cholesky, cholesky_of_jax), "elimination": (elimination, elimination_of_jax)}


def matrices(lanes, size, dtype=np.float64):
    a = RNG.normal(size=(lanes, size, size))
    return (a @ a.swapaxes(1, 2) + size * np.eye(size)).astype(dtype)


def losses(name, size, **options):
    """Weighted sums of the results of a pair of functions."""
    ours, theirs = PAIRS[name]
    made = qd.jit(functools.partial(ours, size=size), options=options)
    weights = np.random.default_rng(1).normal(size=(size, size))

    def of(f):
        return lambda a: (f(a) * weights.astype(a.dtype)).sum()

    return of(made), of(jax.vmap(functools.partial(theirs, size=size)))


def rows_of(f, *args) -> str:
    """Names of the rows that are private arrays in the gradient of a function."""
    text = qd.jit(jax.grad(f)).lower(*args).graph("trace")
    return ", ".join(sorted({line.split(":")[0].strip() for line in text.splitlines() if "_row: cell" in line}))


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.sample(full=3)
@pytest.mark.parametrize("bounds", ["raise", "unchecked", "clip"])
@pytest.mark.parametrize("lanes", [1, 37])
@pytest.mark.parametrize("name", PAIRS)
def test_gradients_are_those_of_jax(name, lanes, bounds):
    ours, theirs = losses(name, 7, bounds=bounds)
    a = matrices(lanes, 7)
    want = jax.jit(jax.grad(theirs))(a)
    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        np.testing.assert_allclose(transform(ours)(a), want, rtol=1e-11, atol=1e-12)


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("name", PAIRS)
def test_gradients_in_single_precision(name):
    ours, theirs = losses(name, 7)
    a = matrices(5, 7, np.float32)
    with jax.enable_x64(True):
        want = jax.jit(jax.grad(theirs))(a.astype(np.float64))
    np.testing.assert_allclose(jax.grad(ours)(a), want, rtol=1e-4, atol=1e-5)  # seven steps of f32


@pytest.mark.parametrize("target", [None, "sm_90"])
def test_a_log_may_be_as_long_as_the_tape_in_its_place(target):
    """The matrix, its adjoint, and a number for each store; the tape of elimination has 61 KB."""
    ours, _ = losses("elimination", 20)
    a = np.ones((5, 20, 20), np.float32)
    low = qd.jit(jax.grad(ours)).lower(a, **({} if target is None else {"target": target}))
    assert 0 < low.memory_analysis()["stack_per_lane"] <= 37_000


@pytest.mark.cpu
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.full
def test_derivatives_of_derivatives_and_batches(name):
    ours, theirs = losses(name, 5)
    a, along = matrices(3, 5), RNG.normal(size=(3, 5, 5))
    for transform in (
        lambda f: jax.jvp(jax.grad(f), (a,), (along,))[1],
        lambda f: jax.grad(lambda a: (jax.grad(f)(a) * along).sum())(a),
        lambda f: jax.vmap(jax.grad(f))(jnp.stack([a, a + 0.1 * along])),
    ):
        np.testing.assert_allclose(transform(ours), jax.jit(transform, static_argnums=0)(theirs), rtol=1e-9, atol=1e-11)


@pytest.mark.cpu
@pytest.mark.full
def test_tasks_in_loops():
    """Each step of the loop around the task factorises what the step before has made."""

    @qd.jit
    def ours(a):
        n = qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: n[()] < 3):
            cholesky(a, 5)
            for i, j, k in qd.ndrange(a.shape[0], 5, 5):
                a[i, j, k] = jnp.where(k > j, 0.3, a[i, j, k] * 0.7) + jnp.where(j == k, 2.0, 0.0)
            n[()] += 1
        return a

    def theirs(a):
        for _ in range(3):
            a = jax.vmap(functools.partial(cholesky_of_jax, size=5))(a)
            a = jnp.where(np.tri(5) == 0, 0.3, a * 0.7) + 2 * jnp.eye(5)
        return a

    a, weights = matrices(4, 5), RNG.normal(size=(4, 5, 5))
    got, want = (jax.grad(lambda a, f=f: (f(a) * weights).sum())(a) for f in (ours, theirs))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


X = np.linspace(0.3, 1.2, 24).reshape(6, 4)
P = np.array([2, 0, 1, 5, 4, 3])


def sweeps(x, row, times=9):
    """Changes elements of a row in a loop; `row` gives an index of an element at iteration `t`."""
    for t in qd.range(times):
        x[row((t + 1) % 4)] = jnp.sin(x[row(t % 4)]) * x[row((t + 3) % 4)]


def at_the_index(x, p):
    for i in qd.range(6):
        sweeps(x, lambda k: (i, k))
    return x


def from_the_end(x, p):
    for i in qd.range(6):
        sweeps(x, lambda k: (5 - i, k))
    return x


def of_the_row_before(x, p):
    """The first iteration has no row, and its index would be outside."""
    for i in qd.range(7):
        with qd.when(i > 0):
            sweeps(x, lambda k: (i - 1, k))
    return x


def at_columns(x, p):
    for i in qd.range(4):
        sweeps(x, lambda k: (k, i))
    return x


def in_part(x, p):
    """Elements that are not touched are results, too."""
    for i in qd.range(6):
        with qd.when(x[i, 3] > 0.7):
            for t in qd.range(9):
                x[i, t % 2] = jnp.sin(x[i, (t + 1) % 2]) * x[i, 3]
    return x


def of_two_arrays(x, p):
    y = qd.copy(x)
    for i in qd.range(6):
        for t in qd.range(9):
            x[i, t % 4] = jnp.sin(y[i, (t + 1) % 4]) * x[i, t % 4]
            y[i, t % 4] = x[i, (t + 3) % 4] + 0.2 * y[i, t % 4]
    return x, y


def beside_integers(x, p):
    """Data of the row itself say which element is next."""
    n = qd.zeros((6, 4), jnp.int32)
    for i in qd.range(6):
        for t in qd.range(9):
            k = n[i, t % 4]
            x[i, (k + 1) % 4] = jnp.sin(x[i, k]) * x[i, t % 4]
            n[i, (k + t) % 4] = (k + 1 + (x[i, k] > 0.4)) % 4
    return x


def until_a_condition(x, p):
    for i in qd.range(6):
        k = qd.local(0)
        for _ in qd.while_(lambda: (k.value < 9) & (x[i, k.value % 4] > 0.1)):
            x[i, (k.value + 1) % 4] = jnp.sin(x[i, k.value % 4]) * x[i, (k.value + 3) % 4]
            k += 1
    return x


def one_after_the_other(x, p):
    """A serial task has the whole array to itself."""
    for t in qd.range(60, serial=True):
        x[(t + 1) % 6, t % 4] = jnp.sin(x[t % 6, (t + 1) % 4]) * x[(t + 1) % 6, t % 4]
    return x


def of_a_neighbour(x, p):
    """Two rows an iteration."""
    for i in qd.range(3):
        for t in qd.range(9):
            x[2 * i + t % 2, 0] = jnp.sin(x[2 * i + (t + 1) % 2, 0]) * x[2 * i, 1]
    return x


def where_data_say(x, p):
    for i in qd.range(6):
        sweeps(x, lambda k: (p[i], k))
    return x


def shorter_tape(x, p):
    """The tape has as many values as the row and its adjoint together."""
    for i in qd.range(6):
        sweeps(x, lambda k: (i, k), 4)
    return x


OWN = {
    at_the_index: "x_row",
    from_the_end: "x_row",
    of_the_row_before: "x_row",
    at_columns: "x_row",
    in_part: "x_row",
    of_two_arrays: "x_row, y_row",
    beside_integers: "x_row",
    until_a_condition: "x_row",
    one_after_the_other: "x_row",
    of_a_neighbour: "",
    where_data_say: "",
    shorter_tape: "",
}


def squares(f, **options):
    made = qd.jit(f, options=options)
    return lambda x: sum((leaf**2).sum() for leaf in jax.tree.leaves(made(x, P)))


@pytest.mark.sample(full=4)
@pytest.mark.full
@pytest.mark.parametrize("bounds", ["raise", "unchecked"])
@pytest.mark.parametrize("f", OWN, ids=lambda f: f.__name__)
def test_rows_that_are_private(f, bounds):
    loss = squares(f, bounds=bounds)
    assert rows_of(loss, X) == OWN[f]
    qd.check_grads(loss, (X,))


def smoothing(size, *, is_linear):
    """Sweeps over a row in place."""

    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            for _ in qd.range(3):
                for k in qd.range(1, size - 1):
                    new = 0.4 * x[i, k - 1] + 0.6 * x[i, k + 1]
                    x[i, k] = new if is_linear else jnp.sin(new) * x[i, k]
        return x

    return f


@pytest.mark.parametrize(
    ("target", "size", "is_linear", "is_private"),
    [
        ("cpu", 4096, True, True),
        ("cpu", 4097, True, False),
        ("cpu", 4097, False, True),
        ("sm_90", 1024, True, True),
        ("sm_90", 1025, True, False),
        ("sm_90", 1025, False, True),
    ],
)
def test_adjoints_alone_are_private_in_near_memory(target, size, is_linear, is_private):
    """Where no values of a row are needed, there is no tape that a private adjoint takes the place of."""
    f = smoothing(size, is_linear=is_linear)
    low = qd.jit(jax.grad(lambda x: f(x).sum())).lower(np.ones((5, size), np.float32), target=target)
    assert ("x_row" in low.graph("trace")) == is_private


@pytest.mark.full
@pytest.mark.cpu
def test_one_array_as_two_arguments():
    """Each argument is a memory of its own."""

    def ours(x, y):
        for i in qd.range(6):
            for t in qd.range(9):
                x[i, (t + 1) % 4] = jnp.sin(x[i, t % 4]) * y[i, (t + 3) % 4]
                y[i, t % 4] = y[i, (t + 1) % 4] * x[i, t % 4]
        return x, y

    def theirs(x, y):
        for t in range(9):
            x = x.at[:, (t + 1) % 4].set(jnp.sin(x[:, t % 4]) * y[:, (t + 3) % 4])
            y = y.at[:, t % 4].set(y[:, (t + 1) % 4] * x[:, t % 4])
        return x, y

    def loss(f):
        return lambda x: sum((leaf**2).sum() for leaf in f(x, x))

    assert rows_of(loss(qd.jit(ours)), X) == "x_row, y_row"
    np.testing.assert_allclose(jax.grad(loss(qd.jit(ours)))(X), jax.jit(jax.grad(loss(theirs)))(X), rtol=1e-11)


def of_rows(seed):
    """A case of the first random program from a number on that has a derivative: of a row that data name, loads may
    have no tape."""
    for number in range(10 * seed, 10 * seed + 10):
        program = buffer_rows.random_rows(number)
        case = case_of(program, buffer_rows.arguments(program, number), number)
        try:
            case.derived()
        except GradientError:
            continue
        return case
    raise AssertionError("no program has a derivative")


LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200)]


@pytest.mark.full
@pytest.mark.parametrize("seed", [*range(4), *LONG])
def test_forward_and_reverse_are_transposed(seed):
    case = of_rows(seed)
    for machine in MACHINES.values():
        case.check_transposed(machine)


@pytest.mark.full
def test_random_programs_have_rows():
    """Of most programs drawn above, and tapes in some."""
    texts = [print_program(of_rows(seed).derived()[1]) for seed in range(8)]
    assert sum("_row: cell" in text for text in texts) >= 4
    assert any("tape: cell" in text for text in texts)


@pytest.mark.sample(full=58)
@pytest.mark.parametrize(
    "target", [*(pytest.param(t, marks=pytest.mark.cpu) for t in ("avx512", "avx2", "scalar")), KERNELS]
)
@pytest.mark.parametrize("seed", [*range(8, 11), *LONG[:40]])
@pytest.mark.full
def test_machine_code(seed, target):
    of_rows(seed).check_reverse([*MACHINES.values()][seed % len(MACHINES)], target)
