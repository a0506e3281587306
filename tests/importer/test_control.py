"""lax control flow against JAX, and the form of the graph that comes out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from qdtrace.config import Options
from qdtrace.ir.program import Stage
from qdtrace.passes.pipelines import optimise
from tests.importer.harness import check

RNG = np.random.default_rng(4)
X = RNG.uniform(0.5, 4, size=(7,)).astype(np.float32)
V = RNG.normal(size=(7, 3)).astype(np.float32)
LONG = RNG.normal(size=(7, 300)).astype(np.float32)
COUNT = np.array([-3, 0, 1, 2, 5, 9, 30], np.int32)


def test_while():
    program = check(lambda a: lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-4, lambda s: 0.5 * (s + a / s), a), X)
    assert program.count("while") == 1


def test_while_with_arrays_and_integers():
    def f(v, n):
        return lax.while_loop(lambda s: s[1] < n, lambda s: (s[0] * 0.9 + v, s[1] + 2), (v, 0))

    check(f, V, COUNT)


def test_while_that_never_runs():
    check(lambda a: lax.while_loop(lambda s: s < 0, lambda s: s + 1, a), X)


def loops(imported):
    """The loops of an imported program once local rules have run."""
    program = optimise(imported.program, Options(), until=Stage.CANONICAL)
    return [e for e in program.all_eqns if e.primitive.loops]


def test_a_while_that_counts_is_a_for():
    (loop,) = loops(check(lambda a, n: lax.fori_loop(0, n, lambda k, s: s * 0.5 + k, a), X, COUNT))
    assert (loop.primitive.name, len(loop.outvars)) == ("for", 1)


def test_counted_while_with_traced_start():
    check(lambda a, n: lax.fori_loop(n, 7, lambda k, s: s * 0.5 + k, a), X, COUNT)
    check(lambda a, n: lax.fori_loop(n, n + 3, lambda k, s: s * 0.5 + k, a), X, COUNT)


def test_the_counter_itself_comes_out():
    def f(n):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (0, 1))

    (loop,) = loops(check(f, COUNT))
    assert (loop.primitive.name, len(loop.outvars)) == ("for", 1)


def test_a_loop_that_changes_its_bound_stays_a_while():
    def f(n):
        return lax.while_loop(lambda s: s[0] < s[1], lambda s: (s[0] + 1, s[1] - 1), (0, n))

    (loop,) = loops(check(f, COUNT))
    assert loop.primitive.name == "while"


def test_float_counter_stays_a_while():
    (loop,) = loops(check(lambda a: lax.while_loop(lambda s: s < a, lambda s: s + 1, 0.0), X))
    assert loop.primitive.name == "while"


def test_fori_of_constant_length_carries_no_counter():
    (loop,) = loops(check(lambda a: lax.fori_loop(0, 100, lambda k, s: s * 0.9 + k, a), X))
    assert len(loop.outvars) == 1


@pytest.mark.parametrize("bounds", [(0, 0), (0, 1), (3, 7), (5, 2)])
def test_constant_bounds(bounds):
    check(lambda a: lax.fori_loop(*bounds, lambda k, s: s + k, a), X)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 4, 5, 20])
def test_scan_over_rows(length, reverse):
    xs = RNG.normal(size=(7, length, 2)).astype(np.float32)

    def f(x0, xs):
        return lax.scan(lambda c, x: (c * 0.5 + x[0], (c, x[1] * c)), x0, xs, reverse=reverse)

    check(f, X, xs)


def test_scan_that_only_maps():
    xs = RNG.normal(size=(7, 12)).astype(np.float32)
    check(lambda xs: lax.map(lambda x: jnp.sin(x) * x, xs), xs)


def test_long_scan_with_results():
    def f(a):
        return lax.scan(lambda c, k: (c * 0.99 + k, c), a, jnp.arange(1000.0))

    program = check(f, X[:2])
    assert program.count() < 60


def test_scan_of_arrays_carries_them():
    check(lambda v: lax.scan(lambda c, _: (jnp.roll(c, 1) * 1.1, c @ v), v, None, length=8), V)


@pytest.mark.full
@pytest.mark.parametrize("length", [3, 6])
def test_rows_of_a_scan_keep_old_contents_of_a_large_carry(length):
    def f(v):
        def step(c, k):
            c = c.at[k].add(1.0)
            return c, c

        return lax.scan(step, v, jnp.arange(length))

    check(f, LONG[:2])


def test_large_carry_lives_in_memory():
    def f(v):
        return lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] * 0.5 + 1, s[1] + 1), (v, 0))

    program = check(f, LONG)
    assert program.count() < 2000


@pytest.mark.parametrize("operand", [X - 2, COUNT])
def test_cond(operand):
    program = check(lambda a: lax.cond(a > 0, lambda a: a * 2, lambda a: -a, a), operand)
    assert program.count("if") == 1


def test_cond_with_a_constant_predicate_has_no_branch():
    assert check(lambda a: lax.cond(True, jnp.sin, jnp.cos, a), X).count("if", "cos") == 0


@pytest.mark.parametrize("branches", [1, 2, 3, 5])
def test_switch_clamps_its_index(branches):
    fns = [lambda a, k=k: (a * k, jnp.float32(k)) for k in range(branches)]
    check(lambda a, n: lax.switch(n, fns, a), X, COUNT)


def test_branches_with_large_results():
    def f(a, v):
        return lax.cond(a > 1, lambda v: v * 2, lambda v: jnp.flip(v), v)

    check(f, X, LONG)
    check(lambda a, v: lax.cond(a > 1, lambda v: v.at[3].set(a), lambda v: v, v), X, LONG)


def test_branch_that_updates_in_place_and_one_that_does_not():
    def f(a, v):
        def body(k, v):
            return lax.cond(v[k] > 0, lambda v: v.at[k].set(-1.0), lambda v: v, v)

        return lax.fori_loop(0, 300, body, v)

    check(f, X, LONG)


def test_nested_control_flow():
    def f(a, n):
        def body(k, s):
            inner = lax.while_loop(lambda t: t < k, lambda t: t + a, s)
            return lax.cond(inner > 20, lambda: inner * 0.5, lambda: inner)

        return lax.fori_loop(0, n, body, a)

    check(f, X, COUNT)


def test_vmapped_while_masks_finished_elements():
    def collatz(n):
        return lax.while_loop(
            lambda s: s[0] > 1, lambda s: (jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1), (n, 0)
        )[1]

    check(lambda ns: jax.vmap(collatz)(ns), np.array([[1, 2, 3], [27, 9, 7]], np.int32))


def test_vmapped_while_with_a_carry_in_memory():
    def f(row):
        return lax.while_loop(lambda s: s[0] < 3 + row[0], lambda s: (s[0] + 1, s[1].at[2].add(s[1][0])), (0.0, row))[1]

    check(lambda rows: jax.vmap(f)(rows), RNG.normal(size=(2, 2, 150)).astype(np.float32))


def test_vmapped_cond_and_switch():
    check(lambda v: jax.vmap(lambda a: lax.cond(a > 0, jnp.sin, jnp.cos, a))(v), V)


def test_jit_checkpoint_and_custom_derivatives_are_inlined():
    @jax.custom_vjp
    def twice(x):
        return 2 * x

    twice.defvjp(lambda x: (2 * x, None), lambda _, g: (g * 2,))

    @jax.custom_jvp
    def thrice(x):
        return 3 * x

    thrice.defjvp(lambda p, t: (3 * p[0], 3 * t[0]))
    check(lambda a: jax.jit(jnp.sin)(a) + jax.checkpoint(jnp.cos)(a) + twice(a) + thrice(a) + jax.grad(twice)(a), X)


def test_forward_derivative_through_loops():
    def f(a):
        return lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 1, s[1] * a + jnp.sin(s[1])), (0, a))[1]

    def g(a):
        return jnp.sum(lax.scan(lambda c, x: (c * a + x, c), a, jnp.arange(6.0))[1])

    check(lambda a: (jax.jvp(f, (a,), (1.0,))[1], jax.grad(g)(a)), X / 4, rtol=1e-3)


def test_custom_root():
    def f(a):
        return lax.custom_root(
            lambda x: x * x - a,
            a,
            lambda f, x: lax.fori_loop(0, 20, lambda _, x: x - f(x) / (2 * x), x),
            lambda g, y: y / g(1.0),
        )

    check(f, X)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_over_rows_without_elements(reverse):
    none = np.zeros((7, 6, 0), np.float32)
    check(lambda a, x: lax.scan(lambda c, row: (c * 0.5 + row.sum(), row * c), a, x + 1, reverse=reverse), X, none)
