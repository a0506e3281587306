"""Tasks over products of ranges keep to rows: contiguous access beside the diagonal, no division per lane."""

import numpy as np
import pytest

from lowering.llvm.facts import TaskFacts
from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from lowering.simd.plan import plan_task
from lowering.simd.rows import find_row
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Task, Var, literal
from qdtrace.ir.types import DType
from tests.lowering.harness import agrees, f32, i32, loop, program, task

F32, I32 = DType.f32, DType.i32


def decode(b: Builder, flat: Var, lengths: tuple[int, ...]) -> list[Var]:
    """Indices of a product of ranges, the last fastest."""
    found: list[Var] = []
    for length in reversed(lengths[1:]):
        n = literal(length, flat.dtype)
        found.insert(0, b("rem", flat, n))
        flat = b("div", flat, n)
    return [flat, *found]


def simplified(b: Builder, flat: Var, lengths: tuple[int, ...]) -> list[Var]:
    """The same where a quotient of a quotient has become one quotient, as passes make it."""
    found: list[Var] = []
    for k, length in enumerate(lengths):
        behind = int(np.prod(lengths[k + 1 :]))
        whole = b("div", flat, literal(behind, flat.dtype)) if behind > 1 else flat
        found.append(b("rem", whole, literal(length, flat.dtype)) if k else whole)
    return found


def halo(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n + 2 for n in shape)


def stencil(shape: tuple[int, ...], start: int = 0, dtype: DType = I32, split=decode) -> tuple[Task, Var, Var]:
    """Sum of the two neighbours along the first and the last axis; arrays have a border of one."""
    x, y = ref_var(F32, halo(shape), "x"), ref_var(F32, halo(shape), "y")
    b, flat = Builder(), scalar_var(dtype, "f")
    one = literal(1, dtype)
    with b.block() as block:
        index = [b("add", i, one) for i in split(b, flat, shape)]
        up = b.load(x, b("sub", index[0], one), *index[1:])
        right = b.load(x, *index[:-1], b("add", index[-1], one))
        left = b.load(x, *index[:-1], b("sub", index[-1], one))
        b.store(y, b("add", up, b("sub", right, b("mul", left, f32(2)))), *index)
    stop = int(np.prod(shape))
    return Task("range_for", flat, literal(start, dtype), literal(stop, dtype), block.close()), x, y


@pytest.mark.full
@pytest.mark.parametrize("dtype", [I32, DType.i64], ids=["i32", "i64"])
@pytest.mark.parametrize("shape", [(5, 16), (3, 61), (2, 3, 29), (7, 3)])
@pytest.mark.parametrize("split", [decode, simplified])
def test_stencils(shape: tuple[int, ...], dtype: DType, split):
    made, x, y = stencil(shape, dtype=dtype, split=split)
    p = program([x, y], made, [y])
    values = np.arange(x.type.size, dtype=np.float32).reshape(x.type.shape)
    agrees(p, [values, np.zeros_like(values)], cuts=(0.03, 0.31, 0.5, 0.81), vectors=(None, 1, 4))


@pytest.mark.parametrize(("dtype", "narrow"), [(I32, I32), (DType.i64, DType.i64), (DType.i64, I32)])
def test_what_is_divided_in_a_narrower_dtype_has_no_rows(dtype: DType, narrow: DType):
    """Iterations 2**32 apart divide the same number there."""
    x = ref_var(F32, (66, 66), "x")
    b, flat = Builder(), scalar_var(dtype, "f")
    with b.block() as block:
        b.store(x, f32(1), *decode(b, flat if narrow is dtype else b.convert(flat, narrow), (64, 64)))
    made = Task("range_for", flat, literal(0, dtype), literal(4096, dtype), block.close())
    assert (find_row(TaskFacts(made)) is None) == (narrow is not dtype)


def test_ranges_that_begin_inside_a_row():
    made, x, y = stencil((4, 40), start=57)
    values = np.arange(x.type.size, dtype=np.float32).reshape(x.type.shape)
    agrees(program([x, y], made, [y]), [values, np.zeros_like(values)])


@pytest.mark.parametrize("shape", [(64, 64), (16, 16, 64), (4, 4, 4, 64)])
def test_neighbours_are_plain_vectors(shape: tuple[int, ...]):
    made, *_ = stencil(shape, split=simplified)
    text = emit_task(made, Target.named("avx512")).text
    assert "gather" not in text
    assert "scatter" not in text
    assert "rows of 64" in emit_task(made, Target.named("avx512")).reason


def test_whole_arrays_are_not_cut_into_rows():
    """The split cancels in every address, so the flat index is all there is."""
    x, y = ref_var(F32, (20, 64), "x"), ref_var(F32, (20, 64), "y")

    def body(b: Builder, i: Var) -> None:
        index = decode(b, i, (20, 64))
        b.store(y, b.load(x, *index), *index)

    assert "rows" not in emit_task(task(20 * 64, body), Target.named("avx512")).reason


def test_short_rows_are_left_alone():
    made, *_ = stencil((64, 5))
    assert "rows" not in emit_task(made, Target.named("avx512")).reason


@pytest.mark.parametrize(
    ("length", "lanes"), [(4, 4), (8, 8), (10, 4), (13, 16), (16, 16), (20, 8), (24, 16), (31, 16)]
)
def test_vectors_are_as_short_as_rows_that_would_be_gathered(length: int, lanes: int):
    made, x, y = stencil((6, length))
    assert emit_task(made, Target.named("avx512")).reason.startswith(f"{lanes} lanes of 32 bits")
    values = np.arange(x.type.size, dtype=np.float32).reshape(x.type.shape)
    agrees(program([x, y], made, [y]), [values, np.zeros_like(values)], cuts=(0.03, 0.31, 0.5), vectors=(None, 1, 4))


def test_vectors_that_leave_a_row_are_whole():
    """Four vectors, which the user asked for, are longer than a row: lanes are as many as without one."""
    made, *_ = stencil((6, 8))
    assert emit_task(made, Target.named("avx512"), EmitOptions(vectors=4)).reason.startswith("16 lanes of 32 bits x 4")


def test_many_operations_keep_whole_vectors():
    x = ref_var(F32, (64, 8), "x")

    def body(b: Builder, flat: Var) -> None:
        i, j = decode(b, flat, (64, 8))
        value = b("add", b.load(x, i, j), b.convert(i, F32))
        for _ in range(12):
            value = b("sin", b("exp", value))
        b.store(x, value, i, j)

    assert emit_task(task(64 * 8, body), Target.named("avx512")).reason.startswith("16 lanes")


@pytest.mark.full
def test_values_of_both_indices_and_loops_over_them():
    shape = (9, 33)
    x, y, z = ref_var(F32, shape, "x"), ref_var(F32, shape, "y"), ref_var(I32, (9,), "z")

    def body(b: Builder, flat: Var) -> None:
        i, j = decode(b, flat, shape)
        (a,) = loop(b, i32(0), i, i32(1), [b.convert(j, F32)], lambda k, a: [b("add", a, b.load(x, k, j))])
        (c,) = loop(b, i32(0), j, i32(3), [a], lambda k, a: [b("sub", a, b.load(x, i, k))])
        b.store(y, b("add", c, b.convert(b("mul", i, i32(100)), F32)), i, j)
        b.accum(z, j, i)

    p = program([x, y, z], task(9 * 33, body), [y, z])
    values = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    agrees(p, [values, np.zeros(shape, np.float32), np.zeros(9, np.int32)], vectors=(None, 1))


def test_the_remainder_of_a_shifted_index():
    n = 200
    y = ref_var(I32, (n,), "y")

    def body(b: Builder, i: Var) -> None:
        moved = b("add", i, i32(13))
        q, r = b("div", moved, i32(20)), b("rem", moved, i32(20))
        other = b("rem", i, i32(20))
        b.store(y, b("add", b("mul", q, i32(1000)), b("sub", r, b("mul", other, i32(50)))), i)

    agrees(program([y], task(n, body), [y]), [np.zeros(n, np.int32)], vectors=(None, 1))


@pytest.mark.parametrize(("length", "found"), [(1, False), (2, True), (8, True), (7, True), (17, True), (13, True)])
def test_loops_keep_to_rows_that_fill_half_of_the_lanes(length: int, found: bool):
    """Without rows each trip of the loop would gather both operands."""
    x, y = ref_var(F32, (5, 4, length), "x"), ref_var(F32, (5, length), "y")
    b, flat = Builder(), scalar_var(I32, "f")
    with b.block() as block:
        row, column = decode(b, flat, (5, length))
        (total,) = loop(
            b, i32(0), i32(4), i32(1), [f32(0)], lambda k, total: [b("add", total, b.load(x, row, k, column))]
        )
        b.store(y, total, row, column)
    made = Task("range_for", flat, i32(0), i32(5 * length), block.close())
    code = emit_task(made, Target.named("avx512"))
    assert (f"rows of {length}" in code.reason) == found
    values = np.arange(x.type.size, dtype=np.float32).reshape(x.type.shape)
    agrees(program([x, y], made, [y]), [values, np.zeros((5, length), np.float32)], cuts=(0.03, 0.31, 0.5, 0.81))


@pytest.mark.full
@pytest.mark.parametrize("length", [2, 7, 16, 33, 100])
@pytest.mark.parametrize("op", ["add", "max"])
def test_sums_of_pairs_by_both_indices(length: int, op: str):
    """Lanes add to neighbouring elements, and to one of their row; copies for lanes would be no use."""
    n = 4000 // length
    x, y = ref_var(F32, (n, length), "x"), ref_var(F32, (length + 3,), "y")
    z = ref_var(F32, (n,), "z")
    b, flat = Builder(), scalar_var(I32, "f")
    with b.block() as block:
        row, column = decode(b, flat, (n, length))
        value = b.load(x, row, column)
        b.accum(y, value, b("add", column, i32(2)), op=op)
        b.accum(z, b("mul", value, f32(2)), row, op=op)
    made = Task("range_for", flat, i32(0), i32(n * length), block.close())
    values = np.random.default_rng(length).integers(-9, 9, (n, length)).astype(np.float32)
    args = [values, np.ones(length + 3, np.float32), np.zeros(n, np.float32)]
    agrees(program([x, y, z], made, [y, z]), args, cuts=(0.03, 0.31, 0.5, 0.81), vectors=(None, 1))
    if length == 100:
        (column_sums, row_sums) = plan_task(made, Target.named("avx512")).accumulation.slot.parts
        assert (column_sums.lanes, row_sums.lanes) == (1, 1)


def test_a_digit_of_one_value_beside_the_quotient():
    """Lanes hold `f // 36` of 36 iterations as a vector, so what is added to it is one, too."""
    x, y = ref_var(F32, (36,), "x"), ref_var(I32, (36,), "y")

    def body(b: Builder, flat: Var) -> None:
        outer, middle = b("div", flat, i32(36)), b("div", flat, i32(6))
        rows = b("add", b("mul", outer, i32(2)), middle)
        colour = b("rem", b("add", rows, b("rem", flat, i32(6))), i32(4))
        b.store(y, b("add", colour, b.convert(b.load(x, flat), I32)), flat)

    p = program([x, y], task(36, body), [y])
    agrees(p, [np.arange(36, dtype=np.float32), np.zeros(36, np.int32)])
