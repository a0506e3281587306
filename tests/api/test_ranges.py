"""Bounds and steps that are known at run time only, near the ends of the integers, against Python's `range`."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

MOST = 40
"""Iterations of a loop that is not left early."""
STEPS = (1, -1, 2, -2, 3, -7, 1 << 30, -(1 << 30), (1 << 31) - 1, -(1 << 31))


def bounds(bits: int, count: int, seed: int, steps: tuple[int, ...] = (), most: int | None = MOST) -> list[Any]:
    """Random (start, stop, step); with few iterations unless `most` is None."""
    rng = random.Random(seed)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    near = [0, low, high, low // 2, high // 2]

    def number() -> int:
        return min(max(rng.choice(near) + rng.randint(-9, 9), low), high)

    found = [(high - 7, high, 5), (low + 8, low, -3), (0, high, high // 2), (low, high, high), (5, 5, 0), (0, 5, 0)]
    found = [f for f in found if not steps or f[2] in steps]
    while len(found) < count:
        start, stop = number(), number()
        step = rng.choice(steps) if steps else rng.choice([*range(-9, 10), number(), (high - low) // 7])
        if rng.random() < 0.5:
            stop = min(max(start + step * rng.randint(-2, 12) + rng.randint(-3, 3), low), high)
        if low <= step <= high and (most is None or len_of(start, stop, step) <= most):
            found.append((start, stop, step))
    return found


def len_of(start: int, stop: int, step: int) -> int:
    return max(0, (stop - start + step - (1 if step > 0 else -1)) // step) if step else 0


def seen(start: int, stop: int, step: int, most: int | None = None) -> list[int]:
    """The count, the last index (or 7) and the sum of the indices, of at most so many iterations."""
    count = len_of(start, stop, step)
    count = count if most is None else min(count, most)
    indices = [start + k * step for k in range(count)]
    return [count, indices[-1] if indices else 7, sum(indices)]


def wrapped(rows: list[list[int]], dtype: Any) -> np.ndarray:
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([[(v + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)) for v in row] for row in rows], dtype)


def columns(cases: list[Any], dtype: Any) -> list[np.ndarray]:
    return [np.array(c, dtype) for c in zip(*cases, strict=True)]


def note(o: Any, i: Any, j: Any) -> None:
    o[i, 0] += 1
    o[i, 1] = j
    o[i, 2] += j


def result(n: int, dtype: Any) -> Any:
    o = qd.zeros((n, 3), dtype)
    for i in qd.range(n):
        o[i, 1] = 7
    return o


@qd.jit
def nested(lo, hi, st):
    o = result(lo.shape[0], lo.dtype)
    for i in qd.range(lo.shape[0]):
        for j in qd.range(lo[i], hi[i], st[i]):
            note(o, i, j)
    return o


@qd.jit
def left_early(lo, hi, st):
    o = result(lo.shape[0], lo.dtype)
    for i in qd.range(lo.shape[0]):
        for j in qd.range(lo[i], hi[i], st[i]):
            note(o, i, j)
            qd.break_if(o[i, 0] >= MOST)
    return o


@qd.jit
def shared(lo, hi, st):
    """All lanes have the same bounds."""
    o = result(5, lo.dtype)
    for i in qd.range(5):
        for j in qd.range(lo[0], hi[0], st[0]):
            note(o, i, j)
            qd.break_if(o[i, 0] >= MOST)
    return o


@qd.jit
def task(lo, hi, st):
    o = qd.zeros((2,), lo.dtype)
    for j in qd.range(lo[0], hi[0], st[0]):
        o[0] += 1
        o[1] += j
    return o


@qd.jit
def serial(lo, hi, st):
    o = result(1, lo.dtype)
    for j in qd.range(lo[0], hi[0], st[0], serial=True):
        note(o, 0, j)
    return o


def given_step(step: int) -> Any:
    @qd.jit
    def run(lo, hi):
        o = result(lo.shape[0], lo.dtype)
        for i in qd.range(lo.shape[0]):
            for j in qd.range(lo[i], hi[i], step):
                note(o, i, j)
                qd.break_if(o[i, 0] >= MOST)
        return o

    return run


def uncut(step: int) -> Any:
    """Without a break, in one loop that is dear enough for lanes to be refilled."""

    @qd.jit
    def run(lo, hi):
        o = qd.zeros((lo.shape[0], 3), lo.dtype)
        for i in qd.range(lo.shape[0]):
            count, last, total = qd.local(jnp.int32(0)), qd.local(jnp.int32(7)), qd.local(jnp.int32(0))
            noise = qd.local(jnp.float32(1.0))
            for j in qd.range(lo[i], hi[i], step):
                count.value, last.value, total.value = count.value + 1, j, total.value + j
                noise.value = jnp.sin(noise.value) / (jnp.sqrt(noise.value) + 1)
            o[i, 0] = count.value
            o[i, 1] = last.value
            o[i, 2] = jnp.where(noise.value > 2, 0, total.value)
        return o

    return run


def given_step_of_task(step: int) -> Any:
    @qd.jit
    def run(lo, hi):
        o = qd.zeros((2,), lo.dtype)
        for j in qd.range(lo[0], hi[0], step):
            o[0] += 1
            o[1] += j
        return o

    return run


def check(dtype: Any, count: int) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    few, any_ = bounds(bits, count, seed=bits), bounds(bits, count, seed=bits + 1, most=None)
    np.testing.assert_array_equal(nested(*columns(few, dtype)), wrapped([seen(*c) for c in few], dtype))
    np.testing.assert_array_equal(left_early(*columns(any_, dtype)), wrapped([seen(*c, MOST) for c in any_], dtype))
    for case in any_[: count // 4]:
        np.testing.assert_array_equal(shared(*columns([case], dtype)), wrapped([seen(*case, MOST)] * 5, dtype))
    away = [c for c in few if bits == 32 or max(c[0], c[1]) < (1 << 63) - (1 << 32)]
    for case in away[: count // 2]:
        want = wrapped([seen(*case)], dtype)[0]
        np.testing.assert_array_equal(task(*columns([case], dtype)), want[[0, 2]])
        np.testing.assert_array_equal(serial(*columns([case], dtype))[0], want)


@pytest.mark.full
def test_random_ranges() -> None:
    check(np.int32, 60)


@pytest.mark.full
def test_random_ranges_of_64_bits() -> None:
    with jax.enable_x64(True):
        check(np.int64, 40)


@pytest.mark.full
def test_narrow_bounds_are_widened() -> None:
    cases = [(-128, 127, 100), (100, -128, -128), (0, 127, 1)]
    got = left_early(*columns(cases, np.int8))
    np.testing.assert_array_equal(got, wrapped([seen(*c, MOST) for c in cases], np.int8))


@pytest.mark.full
@pytest.mark.parametrize("step", STEPS)
def test_constant_steps(step: int) -> None:
    cases = bounds(32, 30, seed=step, steps=(step,), most=None)
    lo, hi, _ = columns(cases, np.int32)
    np.testing.assert_array_equal(given_step(step)(lo, hi), wrapped([seen(*c, MOST) for c in cases], np.int32))
    few = bounds(32, 30, seed=step + 1, steps=(step,))
    lo, hi, _ = columns(few, np.int32)
    np.testing.assert_array_equal(uncut(step)(lo, hi), wrapped([seen(*c) for c in few], np.int32))
    run = given_step_of_task(step)
    for case in bounds(32, 12, seed=step, steps=(step,)):
        lo, hi, _ = columns([case], np.int32)
        np.testing.assert_array_equal(run(lo, hi), wrapped([seen(*case)], np.int32)[0][[0, 2]])


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(-(1 << 31), (1 << 31) - 1, 2), ((1 << 31) - 1, -(1 << 31), -2), (-2000000000, 2000000000, 1),
     (-(1 << 31), (1 << 31) - 1, 1), ((1 << 31) - 1, -(1 << 31), -1)],
)  # fmt: skip
def test_tasks_of_more_iterations_than_the_index_counts(start: int, stop: int, step: int) -> None:
    @qd.jit
    def count(lo, hi, st):
        o = qd.zeros((1,), jnp.uint32)
        for _ in qd.range(lo[0], hi[0], st[0]):
            o[0] += jnp.uint32(1)
        return o

    assert int(count(*columns([(start, stop, step)], np.int32))[0]) == len_of(start, stop, step)


def test_interpreter_agrees() -> None:
    few = bounds(32, 12, seed=5)
    with qd.options(debug=True):
        np.testing.assert_array_equal(nested(*columns(few, np.int32)), wrapped([seen(*c) for c in few], np.int32))
        for case in few:
            want = wrapped([seen(*case)], np.int32)[0]
            np.testing.assert_array_equal(task(*columns([case], np.int32)), want[[0, 2]])


@qd.jit
def product(a, b, c):
    o = qd.zeros((3,), jnp.int32)
    for i, j, k in qd.ndrange(a[0], (b[0], b[1]), c[0]):
        o[0] += 1
        o[1] += i * 100 + j * 10 + k
    return o


@qd.jit
def product_in_lanes(a, b, c):
    o = qd.zeros((a.shape[0],), jnp.int32)
    for lane in qd.range(a.shape[0]):
        for _ in qd.ndrange(a[lane], (b[0], b[1]), c[0]):
            o[lane] += 1
    return o


TOO_MANY = (
    "qd.ndrange needs at most 2147483647 iterations, and as many along each axis; "
    "give a bound as int64 (jax_enable_x64), or nest two loops"
)
FITS = [(2, 1, 4, 5), (0, 1, 4, 5), (3, -2, 1, 2), (70000, 0, 70000, 0), (1, 2000000000, -2000000000, 1),
        (0, -2000000000, 2000000000, 70000), (-5, -3, 3, 4), (1, 2147483640, 2147483647, 3)]  # fmt: skip
DOES_NOT_FIT = [(70000, 0, 70000, 1), (1, -2000000000, 2000000000, 1), (2147483647, 0, 2, 1), (46341, 0, 46341, 1),
                (3, 0, 5, 2147483647), (65536, 0, 65536, 65536)]  # fmt: skip


def arrays(case: tuple[int, ...]) -> list[np.ndarray]:
    a, low, high, c = case
    return [np.array(v, np.int32) for v in ([a], [low, high], [c])]


@pytest.mark.every_case
@pytest.mark.parametrize("case", FITS)
@pytest.mark.parametrize("debug", [False, True])
def test_products_that_fit(case: tuple[int, ...], debug: bool) -> None:
    a, low, high, c = case
    count = max(a, 0) * max(high - low, 0) * max(c, 0)
    wanted = [[i, j, k] for i in range(a) for j in range(low, high) for k in range(c)] if 0 < count < 1000 else []
    total = sum(i * 100 + j * 10 + k for i, j, k in wanted)
    with qd.options(debug=debug):
        np.testing.assert_array_equal(product(*arrays(case)), wrapped([[count, total, 0]], np.int32)[0])
        np.testing.assert_array_equal(product_in_lanes(*arrays(case)), [count])


@pytest.mark.parametrize("run", [product, product_in_lanes], ids=["task", "lanes"])
@pytest.mark.parametrize("debug", [False, True])
def test_products_that_do_not_fit_are_refused(run: Any, debug: bool) -> None:
    for case in DOES_NOT_FIT:
        with qd.options(debug=debug), pytest.raises(qd.CheckError) as caught:
            qd.block_until_ready(run(*arrays(case)))
        assert TOO_MANY in str(caught.value)
        assert "test_ranges.py" in str(caught.value)
        assert "qd.ndrange(a" in str(caught.value)


def test_a_product_under_a_false_condition_is_not_refused() -> None:
    @qd.jit
    def run(n, wanted):
        o = qd.zeros((1,), jnp.int32)
        with qd.when(wanted):
            for _ in qd.ndrange(n[0], n[0]):
                o[0] += 1
        return o

    assert int(run(np.array([70000], np.int32), False)[0]) == 0
    assert int(run(np.array([7], np.int32), True)[0]) == 49
    with pytest.raises(qd.CheckError):
        qd.block_until_ready(run(np.array([70000], np.int32), True))


@pytest.mark.full
def test_tasks_at_the_end_of_64_bits_are_refused() -> None:
    rule = (
        "a loop over 64-bit integers needs to end at 2**63 - 2**32 or before, and to have fewer than 2**63 iterations"
    )
    top = (1 << 63) - 1
    with jax.enable_x64(True):
        for start, stop, step in [(top - 5, top, 1), (top, top - 5, -1), (-5, top - (1 << 32) + 2, 1), (-top, 5, 1)]:
            lo, hi, st = columns([(start, stop, step)], np.int64)
            with pytest.raises(qd.CheckError) as caught:
                qd.block_until_ready(given_step_of_task(step)(lo, hi))
            assert rule in str(caught.value)
            if abs(stop - start) < 9:  # counted from elsewhere
                np.testing.assert_array_equal(task(lo, hi, st), wrapped([seen(start, stop, step)], np.int64)[0][[0, 2]])
        with pytest.raises(qd.CheckError):
            qd.block_until_ready(task(*columns([(-top, top, 1)], np.int64)))
        fine = [(top - (1 << 33), top - (1 << 33) + 9, 2), (-top - 1, -top + 50, 7), (top, -top, 1), (5, 5, 0)]
        for case in fine:
            lo, hi, st = columns([case], np.int64)
            want = wrapped([seen(*case)], np.int64)[0][[0, 2]]
            np.testing.assert_array_equal(task(lo, hi, st), want)
            if case[2]:
                np.testing.assert_array_equal(given_step_of_task(case[2])(lo, hi), want)

        def constant(start: int, stop: int) -> Any:
            def run(o):
                for _ in qd.range(start, stop):
                    o[0] += 1
                return o

            return qd.jit(run)(np.zeros(1, np.int64))

        with pytest.raises(qd.TraceValueError, match=r"fewer than 2\*\*63 iterations, got 5 to 9223372036854775807"):
            constant(5, top)
        with pytest.raises(qd.TraceValueError, match="got -9000000000000000000 to 9000000000000000000"):
            constant(-9 * 10**18, 9 * 10**18)


@pytest.mark.parametrize("refill", [None, True, False])
def test_checks_before_a_loop_that_lanes_leave_apart(refill: bool | None) -> None:
    @qd.jit
    def run(n, allowed):
        o = qd.zeros((n.shape[0],), jnp.int32)
        for i in qd.range(n.shape[0], refill=refill):
            qd.check(n[i] >= 0, "no negative lengths")
            with qd.when(n[i] > 5):
                qd.check(allowed[0] > 0, "not so many")
            for _ in qd.range(n[i]):
                o[i] += 1
        return o

    n, yes, no = np.arange(40, dtype=np.int32) % 9, np.array([1], np.int32), np.array([0], np.int32)
    np.testing.assert_array_equal(run(n, yes), n)
    np.testing.assert_array_equal(run(n % 5, no), n % 5)
    with pytest.raises(qd.CheckError, match="not so many"):
        qd.block_until_ready(run(n, no))
    with pytest.raises(qd.CheckError, match="no negative lengths"):
        qd.block_until_ready(run(-n, yes))
