"""Nested loops, conditions, jumps, cells, buffers and atomics: against plain Python on NumPy arrays."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.importer import qd
from tests.importer.tasks import run_traced

N = 7
X = np.arange(N, dtype=np.int32)


def outcome(f, *args):
    """Result and primitive names of the only task."""
    programs = []
    result = run_traced(f, *args, programs=programs)
    return result, [e.primitive.name for e in programs[-1].all_eqns]


def test_nested_range_with_traced_bounds_and_cells():
    def f(x):
        y = qd.zeros(N, "int32")
        for i in qd.range(N):
            total = qd.local(0)
            for j in qd.range(x[i], 2 * x[i], 2):
                total += j * i
            y[i] = total
        return y

    got, names = outcome(f, X)
    np.testing.assert_array_equal(got, [sum(j * i for j in range(i, 2 * i, 2)) for i in range(N)])
    assert names.count("for") == 1


JUMPS = ["break", "continue", "break in when", "continue in when", "both", "both in when", "nested when"]


@pytest.mark.parametrize("stepping", [(0, N, 1), (N, -1, -2), (2, N, 3)])
@pytest.mark.parametrize("kind", JUMPS)
def test_jumps(kind, stepping):
    start, stop, step = stepping

    def f(x):
        y, seen = qd.zeros(N, "int32"), qd.zeros((N, N + 1), "int32")
        for i in qd.range(N):
            total = qd.local(0)
            for j in qd.range(start, stop, step):
                total += 1
                if kind in ("break", "both"):
                    qd.break_if(j > x[i])
                if kind in ("continue", "both"):
                    qd.continue_if(j % 2 == 1)
                if "in when" in kind or kind == "nested when":
                    with qd.when(x[i] > 2):
                        total += 10
                        if kind == "nested when":
                            with qd.when(j > 1):
                                qd.continue_if(j == 2)
                                qd.break_if(j > 3)
                                total += 1000
                        if kind in ("break in when", "both in when"):
                            qd.break_if(j > x[i] - 2)
                        if kind in ("continue in when", "both in when"):
                            qd.continue_if(j % 2 == 0)
                        total += 100
                total += 100000
                seen[i, j] = 1
            y[i] = total
        return y, seen

    def python(x, i, seen):
        total = 0
        for j in range(start, stop, step):
            total += 1
            if kind in ("break", "both") and j > x[i]:
                break
            if kind in ("continue", "both") and j % 2 == 1:
                continue
            if ("in when" in kind or kind == "nested when") and x[i] > 2:
                total += 10
                if kind == "nested when" and j > 1:
                    if j == 2:
                        continue
                    if j > 3:
                        break
                    total += 1000
                if kind in ("break in when", "both in when") and j > x[i] - 2:
                    break
                if kind in ("continue in when", "both in when") and j % 2 == 0:
                    continue
                total += 100
            total += 100000
            seen[i, j] = 1
        return total

    (got, got_seen), names = outcome(f, X)
    seen = np.zeros((N, N + 1), np.int32)
    np.testing.assert_array_equal(got, [python(X, i, seen) for i in range(N)])
    np.testing.assert_array_equal(got_seen, seen)
    assert ("while" in names) == ("break" in kind or kind in ("both", "both in when", "nested when"))


def test_the_condition_of_a_while_is_not_read_after_a_break():
    def f(x):
        y = qd.zeros(N, "int32")
        for i in qd.range(N):
            k = qd.local(0)
            for _ in qd.while_(lambda k=k: x[k.value] >= 0):  # x[N] would be out of bounds
                k += 1
                qd.break_if(k >= N)
            y[i] = k
        return y

    np.testing.assert_array_equal(outcome(f, X)[0], np.full(N, N))


def test_continue_in_a_thread():
    def f(x):
        y = qd.zeros(N, "int32")
        for i in qd.range(N):
            qd.continue_if(x[i] == 1)
            y[i] = 1
            with qd.when(x[i] > 3):
                qd.continue_if(x[i] % 2 == 0)
                y[i] = 2
            y[i] += 10
        return y

    np.testing.assert_array_equal(outcome(f, X)[0], [11, 0, 11, 11, 1, 12, 1])


def test_large_local_array():
    def f(x):
        y = qd.zeros((N, 300), "int32")
        for i in qd.range(N):
            row = qd.local(jnp.zeros(300, jnp.int32))
            for j in qd.range(300):
                row[j] = j * x[i]
            y[i] = row.value
        return y

    got, names = outcome(f, X)
    np.testing.assert_array_equal(got, np.outer(X, np.arange(300)))
    assert len(names) < 40


@pytest.mark.full
def test_many_large_local_arrays():
    def f(x):
        y = qd.zeros(N, "int32")
        for i in qd.range(N):
            rows = [qd.local(jnp.full(5000, k, jnp.int32)) for k in range(5)]
            y[i] = sum(row[4500] for row in rows)
        return y

    np.testing.assert_array_equal(outcome(f, X)[0], 10)


def test_slices_rows_and_large_rows():
    big = np.random.default_rng(0).normal(size=(N, 6, 300)).astype(np.float32)

    def f(b):
        y, z = qd.zeros((N, 3)), qd.zeros((N, 300))
        for i in qd.range(N):
            y[i] = b[i, 1:6:2, 7]
            z[i] = b[i, i % 6] * 2
            z[i, 10:20] = b[i, 0, 20:30]
        return y, z

    y, z = run_traced(f, big)
    np.testing.assert_array_equal(y, big[:, 1:6:2, 7])
    want = 2 * big[np.arange(N), np.arange(N) % 6]
    want[:, 10:20] = big[:, 0, 20:30]
    np.testing.assert_array_equal(z, want)


def test_a_loaded_value_is_a_snapshot():
    def f(b):
        for i in qd.range(N):
            old = b[i]
            b[i] = b[i] * 0
            b[i, 0] = jnp.sum(old)
        return b

    big = np.random.default_rng(1).integers(0, 9, size=(N, 300)).astype(np.int32)
    want = np.zeros_like(big)
    want[:, 0] = big.sum(1)
    np.testing.assert_array_equal(run_traced(f, big), want)


def test_accumulations():
    def f(x):
        total, top, row = qd.zeros((), "int32"), qd.full((), -1, "int32"), qd.zeros((2, 3), "int32")
        for i in qd.range(N):
            total[()] += x[i]
            top.at[()].max(x[i])
            row[i % 2] += jnp.array([1, 2, 3], jnp.int32) * x[i]
            total.at[()].add(1)
        return total, top, row

    (total, top, row), names = outcome(f, X)
    assert (int(total), int(top)) == (X.sum() + N, N - 1)
    np.testing.assert_array_equal(row, [np.array([1, 2, 3]) * X[k::2].sum() for k in (0, 1)])
    assert names.count("accum") == 6


def test_atomics_give_the_old_value():
    def f(x):
        count, slots, lock = qd.zeros((), "int32"), qd.full(N, -1, "int32"), qd.zeros((), "int32")
        for i in qd.range(N):
            place = qd.atomic_add(count, (), 1)
            slots[place] = i
            qd.atomic_max(lock, (), i)
            qd.atomic_cas(lock, (), 6, 100)
            qd.atomic_exchange(slots, place, x[i] * 2)
        return count, slots, lock

    count, slots, lock = run_traced(f, X)
    assert (int(count), int(lock)) == (N, 100)
    np.testing.assert_array_equal(np.sort(slots), 2 * X)


def test_buffers_in_lax_loops_and_branches():
    def f(x):
        y = qd.zeros(N, "int32")
        for i in qd.range(N):

            def body(k, total, i=i):
                y[i] = y[i] + k
                with qd.when(k == 2):
                    y[i] = y[i] + 1000
                return total + x[k]

            total = lax.fori_loop(0, x[i], body, 0)
            lax.cond(total > 5, lambda i=i: y.__setitem__(i, y[i] + 1), lambda: None)
        return y

    want = [sum(range(i)) + (1000 if i > 2 else 0) + (sum(range(i)) > 5) for i in range(N)]
    np.testing.assert_array_equal(outcome(f, X)[0], want)


def test_constant_arrays_are_read_from_memory():
    table = np.random.default_rng(2).integers(0, 100, 1000).astype(np.int32)

    def f(x):
        y = qd.zeros(N, "int32")
        constant = jnp.asarray(table)
        for i in qd.range(N):
            total = qd.local(0)
            for j in qd.range(3):
                total += constant[x[i] * 100 + j]
            y[i] = total
        return y

    got, names = outcome(f, X)
    np.testing.assert_array_equal(got, [table[100 * i : 100 * i + 3].sum() for i in range(N)])
    assert names.count("select") <= 1


def test_unroll_hint_reaches_the_loop():
    def f(x):
        y = qd.zeros(N, "int32")
        for i in qd.range(N):
            total = qd.local(0)
            for j in qd.range(8, unroll=4):
                total += j
            y[i] = total
        return y

    programs = []
    run_traced(f, X, programs=programs)
    (loop,) = [e for e in programs[-1].all_eqns if e.primitive.name == "for"]
    assert loop.params.get("unroll") == 4
