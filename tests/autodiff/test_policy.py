"""The choice of states that a loop keeps for reverse mode: its memory, its reason, and the refusals."""

import re
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.machine import CPU, GPU, Machine
from qdtrace.autodiff.loops import thinning
from qdtrace.autodiff.loops.policy import (
    LEAST_BITS,
    MOST_BITS,
    SAY_MOST,
    LoopSize,
    Stacks,
    StorageChoice,
    choose_storage,
)
from qdtrace.autodiff.loops.thinning import levels, slots_for
from qdtrace.compose import stack_budget
from qdtrace.config import options_from
from qdtrace.errors import Loc
from tests.autodiff.lanes import each
from tests.autodiff.machines import limited

PLENTY = 1 << 30
STACK_BYTES, LANE_LIMIT = CPU.reverse.stack_bytes, CPU.reverse.lane_bytes


def chosen(trips: int | None, state: int, budget: int = PLENTY, loc: Loc | None = None) -> StorageChoice:
    """The choice on a CPU."""
    return choose_storage(LoopSize(trips, state), budget, loc)


def test_every_state_of_a_short_loop() -> None:
    choice = chosen(100, 12)
    assert (choice.slots, choice.thinned_bits, choice.nbytes) == (100, None, 1200)
    assert str(choice) == "all of at most 100 states of 12 bytes are kept: 1200 bytes a lane"
    assert chosen(STACK_BYTES, 1).thinned_bits is None
    assert chosen(STACK_BYTES + 1, 1).thinned_bits == MOST_BITS


def test_walks_with_a_stack_and_a_loop_inside_keep_more() -> None:
    """A walk over a tree: running an iteration again takes longer than fewer lanes side by side."""

    def bits(machine: Machine, **kinds: bool) -> int | None:
        return choose_storage(LoopSize(None, 136, **kinds), PLENTY, None, machine.reverse).thinned_bits

    assert bits(CPU, has_arrays=True, is_nested=True) == 9
    assert bits(CPU, has_arrays=True) == bits(CPU, is_nested=True) == LEAST_BITS
    assert bits(GPU, has_arrays=True, is_nested=True) == LEAST_BITS
    assert bits(limited(CPU, open_stack_bytes=0), has_arrays=True, is_nested=True) == LEAST_BITS


def test_a_loop_that_never_runs_has_a_slot() -> None:
    assert chosen(0, 12).slots == 1


def test_nothing_is_kept_of_a_loop_without_state() -> None:
    choice = chosen(None, 0)
    assert (choice.thinned_bits, choice.nbytes) == (None, 0)
    assert str(choice) == "it carries nothing from one iteration to the next: nothing is kept"


def test_an_unknown_number_of_iterations_thins() -> None:
    choice = chosen(None, 1000, PLENTY, Loc("a.py", 7, "f"))
    assert (choice.thinned_bits, choice.slots) == (LEAST_BITS, slots_for(LEAST_BITS))
    assert choice.nbytes == 1000 * slots_for(LEAST_BITS)
    assert str(choice) == (
        "a.py:7 in f: the number of iterations is known only at run time; at most 32 states of 1000 bytes are kept, "
        f"the others are run again: {choice.nbytes / 1024:.4g} KiB a lane; {SAY_MOST}"
    )


def test_a_long_loop_thins() -> None:
    assert chosen(1_000_000, 8).reason.startswith(
        "1000000 iterations would keep 7812 KiB a lane, more than the 16 KiB a stack may have; at most 1024 states of "
    )


@pytest.mark.parametrize("budget", [PLENTY, STACK_BYTES, 10_000, 5000, 0, -5])
def test_a_budget_takes_slots(budget: int) -> None:
    choice = chosen(None, 16, budget)
    assert choice.nbytes <= max(min(budget, STACK_BYTES), 16 * slots_for(LEAST_BITS))
    assert choice.thinned_bits is not None
    # no more would fit
    assert choice.thinned_bits == MOST_BITS or 16 * slots_for(choice.thinned_bits + 1) > min(budget, STACK_BYTES)


def test_a_known_number_over_the_budget_thins() -> None:
    assert chosen(100, 12, 1200).thinned_bits is None
    choice = chosen(100, 12, 1199)
    # a level of 15 slots serves 100 iterations
    assert (choice.thinned_bits, choice.slots) == (6, 64 + 15)
    assert "keep 1200 bytes a lane, more than the 1199 bytes ad_stack_memory leaves; " in choice.reason


@pytest.mark.parametrize("budget", [0, -7000])
def test_what_takes_less_than_thinning_is_kept(budget: int) -> None:
    kept = chosen(32, 1600, budget)
    assert (kept.thinned_bits, kept.nbytes) == (None, 32 * 1600)
    assert chosen(47, 1600, budget).thinned_bits is None
    thinned = chosen(48, 1600, budget)
    assert (thinned.thinned_bits, thinned.slots) == (LEAST_BITS, 47)
    assert "more than the 0 bytes ad_stack_memory leaves" in thinned.reason


@pytest.mark.parametrize("most", [*range(1, 70), 511, 512, 513, 8191, 8192, 8193, 1 << 30])
@pytest.mark.parametrize("bits", [1, 2, 5, 9])
def test_levels_serve_the_most_iterations(most: int, bits: int) -> None:
    """Each iteration is a multiple of the last stride or has a slot on a level."""
    stride = 1 << max(0, (most - 1).bit_length() - bits)
    zeros = [(t & -t).bit_length() - 1 for t in (*range(1, min(most, 9000)), most - 1) if t % stride]
    assert all(z // thinning.RADIX_BITS < levels(bits, most) for z in zeros)
    assert levels(bits, most) <= levels(bits)


def test_loops_of_a_task_share_its_memory() -> None:
    stacks = Stacks(budget=4000)
    choices = [stacks.choose(LoopSize(100, 16), used, None) for used in (0, 800, 801)]
    assert [c.thinned_bits for c in choices] == [None, None, LEAST_BITS + 1]
    assert len(stacks.choices) == 3


@each
def powers(i, x, end):
    v, n = qd.local(x[i]), qd.local(0)
    for _ in qd.while_(lambda: n.value < end):
        v.value = v.value * x[i]
        n.value = n.value + 1
    return v.value


X = np.linspace(0.9, 1.1, 50, dtype=np.float32)


def slope(x):
    return powers(x, jnp.int32(40)).sum()


@pytest.mark.full
@pytest.mark.cpu
def test_the_option_bounds_stacks_and_gradients_stay_right() -> None:
    wide = qd.jit(jax.grad(slope)).lower(X)
    with qd.options(ad_stack_memory=0.0):
        narrow = qd.jit(jax.grad(slope)).lower(X)
        got = jax.grad(slope)(X)
    (choice,) = narrow.storage
    assert choice.thinned_bits == LEAST_BITS
    assert 0 < narrow.memory_analysis()["stacks"] < 0.2 * wide.memory_analysis()["stacks"]
    np.testing.assert_allclose(got, 41 * X.astype(np.float64) ** 40, rtol=1e-5)


def _swapped(x):
    """Loads in a loop memory that the loop changes at an index that data decide: each value goes onto a tape."""
    for i in qd.range(x.shape[0]):
        for k in qd.range(5000):
            j = (x[i, k % 100] * 7).astype(jnp.int32) % 100
            x[i, j] = jnp.sin(x[i, j])
    return x


@pytest.mark.cpu
def test_the_option_bounds_what_cannot_be_thinned() -> None:
    x = jnp.ones((4, 100))
    gradient = qd.jit(jax.grad(lambda x: qd.jit(_swapped)(x).sum()))
    assert gradient(x).shape == x.shape
    with qd.options(ad_stack_memory=0.0), pytest.raises(qd.GradientError) as caught:
        gradient.lower(x).tasks  # noqa: B018 - it is derived here
    text = str(caught.value)
    assert re.match(
        r"_swapped.0: reverse mode keeps \d{5,} bytes an iteration of memory that loops load and change, more than the "
        r"16384 that the option ad_stack_memory leaves\n  at ",
        text,
    )
    assert text.endswith(
        "help: raise ad_stack_memory, run fewer iterations at a time (num_threads), or change less memory"
    )


def test_the_room_of_a_lane() -> None:
    stacks = Stacks(memory=1 << 24, fewest_lanes=8)
    rooms = [stacks.room(iterations, 1) for iterations in (None, 100, 8, 4, 1, 0)]
    assert rooms == [1 << 21, 1 << 21, 1 << 21, 1 << 22, 1 << 24, 1 << 24]
    assert Stacks(memory=0, fewest_lanes=8).room(None, 1) == CPU.reverse.stack_bytes


@pytest.mark.parametrize("iterations", [None, 100, 8, 4, 1])
@pytest.mark.parametrize("nbytes", [1, CPU.reverse.stack_bytes, CPU.reverse.stack_bytes + 1, 1 << 21, (1 << 21) + 1])
def test_what_was_needed_is_refused_with_less_memory(iterations: int | None, nbytes: int) -> None:
    stacks = Stacks(memory=1 << 24, fewest_lanes=8)
    stacks.room(iterations, nbytes)
    for memory in (0, stacks.needed - 1, stacks.needed, 1 << 24):
        has_room = nbytes <= Stacks(memory=memory, fewest_lanes=8).room(iterations, nbytes)
        assert has_room == (stacks.needed <= max(memory, 0))


def test_memory_of_a_device_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices(backend: str) -> list[SimpleNamespace]:
        if backend != "cuda":
            raise RuntimeError("Unknown backend")
        limits = ({"bytes_limit": 1 << 30}, {"bytes_limit": 1 << 28}, None)
        return [SimpleNamespace(memory_stats=lambda s=s: s) for s in limits]

    monkeypatch.setattr(stack_budget.jax, "local_devices", devices)
    stack_budget.device_memory.cache_clear()
    try:
        assert [stack_budget.device_memory(p) for p in ("cuda", "rocm")] == [1 << 28, 1 << 62]
        assert stack_budget.memory_of(GPU) == 1 << 28
    finally:
        stack_budget.device_memory.cache_clear()


def test_the_budget_of_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_budget, "free_memory", lambda: 1 << 20)
    per_lane = [
        stack_budget.lane_budget(options_from({"ad_stack_memory": part, "num_threads": 2}), CPU)
        for part in (0.25, 0.3, 1.0, 0.0, 1e9, float("inf"))
    ]
    assert per_lane == [4096, 4096, 16384, 0, LANE_LIMIT, LANE_LIMIT]


def test_the_budget_of_a_lane_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_budget, "free_memory", lambda: 0)
    per_lane = [
        stack_budget.lane_budget(options_from({"ad_stack_memory": part, "num_threads": 2}), GPU)
        for part in (0.25, 0.125, 0.0, 1e9)
    ]
    # of 64 GiB for 132 times 2048 threads
    assert per_lane == [32768, 16384, 0, GPU.reverse.lane_bytes]


def test_segments_stay_in_the_budget() -> None:
    size = LoopSize(1000, 12, is_exact=True, most_steps=10)
    kept = choose_storage(size, 1200, None, GPU.reverse)
    assert (kept.steps, kept.nbytes, kept.thinned_bits) == (10, 1200, None)
    thinned = choose_storage(size, 1199, None, GPU.reverse)
    assert (thinned.steps, thinned.thinned_bits, thinned.rest) == (10, LEAST_BITS + 1, 0)
    assert thinned.nbytes == 12 * slots_for(LEAST_BITS + 1, 100)
    assert thinned.reason == (
        "1000 iterations would keep 1200 bytes a lane, more than the 1199 bytes ad_stack_memory leaves; "
        "at most 64 states of 12 bytes are kept, one in 10 or fewer, the others are run again: "
        f"{thinned.nbytes} bytes a lane"
    )


@pytest.mark.parametrize(("budget", "bits"), [(PLENTY, 7), (2700, 7), (2699, 6), (2111, LEAST_BITS), (0, LEAST_BITS)])
def test_unknown_numbers_of_iterations_take_less_on_a_gpu(budget: int, bits: int) -> None:
    choice = choose_storage(LoopSize(None, 12, most_steps=10), budget, None, GPU.reverse)
    assert (choice.steps, choice.rest) == (8, 7)
    assert choice.nbytes <= max(min(GPU.reverse.open_stack_bytes, budget), 12 * (slots_for(LEAST_BITS) + 7))
    assert choice.thinned_bits == bits


def test_free_memory_is_a_size() -> None:
    assert stack_budget.free_memory() > 1 << 20


@pytest.mark.full
@pytest.mark.cpu
def test_states_with_arrays() -> None:
    @each
    def run(i, x, end):
        arrays = [qd.local(jnp.zeros(4000, jnp.float32)) for _ in range(4)]
        n = qd.local(jnp.int32(0))
        for _ in qd.while_(lambda: n.value < end):
            for a in arrays:
                a[n.value] = jnp.sin(a[n.value]) + x[i] * a[n.value + 1] + x[i]
            n.value = n.value + 1
        return sum(a[0] + a[1] for a in arrays)

    def f(x):
        return run(x, jnp.int32(200)).sum()

    low = qd.jit(jax.grad(f)).lower(X)
    assert low.memory_analysis()["stack_per_lane"] <= LANE_LIMIT
    # each array has x at 0 and at 1
    np.testing.assert_allclose(jax.grad(f)(X), 8.0, rtol=1e-6)


@pytest.mark.cpu
def test_a_tape_that_is_too_long_is_refused() -> None:
    @qd.jit
    def run(x):
        for i in qd.range(x.shape[0]):
            for k in qd.range(20_000_000):
                x[i, k % 20_000] = jnp.sin(x[i, (k + 3) % 20_000])
        return x

    x = np.ones((4, 20_000), np.float32)  # a row is too long to be kept whole
    with pytest.raises(qd.GradientError) as caught:
        qd.jit(jax.grad(lambda x: run(x).sum())).lower(x)
    text = str(caught.value)
    assert "run.0: reverse mode needs at most 67108864 bytes of private memory an iteration, got 80" in text
    assert f"at {__file__}:" in text
    assert "note: 80000000 bytes are values of memory that loops load and change" in text
    assert "note: the loop that keeps most: " in text
    assert text.endswith("or change less memory")


def _smoothed(most):
    @qd.jit
    def smoothed(x, n):
        out = qd.zeros(x.shape[0])
        for p in qd.range(x.shape[0]):
            row = qd.local(jnp.ones(490))
            for _ in qd.range(n[p], most=most):
                for j in qd.range(1, 490):
                    row[j] = jnp.sin(row[j] * x[p]) + row[j - 1]
            out[p] = row[3]
        return out

    return jax.jit(jax.grad(lambda x: smoothed(x, jnp.array([3, 0])).sum()))


@pytest.mark.full
def test_dropped_rows_of_a_loop_of_unknown_length_warn_with_the_way_out() -> None:
    x = jnp.array([0.5, 0.2])
    said = r"in reverse mode the number .* are run again(?s:.*)help: .*`most=64`"
    with pytest.warns(qd.QdWarning, match=said) as told:
        slow = _smoothed(None)(x)
    assert [(w.filename, w.lineno) for w in told] == [(__file__, _smoothed.__code__.co_firstlineno + 6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(_smoothed(3)(x), slow)


def test_few_numbers_of_a_loop_of_unknown_length_do_not_warn() -> None:
    @qd.jit
    def grown(x, n):
        out = qd.zeros(2)
        for p in qd.range(2):
            v = qd.local(x[p])
            for _ in qd.range(n[p]):
                v.value = jnp.sin(v.value) * x[p]
            out[p] = v
        return out

    low = qd.jit(jax.grad(lambda x: grown(x, jnp.array([3, 0])).sum()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (choice,) = low.lower(jnp.array([0.5, 0.2])).storage
    assert choice.help == SAY_MOST
