"""Code between loops: values under conditions, loops of tasks, reads and stores of whole buffers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd


def ints(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.int32)


def test_read_before_a_loop_of_tasks_and_after() -> None:
    @qd.jit
    def f(x):
        before, after = qd.zeros_like(x), qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            before[i] = x[i]
        k = qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: k[()] < 2):
            for i in qd.range(x.shape[0]):
                x[i] = 10 * x[i]
            k[()] += 1
        for i in qd.range(x.shape[0]):
            after[i] = x[i]
        return before, after

    before, after = f(ints(5))
    np.testing.assert_array_equal(before, ints(5))
    np.testing.assert_array_equal(after, 100 * ints(5))


@pytest.mark.parametrize("flag", [False, True])
def test_loop_of_tasks_under_a_condition(flag: bool) -> None:
    @qd.jit
    def f(x, flag):
        k = qd.zeros((), jnp.int32)
        with qd.when(flag):
            for _ in qd.while_(lambda: k[()] < 3):
                for i in qd.range(x.shape[0]):
                    x[i] += 1
                k[()] += 1
        return x, k

    x, k = f(ints(5), flag)
    np.testing.assert_array_equal(x, ints(5) + 3 * flag)
    assert int(k) == 3 * flag


@pytest.mark.full
def test_jumps_in_a_loop_of_tasks() -> None:
    @qd.jit
    def f(x, leave, skip):
        k, skipped = qd.zeros((), jnp.int32), qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: k[()] < 10):
            k[()] += 1
            for i in qd.range(x.shape[0]):
                x[i] += 1
            with qd.when(k[()] > 2):
                skipped[()] += 1
                qd.continue_if(x[0] % skip == 0)
                qd.break_if(x[0] >= leave)
                skipped[()] -= 1
            for i in qd.range(x.shape[0]):
                x[i] += 10
        return x, k, skipped

    def want(leave: int, skip: int) -> tuple[int, int, int]:
        x = k = skipped = 0
        while k < 10:
            k += 1
            x += 1
            if k > 2:
                skipped += 1
                if x % skip == 0:
                    continue
                if x >= leave:
                    break
                skipped -= 1
            x += 10
        return x, k, skipped

    for leave, skip in ((40, 3), (1000, 4), (0, 5)):
        x, k, skipped = f(ints(5), leave, skip)
        x0, k0, skipped0 = want(leave, skip)
        np.testing.assert_array_equal(x, ints(5) + x0)
        assert (int(k), int(skipped)) == (k0, skipped0)


def test_store_in_the_condition_of_a_loop_of_tasks() -> None:
    @qd.jit
    def f(x):
        k = qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: qd.atomic_add(k, (), 1) < 3):
            for i in qd.range(x.shape[0]):
                x[i] += 1
        return x

    with pytest.raises(qd.UnsupportedError) as caught:
        f(ints(5))
    rule, _, _, fix = str(caught.value).splitlines()
    assert rule == "needs a condition without stores in a qd.while_ around loops"
    assert fix == "help: store in the body of the loop"


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("n", [4, 40, 400])
def test_values_read_under_a_condition_with_tasks(n: int, flag: bool) -> None:
    @qd.jit
    def f(x, flag, k):
        out = qd.zeros((2,), x.dtype)
        with qd.when(flag):
            v = x[k]  # k is out of bounds where the flag is false
            x[0] += v
            out[0] = 2 * v + 1
            out[1] = qd.atomic_add(x, 1, v)
            for i in qd.range(x.shape[0]):
                x[i] += v
        return x, out

    x, out = f(ints(n), flag, n - 1 if flag else 10**6)
    want, v = ints(n), n - 1
    if flag:
        want[0] += v
        want[1] += v
        want += v
    np.testing.assert_array_equal(x, want)
    np.testing.assert_array_equal(out, [2 * v + 1, 1] if flag else [0, 0])


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("width", [3, 40])
def test_rows_under_a_condition_with_tasks(width: int, flag: bool) -> None:
    @qd.jit
    def f(x, flag, k):
        with qd.when(flag):
            row = x[k]
            x[0] = row + 1
            x.at[1].max(row)
            x[k, 1:3] = 7
            for i in qd.range(x.shape[0]):
                x[i, 0] += row[1]
        return x

    x = np.arange(4 * width, dtype=np.int32).reshape(4, width)
    want = x.copy()
    if flag:
        want[0] = x[3] + 1
        want[1] = x[3]
        want[3, 1:3] = 7
        want[:, 0] += x[3, 1]
    np.testing.assert_array_equal(f(x, flag, 3), want)


@pytest.mark.parametrize("flag", [False, True])
def test_lax_loop_under_a_condition_with_tasks(flag: bool) -> None:
    @qd.jit
    def f(x, flag):
        total = qd.zeros((), x.dtype)
        with qd.when(flag):
            s = jax.lax.fori_loop(0, 3, lambda k, t: t + x[k], jnp.int32(0))
            for _ in qd.range(x.shape[0]):
                total[()] += s
        return total

    assert int(f(ints(5), flag)) == (15 if flag else 0)


@pytest.mark.full
def test_large_result_of_a_lax_loop_over_a_buffer() -> None:
    @qd.jit
    def f(x):
        _, rows = jax.lax.scan(lambda c, k: (c + x[k], c + x[k] * jnp.arange(7)), jnp.int32(0), jnp.arange(50))
        for i in qd.range(50):
            x[i] = jnp.sum(rows[i])
        return x, rows

    x, rows = f(ints(50))
    before = np.concatenate([[0], np.cumsum(ints(50))[:-1]])
    want = before[:, None] + ints(50)[:, None] * np.arange(7)
    np.testing.assert_array_equal(rows, want)
    np.testing.assert_array_equal(x, want.sum(1))


@pytest.mark.full
@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("under", [False, True])
def test_complex_rows_between_loops(n: int, under: bool) -> None:
    def f(x, k, flag):
        def change():
            row = x[k]
            x[0] = row * 2
            x.at[1].add(row)
            x[2, 1] = 1j

        if under:
            with qd.when(flag):
                change()
                for i in qd.range(x.shape[0]):
                    x[i, 0] = x[i, 0] + 1
        else:
            change()
        return x

    x = (np.arange(4 * n) + 1j).astype(np.complex64).reshape(4, n)
    want = x.copy()
    want[0] = x[3] * 2
    want[1] += x[3]
    want[2, 1] = 1j
    want[:, 0] += under
    np.testing.assert_array_equal(qd.jit(f)(x, 3, True), want)


@pytest.mark.full
def test_keys_between_loops() -> None:
    @qd.jit
    def f(key, x):
        keys = jax.random.split(key, 3)
        for i in qd.range(x.shape[0]):
            x[i] = jax.random.uniform(jax.random.fold_in(keys[1], i))
        k = jax.random.fold_in(key, x.shape[0])
        return x, keys, k

    key = jax.random.key(3)
    x, keys, k = f(key, np.zeros(5, np.float32))
    want = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(jax.random.split(key, 3)[1], i)))(jnp.arange(5))
    np.testing.assert_array_equal(x, want)
    assert jnp.all(keys == jax.random.split(key, 3))
    assert jnp.all(k == jax.random.fold_in(key, 5))


def test_same_array_twice_and_results_twice() -> None:
    @qd.jit
    def f(a, b):
        for i in qd.range(a.shape[0]):
            a[i] = b[i] + 1
        c = a
        for i in qd.range(a.shape[0]):
            c[i] = 2 * c[i]
        return a, b, c, a

    x = jnp.arange(4)
    a, b, c, d = f(x, x)
    for y in (a, c, d):
        np.testing.assert_array_equal(y, 2 * (ints(4) + 1))
    np.testing.assert_array_equal(b, ints(4))


def test_a_buffer_read_whole_keeps_its_old_content() -> None:
    @qd.jit
    def f(x):
        old, view = x[...], jnp.asarray(x)
        x[0] = 100
        for i in qd.range(x.shape[0]):
            x[i] += old[i]
        return old, view, x, x + old

    old, view, x, both = f(ints(4))
    np.testing.assert_array_equal(old, ints(4))
    np.testing.assert_array_equal(view, ints(4))
    np.testing.assert_array_equal(x, [100, 2, 4, 6])
    np.testing.assert_array_equal(both, [100, 3, 6, 9])


def test_dead_buffers_make_no_program() -> None:
    def f(x):
        dead = qd.zeros(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            dead[i] = x[i]
        return x

    assert len(qd.jit(f).lower(ints(4)).programs) == 0
    np.testing.assert_array_equal(qd.jit(f)(ints(4)), ints(4))


def test_large_arrays_inside_of_small_code_are_left_to_xla() -> None:
    @jax.jit
    def total(s):
        return jnp.sum(jnp.arange(1000) * s)

    def f(x):
        x[0] = 3
        s = total(x[0])
        for i in qd.range(x.shape[0]):
            x[i] += s
        return x

    jitted, kernels = counted(f)
    assert kernels(ints(4)) == [1, 1]
    np.testing.assert_array_equal(jitted(ints(4)), [3 + 3 * 499500, *(k + 3 * 499500 for k in (1, 2, 3))])


def test_undefined_content_may_be_returned() -> None:
    @qd.jit
    def f():
        return qd.empty((3,), jnp.float32)

    assert f().shape == (3,)


@pytest.mark.parametrize("empty", [(0,), (0, 3), (3, 0)])
def test_empty_arrays(empty: tuple[int, ...]) -> None:
    @qd.jit
    def f(x):
        y = qd.ones(x.shape, x.dtype)
        for k in qd.ndrange(*x.shape):
            y[k] = x[k] + 1
        x[...] = y * 2
        return x, y, jnp.sum(x[...])

    x, y, total = f(np.zeros(empty, np.float32))
    assert x.shape == y.shape == empty
    assert float(total) == 0


def counted(f: Any) -> Any:
    """A function that notes how many kernels its graph has, beside its value."""
    jitted = qd.jit(f)
    return jitted, lambda *args: [len(p.tasks) for p in qd.make_graph(jitted)(*args).programs]


def test_scalar_statements_stay_in_one_program_with_the_tasks() -> None:
    def f(x):
        total = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            total[()] += x[i]
        mean = total[()] // x.shape[0]
        x[0] = mean
        for i in qd.range(x.shape[0]):
            x[i] -= mean
        return x

    jitted, kernels = counted(f)
    assert kernels(ints(6)) == [3]  # a sum, the scalars between, a difference
    np.testing.assert_array_equal(jitted(ints(6)), [0, -1, 0, 1, 2, 3])
