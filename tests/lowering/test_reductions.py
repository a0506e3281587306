"""Reductions into few places: what they are, that they agree with the reference, and that order does not matter."""


from collections.abc import Callable

import numpy as np
import pytest

from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.analysis.machine import CPU
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Program, Var, literal
from qdtrace.ir.types import DType
from tests.lowering.harness import (
    TARGETS,
    Kernel,
    agrees,
    branch,
    f32,
    i32,
    loop,
    program,
    run_kernels,
    runnable,
    task,
    while_loop,
)

F32, I32, I64 = DType.f32, DType.i32, DType.i64
N = 301


def code_of(made: Program, target: str = "avx512"):
    return emit_task(made.tasks[0], Target.named(target))


def whole_numbers(n: int, most: int = 4, seed: int = 0) -> np.ndarray:
    """Numbers whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(0, most, n)


def scattered(size: int, dtype: DType = F32, op: str = "add", n: int = N) -> Program:
    """out[place[i]] op= x[i]"""
    place, x, out = ref_var(I32, (n,), "place"), ref_var(dtype, (n,), "x"), ref_var(dtype, (size,), "out")
    body = lambda b, i: b.accum(out, b.load(x, i), b.load(place, i), op=op)  # noqa: E731
    return program([place, x, out], task(n, body), [out])


@pytest.mark.full
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("size", [1, 7, 200, 700])
def test_a_histogram_has_no_atomics(size: int, op: str):
    """Copies of all lanes where the array is small, one copy of the chunk where it is not."""
    made = scattered(size, op=op)
    values = np.random.default_rng(1).choice([1, 2, -1], N, p=[0.9, 0.05, 0.05]).astype(np.float32)
    given = [whole_numbers(N, size).astype(np.int32), values, np.arange(size, dtype=np.float32)]
    agrees(made, given, vectors=(None, 4))
    code = code_of(made)
    assert "atomicrmw" not in code.text
    assert "cmpxchg weak" not in code.text
    assert code.slot_bytes >= 4 * size
    assert code.reason.endswith(", 1 arrays with copies a chunk")


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [DType.bool, DType.u8, DType.i16, I64, DType.f16, DType.bf16, DType.f64], ids=str)
@pytest.mark.parametrize("size", [3, 700])
def test_histograms_of_other_dtypes(dtype: DType, size: int):
    rng = np.random.default_rng(2)
    values = rng.integers(0, 2, N).astype(dtype.numpy)
    for op in ("add", "max"):
        made = scattered(size, dtype, op)
        agrees(made, [whole_numbers(N, size).astype(np.int32), values, np.zeros(size, dtype.numpy)])
        assert code_of(made).slot_bytes > 0


def test_an_array_too_large_for_a_copy_keeps_atomics():
    size = CPU.accumulation.chunk_bytes // 4
    assert code_of(scattered(size, n=100_000)).slot_bytes > 0
    code = code_of(scattered(size + 1, n=100_000))
    assert code.slot_bytes == 0
    assert "atomicrmw" in code.text


def test_a_few_iterations_do_not_pay_for_a_copy():
    """They run in one chunk on one thread, so the order of their atomics is fixed anyway."""
    code = code_of(scattered(700, n=8))
    assert code.slot_bytes == 0
    assert code_of(scattered(700, n=700)).slot_bytes > 0


def other_access(kind: str) -> Program:
    place, x, out = ref_var(I32, (N,), "place"), ref_var(F32, (N,), "x"), ref_var(F32, (8,), "out")
    seen = ref_var(F32, (N,), "seen")

    def body(b: Builder, i: Var) -> None:
        where = b.load(place, i)
        b.accum(out, b.load(x, i), where)
        if kind == "another operation":
            b.accum(out, b.load(x, i), where, op="mul")
        elif kind == "a load":
            b.store(seen, b.load(out, where), i)
        elif kind == "a store":
            b.store(out, b.load(x, i), where)
        elif kind == "an atomic":
            b.store(seen, b("atomic", out, f32(1), where, op="add"), i)

    return program([place, x, out, seen], task(N, body), [out, seen])


@pytest.mark.parametrize("kind", ["another operation", "a load", "a store", "an atomic"])
def test_what_is_used_otherwise_too_is_not_copied(kind: str):
    assert code_of(other_access("nothing else")).slot_bytes > 0
    assert code_of(other_access(kind)).slot_bytes == 0


def test_an_element_of_its_own_needs_no_copy():
    x, y = ref_var(F32, (N,), "x"), ref_var(F32, (N,), "y")
    made = program([x, y], task(N, lambda b, i: b.accum(y, b.load(x, i), i)), [y])
    assert code_of(made).slot_bytes == 0


def check_places(make: Callable[[Builder, Var, Var, Var, Var], None], shape: tuple[int, ...], n: int = N) -> None:
    """`make(b, i, k, x, out)` accumulates into `out`; k has numbers below 5, x small whole ones."""
    k, x, out = ref_var(I32, (n,), "k"), ref_var(F32, (n,), "x"), ref_var(F32, shape, "out")
    made = program([k, x, out], task(n, lambda b, i: make(b, i, k, x, out)), [out])
    assert code_of(made).slot_bytes > 0
    start = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    given = [whole_numbers(n, 5, 3).astype(np.int32), whole_numbers(n, 4, 4).astype(np.float32), start]
    agrees(made, given, vectors=(None, 2))


@pytest.mark.full
@pytest.mark.parametrize("columns", [3, 900], ids=["lanes", "chunk"])
def test_places_of_every_form(columns: int):
    """Lanes at one element, at neighbours, at a constant stride, anywhere; rows that are the same for all lanes."""

    def make(b: Builder, i: Var, k: Var, x: Var, out: Var) -> None:
        value = b.load(x, i)

        def side(j: Var) -> None:
            b.accum(out, value, j, i32(0))
            b.accum(out, value, j, b("rem", b.load(k, i), i32(columns)))

        loop(b, i32(1), i32(5), i32(1), [], side)
        b.accum(out, value, i32(2), b("rem", i, i32(columns)))
        b.accum(out, value, b("add", b.load(k, i), i32(0)), i32(columns - 1))

    check_places(make, (5, columns))


@pytest.mark.full
@pytest.mark.parametrize("size", [2 * N + 4, 3 * N + 4])
def test_neighbours_and_strides_that_meet(size: int):
    def make(b: Builder, i: Var, k: Var, x: Var, out: Var) -> None:
        value, far = b.load(x, i), b("add", i, i32(3))
        b.accum(out, value, i)
        b.accum(out, value, far)
        b.accum(out, value, b("mul", i, i32(2)))
        b.accum(out, value, b("sub", i32(N), i))

    check_places(make, (size,))


@pytest.mark.full
def test_inactive_lanes_at_places_out_of_range_are_left_alone():
    def make(b: Builder, i: Var, k: Var, x: Var, out: Var) -> None:
        twice = b("mul", b("sub", i, i32(40)), i32(2))
        inside = b("and", b("ge", i, i32(40)), b("lt", i, i32(60)))
        branch(b, inside, lambda: b.accum(out, b.load(x, i), twice))
        small = b("lt", b.load(k, i), i32(3))
        wild = b("mul", b.load(k, i), i32(1))
        branch(b, small, lambda: b.accum(out, b.load(x, i), wild), lambda: b.accum(out, f32(1), i32(39)))

    check_places(make, (40,))
    check_places(make, (2000,))


@pytest.mark.full
def test_inside_loops_that_lanes_leave_at_different_times():
    def make(b: Builder, i: Var, k: Var, x: Var, out: Var) -> None:
        loop(b, i32(0), b.load(k, i), i32(1), [], lambda j: b.accum(out, b.load(x, i), j))

        def turn(a: Var) -> list:
            b.accum(out, f32(1), b("and", a, i32(3)))
            return [b("sub", a, i32(1))]

        while_loop(b, [b.load(k, i)], lambda a: b("gt", a, i32(0)), turn)

    check_places(make, (5,))
    check_places(make, (1000,))


@pytest.mark.full
def test_lanes_that_are_refilled():
    """What follows a long divergent loop: lanes hold elements that are no neighbours."""

    def make(b: Builder, i: Var, k: Var, x: Var, out: Var) -> None:
        def turn(j: Var, a: Var) -> list:
            for _ in range(12):
                a = b("max", b("sub", a, f32(1)), b("mul", a, f32(0)))
                a = b("add", a, b.load(x, i))
            return [a]

        (total,) = loop(b, i32(0), b.load(k, i), i32(1), [f32(0)], turn)
        b.accum(out, b("min", total, f32(4)), b.load(k, i))
        b.accum(out, b("min", total, f32(4)), i32(6))

    check_places(make, (8,))
    made_k, made_x, out = ref_var(I32, (N,), "k"), ref_var(F32, (N,), "x"), ref_var(F32, (8,), "out")
    made = program([made_k, made_x, out], task(N, lambda b, i: make(b, i, made_k, made_x, out)), [out])
    assert "refill" in code_of(made).reason


def test_a_place_read_before_the_task():
    """The index comes from the head of the task, which is evaluated again when slots are combined."""
    where, x, out = ref_var(I32, (), "where"), ref_var(F32, (N,), "x"), ref_var(F32, (9,), "out")
    made = program(
        [where, x, out], task(N, lambda b, i, w: b.accum(out, b.load(x, i), w), lambda b: b.load(where)), [out]
    )
    agrees(made, [np.array(5, np.int32), whole_numbers(N).astype(np.float32), np.arange(9, dtype=np.float32)])
    assert code_of(made).slot_bytes == 64


def test_small_floats_are_rounded_once():
    """2049 ones in f16: rounding every sum would stop at 2048. Chunk sums are f32 and the total is rounded."""
    n = 2049
    total, bins, k = ref_var(DType.f16, (), "total"), ref_var(DType.f16, (2,), "bins"), ref_var(I32, (n,), "k")
    one = literal(1, DType.f16)

    def body(b: Builder, i: Var) -> None:
        b.accum(total, one)
        b.accum(bins, one, b.load(k, i))

    made = program([k, total, bins], task(n, body), [total, bins])
    zeros = [np.zeros(n, np.int32), np.zeros((), np.float16), np.zeros(2, np.float16)]
    for target in TARGETS:
        got = run_kernels(made, [Kernel(made.tasks[0], runnable(target))], zeros, (0.3,))
        assert float(got[0]) in (2048, 2050)
        assert got[1].tolist() == [float(got[0]), 0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [5, 1000])
def test_the_order_in_which_chunks_run_does_not_matter(size: int, target: str):
    n = 5000
    total, k, x, out = (
        ref_var(F32, (), "total"),
        ref_var(I32, (n,), "k"),
        ref_var(F32, (n,), "x"),
        ref_var(F32, (size,), "out"),
    )

    def body(b: Builder, i: Var) -> None:
        b.accum(total, b.load(x, i))
        b.accum(out, b.load(x, i), b.load(k, i))

    made = program([k, x, total, out], task(n, body), [total, out])
    kernel = Kernel(made.tasks[0], runnable(target))
    rng = np.random.default_rng(5)
    where, values = rng.integers(0, size, n).astype(np.int32), rng.standard_normal(n).astype(np.float32)
    found = []
    for backward in (False, True):
        memory = {k: where, x: values, total: np.ones((), np.float32), out: np.ones(size, np.float32)}
        kernel.run(memory, (0.1, 0.2, 0.45, 0.7), backward)
        found.append((memory[total].tobytes(), memory[out].tobytes()))
    assert found[0] == found[1]
    want_total, want = evaluate(made, [where, values, np.ones((), np.float32), np.ones(size, np.float32)])
    # n roundings of partial sums that stay below 500, each at most half a unit in the last place
    assert abs(float(memory[total]) - float(want_total)) <= 2 * n * 2.0**-24 * 500
    assert np.all(np.abs(memory[out] - want) <= 2 * n * 2.0**-24 * 500)
