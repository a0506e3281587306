"""Arrays of records: whole records move by contiguous vectors, in every order of loads and stores."""


import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Literal, Program, Var
from qdtrace.ir.types import DType
from tests.lowering.harness import TARGETS, agrees, branch, f32, i32, loop, program, task
from tests.selection import drawn

F32, I32 = DType.f32, DType.i32
N = 37


def check(made: Program, *args: np.ndarray, targets=TARGETS) -> str:
    """Compares with the reference, one and two vectors a step; returns the AVX-512 text."""
    agrees(made, args, targets, vectors=(1, 2))
    return emit_task(made.tasks[0], Target.named("avx512")).text


def numbers(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("width", [2, 3, 4, 5, 8, 9, 10, 12, 15, 16, 17, 31, 36])
def test_records_of_every_width(width: int):
    """Of long ones three elements at most are left behind their pieces."""
    x, y = ref_var(F32, (N, width), "x"), ref_var(F32, (N, width), "y")

    def body(b: Builder, i: Var) -> None:
        for c in range(width):
            b.store(y, b("sub", b.load(x, i, i32(c)), b.load(x, i, i32((c + 1) % width))), i, i32(c))

    text = check(program([x, y], task(N, body), [y]), numbers(N, width), numbers(N, width))
    assert ("gather" in text) is (width > 9 and width % 4 > 0)


def text_of_reversed_records(width: int) -> str:
    """Returns LLVM's text of a task that stores the elements of records in reverse, by vectors of 16."""
    x, y = ref_var(F32, (N, width), "x"), ref_var(F32, (N, width), "y")

    def body(b: Builder, i: Var) -> None:
        for c in range(width):
            b.store(y, b.load(x, i, i32(c)), i, i32(width - 1 - c))

    made = program([x, y], task(N, body), [y])
    return emit_task(made.tasks[0], Target.named("avx512"), EmitOptions(vectors=1)).text


@pytest.mark.parametrize(("width", "most"), [(2, 4), (3, 18), (4, 16), (6, 48), (8, 48), (16, 128)])
def test_shuffles_of_records(width: int, most: int):
    """Records of 2 n elements are halves of n: a load and a store of all of 16 take 64 shuffles each, and not 240."""
    text = text_of_reversed_records(width)
    shuffles = text.count("shufflevector <16 x float>")
    assert shuffles <= 2 * most  # whole vectors, and the rest


@pytest.mark.parametrize(("width", "lengths"), [(20, (16, 4)), (40, (16, 16, 8)), (44, (16, 16, 8, 4))])
def test_rows_are_turned_by_one_function_of_a_length(width: int, lengths: tuple[int, ...]):
    """Of a length that a task turns several times there is one text; rows of 16 are turned by calls then."""
    text = text_of_reversed_records(width)
    for length in (16, 8, 4):
        for what in ("load", "store"):
            name = f"@qd_{what}_some_16x{length}xfloat("
            defined = [line for line in text.splitlines() if line.startswith("define") and name in line]
            assert len(defined) == (length in lengths)
            assert text.count(name) == lengths.count(length) + len(defined)
            assert sum(" noinline " in line for line in defined) == (length == 16 and lengths.count(16) > 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", [3, 37])
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_records_of_every_dtype(dtype: DType, size: int):
    x, y = ref_var(dtype, (N, size), "x"), ref_var(dtype, (N, size), "y")

    def body(b: Builder, i: Var) -> None:
        for c in range(size):
            b.store(y, b.load(x, i, i32(c)), i, i32(size - 1 - c))

    values = numbers(N, size) % (2 if dtype is DType.bool else 100)
    values = values.astype(bool if dtype is DType.bool else dtype.numpy)
    check(program([x, y], task(N, body), [y]), values, np.zeros_like(values), targets=("avx512", "avx2"))


@pytest.mark.full
def test_small_matrices_and_flat_records():
    x, y = ref_var(F32, (N, 2, 2), "x"), ref_var(F32, (4 * N,), "y")

    def body(b: Builder, i: Var) -> None:
        for k in range(4):
            place = b("add", b("mul", i, i32(4)), i32(k))
            b.store(y, b.load(x, i, i32(k % 2), i32(k // 2)), place)

    text = check(program([x, y], task(N, body), [y]), numbers(N, 2, 2), numbers(4 * N))
    assert "gather" not in text
    assert "scatter" not in text


def test_what_is_not_complete_is_scattered():
    x = ref_var(F32, (N, 3), "x")

    def body(b: Builder, i: Var) -> None:
        b.store(x, f32(-1), i, i32(2))
        b.store(x, f32(-2), i, i32(0))

    assert "scatter" in check(program([x], task(N, body), [x]), numbers(N, 3))


@pytest.mark.full
def test_loads_see_the_stores_before_them():
    x = ref_var(F32, (N, 3), "x")

    def body(b: Builder, i: Var) -> None:
        one = lambda c: b.load(x, i, i32(c))  # noqa: E731
        b.store(x, b("add", one(0), f32(1)), i, i32(0))
        b.store(x, b("add", one(0), one(1)), i, i32(1))
        b.store(x, b("mul", one(0), f32(2)), i, i32(0))
        b.store(x, b("add", b("add", one(0), one(1)), one(2)), i, i32(2))
        b.store(x, b("neg", one(1)), i, i32(1))

    check(program([x], task(N, body), [x]), numbers(N, 3))


def test_stores_around_control_flow():
    x, k = ref_var(F32, (N, 2), "x"), ref_var(I32, (N,), "k")

    def body(b: Builder, i: Var) -> None:
        b.store(x, f32(7), i, i32(1))
        odd = b("eq", b("and", b.load(k, i), i32(1)), i32(1))

        def side() -> None:
            b.store(x, b.load(x, i, i32(1)), i, i32(0))
            b.store(x, f32(3), i, i32(1))

        branch(b, odd, side)
        loop(
            b, i32(0), b.load(k, i), i32(1), [],
            lambda j: b.store(x, b("add", b.load(x, i, i32(0)), b("convert", j, dtype=F32)), i, i32(0)),
        )  # fmt: skip
        b.store(x, b("add", b.load(x, i, i32(1)), f32(1)), i, i32(1))

    check(program([x, k], task(N, body), [x]), numbers(N, 2), np.random.default_rng(0).integers(0, 6, N, np.int32))


def test_a_store_elsewhere_comes_after_what_waits():
    """The second store is to one place of the same array, the last iteration's own."""
    x = ref_var(F32, (N, 2), "x")

    def body(b: Builder, i: Var) -> None:
        b.store(x, f32(1), i, i32(0))
        last = b("eq", i, i32(N - 1))
        branch(b, last, lambda: b.store(x, f32(5), i32(N - 1), i32(0)))
        b.store(x, f32(2), i, i32(1))

    check(program([x], task(N, body), [x]), numbers(N, 2))


@pytest.mark.full
def test_accumulations_into_records_are_plain():
    x, v = ref_var(F32, (N, 3), "x"), ref_var(F32, (N, 3), "v")

    def body(b: Builder, i: Var) -> None:
        for c in range(3):
            b.accum(x, b("mul", b.load(v, i, i32(c)), f32(2)), i, i32(c))
        b.accum(x, f32(1), i, i32(1))

    text = check(program([x, v], task(N, body), [x]), numbers(N, 3), numbers(N, 3))
    assert "atomicrmw" not in text


def moves(rng: np.random.Generator) -> tuple[Program, list[np.ndarray]]:
    """Returns a task that copies elements of long records to others, in any order, some of them under a branch."""
    size, lines = int(rng.integers(10, 40)), int(rng.integers(1, 3))
    last, shape = lines * size, (N, size) if lines == 1 else (N, lines, size)
    x, y, z = (ref_var(F32, shape, name) for name in "xyz")
    k = ref_var(I32, (N,), "k")

    def place(i: Var, c: int) -> list[Var | Literal]:
        return [i, i32(c)] if lines == 1 else [i, i32(c // size), i32(c % size)]

    def some() -> list[int]:
        first = int(rng.integers(0, last // 2)) if rng.integers(2) else 0
        return [int(c) for c in rng.permutation(range(first, last))] if rng.integers(3) == 0 else [*range(first, last)]

    def body(b: Builder, i: Var) -> None:
        def step() -> None:
            read = {c: b.load(x, *place(i, c)) for c in some()}
            for c in some():
                kind = rng.integers(12)
                value = b("add", read.get(c, f32(c)), b.load(z if kind == 0 else x, *place(i, int(rng.integers(last)))))
                b.store(z if kind == 1 else y, value, *place(i, c))
                if kind == 2:
                    b.accum(y, f32(1), *place(i, int(rng.integers(last))))

        odd = b("eq", b.load(k, i), i32(1))
        for _ in range(rng.integers(1, 3)):
            if rng.integers(3):
                step()
            else:
                branch(b, odd, step)

    odd = rng.choice([0, 1], N, p=[0.1, 0.9]).astype(np.int32)
    made = program([x, y, z, k], task(N, body), [y, z])
    return made, [numbers(*shape), -numbers(*shape), 2 * numbers(*shape), odd]


@pytest.mark.full
def test_long_records_in_every_order():
    """Pieces are moved whole where a block reads or stores all of them, whatever is between, and part of a step."""
    moved = 0
    for seed in range(drawn(45)):
        made, args = moves(np.random.default_rng(seed))
        moved += "_some_" in check(made, *args)
    assert moved > 5
