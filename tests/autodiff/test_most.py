# ruff: noqa: B023 - conditions of loops are asked while they are traced
"""The option `most` of loops: bytes that derivatives keep, their values, and calls that have more iterations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import BoundsError, TraceTypeError, TraceValueError, UnsupportedError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from tests.autodiff.derive import derive
from tests.autodiff.lanes import advance, each
from tests.autodiff.machines import MACHINES, programs_for, stacks_of

N = np.array([-3, 0, 1, 2, 5, 8, 31, 63, 64], np.int32)
X = np.linspace(0.2, 1.4, len(N))


def while_loop(n, k, most):
    return qd.while_(lambda: k.value < n, most=most)


# the loop, and its trip count
LOOPS = {
    "range": (lambda n, k, most: qd.range(n, most=most), lambda n: n),
    "start and stop": (lambda n, k, most: qd.range(5 - n, 5, most=most), lambda n: n),
    "downwards": (lambda n, k, most: qd.range(n, 0, -1, most=most), lambda n: n),
    "in steps": (lambda n, k, most: qd.range(7, 7 + 3 * n, 3, most=most), lambda n: n),
    "step of data": (lambda n, k, most: qd.range(0, n * (n % 3 - 1), n % 3 - 1, most=most), lambda n: n * (n % 3 != 1)),
    "of 64 bits": (lambda n, k, most: qd.range(n.astype(jnp.int64), most=most), lambda n: n),
    "while": (while_loop, lambda n: n),
}


def recurrence(name, most):
    loop = LOOPS[name][0]

    @each
    def f(i, x, n):
        a, k = qd.local(x[i]), qd.local(0)
        for _ in loop(n[i], k, most):
            a.value = advance(a.value, k.value, x[i])
            k += 1
        return a.value

    return f


def by_jax(trips):
    return lambda x, n: jax.lax.fori_loop(0, jnp.maximum(trips(n), 0), lambda k, a: advance(a, k, x), x)


@pytest.mark.cpu
@pytest.mark.parametrize("name", LOOPS)
def test_bytes(name):
    low = qd.jit(jax.grad(lambda x: recurrence(name, 64)(x, N).sum())).lower(X.astype(np.float32))
    assert sum(choice.nbytes for choice in low.storage) == 64 * 4


@pytest.mark.full
@pytest.mark.sample(full=4)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", LOOPS)
def test_gradients(name, machine):
    f, theirs = recurrence(name, 64), by_jax(LOOPS[name][1])
    _, want = jax.jvp(jax.vmap(theirs), (X, N), (np.ones_like(X), np.zeros(len(X), jax.dtypes.float0)))
    with programs_for(MACHINES[machine]):
        got = jax.jit(jax.grad(lambda x: f(x, N).sum()))(X)
    np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("name", LOOPS)
def test_second_derivatives_and_batches(name):
    f, theirs = recurrence(name, 64), jax.vmap(by_jax(LOOPS[name][1]), (0, 0))
    xs = np.stack([X, X[::-1]])

    def along(function):
        return lambda x: jax.jvp(function, (x,), (jnp.ones_like(x),))[1]

    want = along(along(lambda x: theirs(x, N)))(X)
    np.testing.assert_allclose(along(jax.grad(lambda x: f(x, N).sum()))(X), want, rtol=1e-8)
    got = jax.vmap(jax.grad(lambda x: f(x, N).sum()))(xs)
    np.testing.assert_allclose(got, np.stack([jax.grad(lambda x: f(x, N).sum())(x) for x in xs]), rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["range", "while_"])
def test_loops_that_are_left_early(kind):
    @each
    def f(i, x, n):
        a, k = qd.local(x[i]), qd.local(0)
        for _ in qd.range(n[i], most=64) if kind == "range" else qd.while_(lambda: k.value < n[i], most=41):
            qd.break_if(k.value >= 40)
            a.value = advance(a.value, k.value, x[i])
            k += 1
        return a.value

    theirs = by_jax(lambda n: jnp.minimum(n, 40))
    _, want = jax.jvp(jax.vmap(theirs), (X, N), (np.ones_like(X), np.zeros(len(X), jax.dtypes.float0)))
    np.testing.assert_allclose(jax.grad(lambda x: f(x, N).sum())(X), want, rtol=1e-9)
    low = qd.jit(jax.grad(lambda x: f(x, N).sum())).lower(X)
    assert sum(c.nbytes for c in low.storage) <= 64 * (8 + 4 + 4 + 1)  # the value, two counters, whether it was left


@pytest.mark.full
@pytest.mark.cpu
def test_loops_in_loops():
    @each
    def f(i, x, n):
        a = qd.local(x[i])
        for j in qd.range(n[i] // 4, most=16):
            for k in qd.range(j, n[i] // 4, most=16):
                a.value = advance(a.value, k, x[i])
        return a.value

    def theirs(x, n):
        inner = lambda j, a: jax.lax.fori_loop(j, n // 4, lambda k, a: advance(a, k, x), a)  # noqa: E731
        return jax.lax.fori_loop(0, n // 4, inner, x)

    n = np.maximum(N, 0)
    _, want = jax.jvp(jax.vmap(theirs), (X, n), (np.ones_like(X), np.zeros(len(X), jax.dtypes.float0)))
    np.testing.assert_allclose(jax.grad(lambda x: f(x, n).sum())(X), want, rtol=1e-9)
    low = qd.jit(jax.grad(lambda x: f(x, n).sum())).lower(X)
    assert sum(c.nbytes for c in low.storage) == 2 * 16 * 8


@pytest.mark.full
def test_a_tape_of_memory_that_the_loop_changes():
    """Without the option the number of loads has no bound, and the gradient is refused."""

    def f(most):
        @qd.jit
        def scan(x, n):
            for i in qd.range(4):
                for k in qd.range(n[i], most=most):
                    x[(i + k) % 4 + 4 * i] = jnp.sin(x[(i + 2 * k) % 4 + 4 * i])
            return x

        return lambda x: scan(x, N[2:6]).sum()

    x = np.linspace(0.1, 1.0, 16)
    with pytest.raises(qd.GradientError, match=r"give each such loop its most iterations \(`most=64`\)"):
        jax.grad(f(None))(x)
    qd.check_grads(f(8), (x,))


def count(kind):
    @qd.jit
    def f(n, limit):
        out = qd.zeros(n.shape, jnp.int32)
        for i in qd.range(n.shape[0]):
            k = qd.local(0)
            for _ in qd.range(n[i], most=4) if kind == "range" else qd.while_(lambda: k.value < n[i], most=4):
                k += 1
            out[i] = k
        return out

    return f


@pytest.mark.parametrize("mode", ["raise", "clip", "unchecked"])
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(("kind", "got"), [("range", "6"), ("while_", "at least 5")])
def test_more_iterations_are_an_error_of_the_call(kind, got, debug, mode):
    f = qd.jit(count(kind).__wrapped__, options={"bounds": mode, "debug": debug})
    assert f(np.array([4, -1, 3], np.int32), 0).tolist() == [4, 0, 3]
    with pytest.raises(BoundsError) as caught:
        qd.block_until_ready(f(np.array([4, 6, 3], np.int32), 0))
    first, place, line, fix = str(caught.value).splitlines()
    assert first == f"qd.{kind} needs at most 4 iterations (most=4), got {got}"
    assert place.endswith("in f")
    assert line.strip().startswith("for _ in qd.range(n[i], most=4) if kind")
    assert fix == "help: give a larger `most`, or bounds with fewer iterations"


@pytest.mark.cpu
@pytest.mark.parametrize("kind", ["range", "while_"])
def test_more_iterations_are_an_error_of_the_gradient(kind):
    @each
    def f(i, x, n):
        a, k = qd.local(x[i]), qd.local(0)
        for _ in qd.range(n[i], most=0) if kind == "range" else qd.while_(lambda: k.value < n[i], most=0):
            a.value = jnp.sin(a.value)
            k += 1
        return a.value

    gradient = jax.jit(jax.grad(lambda x, n: f(x, n).sum()))
    assert gradient(np.ones(3), np.array([0, -1, 0])).tolist() == [1.0] * 3
    with pytest.raises(Exception, match="needs at most 0 iterations") as caught:
        gradient(np.ones(3), np.array([0, 1, 0])).block_until_ready()
    assert isinstance(qd.explain(caught.value), BoundsError)


@pytest.mark.full
def test_lanes_of_vmap_fail_alone():
    """A lane that a `lax.cond` does not take makes no check."""
    f = count("range")
    taken = lambda go, n: jax.lax.cond(go, lambda n: f(n, 0), lambda n: n, n)  # noqa: E731
    n = np.array([[3], [9]], np.int32)
    assert jax.vmap(taken)(np.array([True, False]), n).tolist() == [[3], [9]]
    with pytest.raises(Exception, match="needs at most 4 iterations") as caught:
        qd.block_until_ready(jax.vmap(taken)(np.array([True, True]), n))
    assert isinstance(qd.explain(caught.value), BoundsError)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_derivative_never_runs_past_its_stack(machine):
    """Where no check has ended the call (of several devices), a loop that has too many iterations has none."""
    program = parse_program("""
program f(x: ref[f64,2], n: ref[i32,2])
  buffer y: ref[f64,2]
  range_for i in 0:i32 : 2:i32
    v0: f64 = load x i
    v1: i32 = load n i
    v2: f64 = for k in 2:i32 : v1 : 1:i32 [most=3] carry c = v0
      v3: f64 = mul c c
      yield v3
    store y v2 i
  return y
""")
    made = derive(program, (), (True,), (True, False), stacks=stacks_of(MACHINES[machine]))
    (adjoint,) = evaluate(made, [np.array([1.5, 1.5]), np.array([4, 6], np.int32), np.ones(2)])
    assert adjoint.tolist() == [4 * 1.5**3, 1.0]


def refused(loop):
    @qd.jit
    def f(x, n):
        for i in qd.range(x.shape[0]):
            k = qd.local(0)
            for _ in loop(n[i], k):
                k += 1
        return x

    return f


@pytest.mark.parametrize("most", [-1, 2.0, True, np.int32(4), 2**30 + 1, "4"])
@pytest.mark.parametrize("name", ["range", "while_"])
def test_what_is_no_limit_is_refused(name, most):
    loop = {"range": lambda n, k: qd.range(n, most=most), "while_": lambda n, k: qd.while_(lambda: k < n, most=most)}
    with pytest.raises(TraceTypeError) as caught:
        refused(loop[name])(jnp.ones(3), jnp.ones(3, jnp.int32))
    assert str(caught.value).startswith(f"qd.{name} needs most to be an int from 0 to 2**30, got {most!r}\n")


def test_a_traced_limit_is_refused():
    with pytest.raises(TraceTypeError, match=r"most to be an int from 0 to 2\*\*30, got a traced value\n"):
        refused(lambda n, k: qd.range(n, most=n))(jnp.ones(3), jnp.ones(3, jnp.int32))


def test_a_range_of_threads_has_no_limit():
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0], most=3):
            x[i] = 1.0
        return x

    with pytest.raises(TraceValueError) as caught:
        f(jnp.ones(3))
    assert str(caught.value).splitlines()[::3] == [
        "the option most of qd.range needs a loop that one thread runs, got one whose iterations are threads",
        "help: leave it out: nothing is kept from one iteration to the next, so it would bound nothing",
    ]


@pytest.mark.full
def test_a_serial_range_has_one():
    @qd.jit
    def f(x, n):
        for k in qd.range(n, serial=True, most=3):
            x[0] = jnp.sin(x[0]) + k
        return x

    np.testing.assert_allclose(f(jnp.ones(1), 3), np.sin(np.sin(np.sin(1.0)) + 1) + 2)
    with pytest.raises(BoundsError):
        qd.block_until_ready(f(jnp.ones(1), 4))
    qd.check_grads(lambda x: f(x, 3).sum(), (np.ones(1),))


def test_a_loop_around_tasks_has_no_limit():
    @qd.jit
    def f(x):
        for _ in qd.while_(lambda: x[0] < 10, most=64):
            for i in qd.range(x.shape[0]):
                x[i] = x[i] + 1
        return x

    with pytest.raises(UnsupportedError) as caught:
        f(jnp.ones(3))
    assert str(caught.value).splitlines()[::3] == [
        "the option most of qd.while_ needs a loop that one thread runs, got one around parallel loops",
        "help: leave it out: of this loop the states that `ad_stack_memory` allows are kept",
    ]
