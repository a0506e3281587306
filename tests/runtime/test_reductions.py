"""Reductions called from JAX: the same bits every time, whatever the number of threads."""


from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Program, Var, literal, ref_type
from tests.runtime.programs import F32, I32, compiled, range_for

N = 200_003


def totals(n: int, bins: int, runtime: bool = False) -> Program:
    """The sum, the largest and a histogram of weights of n numbers, of as many as an argument says."""
    k, x = ref_var(I32, (n,), "k"), ref_var(F32, (n,), "x")
    total, largest, out, count = (ref_var(F32, s, h) for s, h in (((), "total"), ((), "largest"), ((bins,), "out"),
                                                                  ((), "count")))  # fmt: skip
    stop = ref_var(I32, (), "stop")

    def body(b: Builder, i: Var) -> None:
        value = b.load(x, i)
        b.accum(total, value)
        b.accum(largest, value, op="max")
        b.accum(out, value, b.load(k, i))
        b.accum(count, literal(1, F32))

    task = range_for(body, n, (lambda b: (literal(0, I32), b.load(stop))) if runtime else None)
    results = (total, largest, out, count)
    return Program("totals", (stop, k, x, *results), (), (task,), results)


def arguments(made: Program, stop: int) -> list[np.ndarray]:
    k, x, *results = made.params[1:]
    rng = np.random.default_rng(7)
    bins = ref_type(results[2]).size
    numbers = [rng.integers(0, bins, ref_type(k).size).astype(np.int32), rng.standard_normal(ref_type(x).size)]
    return [np.array(stop, np.int32), numbers[0], numbers[1].astype(np.float32),
            *(np.full(ref_type(r).shape, 0.5, np.float32) for r in results)]  # fmt: skip


def bits(results: Sequence[jax.Array]) -> list[bytes]:
    return [np.asarray(r).tobytes() for r in results]


@pytest.mark.full
@pytest.mark.parametrize("bins", [7, 3000, 20_000])
@pytest.mark.parametrize("runtime", [False, True])
def test_sums_have_the_same_bits_every_time_on_any_number_of_threads(bins: int, runtime: bool):
    # with bounds of unknown value a large array is not copied: its atomics come in any order
    made = totals(N, min(bins, 3000) if runtime else bins, runtime)
    given = arguments(made, N)
    wanted = None
    for threads in (1, 2, None):
        run = jax.jit(compiled(made, num_threads=threads).call)
        for _ in range(50 if threads is None else 5):
            found = bits(run(*map(jnp.asarray, given)))
            wanted = wanted or found
            assert found == wanted
    given[2] = np.round(given[2])  # sums of whole numbers are exact in any order
    got = [np.asarray(r) for r in run(*map(jnp.asarray, given))]
    exact = exact_totals(made, given)
    for g, w in zip(got, exact, strict=True):
        np.testing.assert_array_equal(g, np.asarray(w, np.float32))


def exact_totals(made: Program, given: list[np.ndarray]) -> list[np.ndarray]:
    k, x = given[1][: given[0]], given[2][: given[0]].astype(np.float64)
    bins = np.bincount(k, x, ref_type(made.results[2]).size)
    return [0.5 + x.sum(), np.max(x, initial=0.5), 0.5 + bins, np.array(0.5 + len(x))]


@pytest.mark.parametrize("stop", [0, 1, 5, 1000, N])
def test_runtime_bounds(stop: int):
    made = totals(N, 5, runtime=True)
    given = arguments(made, stop)
    given[2] = np.round(given[2])
    got = compiled(made).call(*map(jnp.asarray, given))
    wanted = exact_totals(made, given)
    if stop <= 1000:
        assert all(map(np.array_equal, wanted, evaluate(made, given)))
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w, np.float32))


@pytest.mark.full
def test_tasks_after_a_reduction_see_it():
    """Twice the same sum, and a task that reads it; in a loop of XLA's."""
    n = 50_000
    x, total, y = ref_var(F32, (n,), "x"), ref_var(F32, (1,), "total"), ref_var(F32, (n,), "y")
    zero = literal(0, I32)
    tasks = [range_for(lambda b, i: b.accum(total, b.load(x, i), zero), n) for _ in range(2)]
    tasks.append(range_for(lambda b, i: b.store(y, b.load(total, zero), i), n))
    made = Program("twice", (x, total), (y,), tuple(tasks), (total, y))
    run = compiled(made).call
    given = jnp.ones(n, jnp.float32)
    out, y_out = jax.jit(lambda t: jax.lax.fori_loop(0, 3, lambda _, s: run(given, s[0]), (t, given)))(jnp.zeros(1))
    assert out[0] == 6 * n
    assert jnp.all(y_out == 6 * n)
