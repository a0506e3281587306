"""Accumulations at computed places of large arrays: records of components, with and without locks."""

import re

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from lowering.simt.assembly import assembly
from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from qdtrace.analysis.machine import CPU
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Block, Program, Var, literal, ref_type
from qdtrace.ir.types import DType
from tests.lowering.harness import (
    TARGETS,
    Kernel,
    agrees,
    branch,
    f32,
    guarded,
    i32,
    loop,
    program,
    runnable,
    same_bits,
    task,
    while_loop,
)
from tests.lowering.on_gpu import gpu

F32, F64, I32 = DType.f32, DType.f64, DType.i32
N = 131


def rows_for(columns: int, dtype: DType) -> int:
    """So many that chunks have no copies of the array."""
    return CPU.accumulation.chunk_bytes // (columns * dtype.itemsize) + 3


def records(
    columns: int, dtype: DType = F32, op: str = "add", last: int | None = None, rows: int | None = None
) -> Program:
    """out[place[i], c] op= x[i, c] for the columns c below `last`."""
    shape = (rows or rows_for(columns, dtype), columns)
    place, x, out = ref_var(I32, (N,), "place"), ref_var(dtype, (N, columns), "x"), ref_var(dtype, shape, "out")

    def body(b: Builder, i: Var) -> None:
        at = b.load(place, i)
        values = [b.load(x, i, i32(c)) for c in range(last or columns)]
        for c, value in enumerate(values):
            b.accum(out, value, at, i32(c), op=op)

    return program([place, x, out], task(N, body), [out])


def given(made: Program, spread: int = 50, most: int = 4, seed: int = 0) -> list[np.ndarray]:
    """Rows that collide, those at both ends of the array among them; sums are exact in any order."""
    _, x, out = made.params
    rng = np.random.default_rng(seed)
    rows = ref_type(out).shape[0]
    places = rng.choice([*range(spread), rows - 1, rows - 2], N).astype(np.int32)
    values = rng.integers(0, most, ref_type(x).shape).astype(x.dtype.numpy)
    start = rng.integers(0, 8, ref_type(out).shape).astype(out.dtype.numpy)
    return [places, values, start]


def text_of(made: Program, target: str = "avx512") -> str:
    return emit_task(made.tasks[0], Target.named(target), EmitOptions(vectors=1)).text


def swaps(made: Program, target: str = "avx512") -> dict[str, int]:
    """Compare-and-swaps of a body that is emitted twice (full vectors, rest), by type."""
    found = re.findall(r"cmpxchg weak ptr %\w+, (i\d+)", text_of(made, target))
    return {kind: found.count(kind) // 2 for kind in dict.fromkeys(found)}


@pytest.mark.sample(6, full=4)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("dtype", [F32, F64, I32, DType.u32, DType.i64], ids=str)
def test_rows(columns: int, dtype: DType):
    made = records(columns, dtype)
    agrees(made, given(made), vectors=(None, 2))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [DType.bool, DType.u8, DType.i16, DType.f16, DType.bf16], ids=str)
@pytest.mark.parametrize("columns", [1, 2])
def test_rows_of_small_elements(columns: int, dtype: DType):
    made = records(columns, dtype)
    agrees(made, given(made, most=2))


@pytest.mark.full
@pytest.mark.parametrize("op", ["mul", "min", "max"])
@pytest.mark.parametrize("dtype", [F32, DType.u32], ids=str)
def test_other_operations(op: str, dtype: DType):
    made = records(3, dtype, op)
    place, x, start = given(made, spread=400)
    agrees(made, [place, np.maximum(x, 1), start])


def of_few_rows(columns: int, dtype: DType = F32, op: str = "add", rows: int = 9) -> Program:
    """Records of an array that chunks have copies of, also from the second column on, backward, and in a branch."""
    place, x = ref_var(I32, (N,), "place"), ref_var(dtype, (N, columns), "x")
    out = ref_var(dtype, (rows, columns), "out")

    def body(b: Builder, i: Var) -> None:
        at = b.load(place, i)
        values = [b.load(x, i, i32(c)) for c in range(columns)]

        def update(columns: range) -> None:
            for c in columns:
                b.accum(out, values[c], at, i32(c), op=op)

        update(range(columns))
        branch(b, b("eq", b("rem", i, i32(3)), i32(0)), lambda: update(range(columns)))
        update(range(1, columns))
        update(range(columns)[::-1])
        loop(b, i32(0), b("rem", i, i32(3)), i32(1), [], lambda _: update(range(columns)))

    return program([place, x, out], task(N, body), [out])


@pytest.mark.full
@pytest.mark.sample(5, full=4)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("dtype", [F32, F64, I32, DType.u32, DType.i64, DType.i16, DType.f16, DType.bf16], ids=str)
def test_rows_of_copies(columns: int, dtype: DType):
    for rows in (9, 300 // columns):
        made = of_few_rows(columns, dtype, rows=rows)
        place, x, start = given(made, spread=min(rows, 50), most=2)
        agrees(made, [place % rows, x, start], vectors=(None, 2))


@pytest.mark.full
@pytest.mark.parametrize("op", ["mul", "min", "max"])
@pytest.mark.parametrize("dtype", [F32, DType.u32], ids=str)
def test_other_operations_of_copies(op: str, dtype: DType):
    made = of_few_rows(3, dtype, op)
    place, x, start = given(made)
    agrees(made, [place % 9, np.maximum(x, 1) if op != "mul" else np.ones_like(x), start])


def test_components_of_a_copy_are_updated_together():
    text = text_of(records(3, rows=40))
    assert "fadd contract <2 x float>" in text
    assert "<2 x float>" not in text_of(records(1, rows=40))
    assert "add <4 x i32>" in text_of(records(4, I32, rows=40))


@pytest.mark.full
@pytest.mark.parametrize("spread", [1, 2, 16])
def test_lanes_that_name_the_same_row(spread: int):
    for columns in (2, 3, 4):
        made = records(columns)
        agrees(made, given(made, spread))


def neighbours(dtype: DType = F32, op: str = "add", columns: int = 0) -> Program:
    """out[i + d] op= x[i] for several d; behind that, backward where x[i] is positive. In rows, if it has columns."""
    n = rows_for(1, dtype) // 40 * 40
    shape = (n // columns, columns) if columns else (n,)
    x, out = ref_var(dtype, (N,), "x"), ref_var(dtype, shape, "out")

    def body(b: Builder, i: Var) -> None:
        value = b.load(x, i)

        def update(at: Var) -> None:
            b.accum(
                out, value, *((b("div", at, i32(columns)), b("rem", at, i32(columns))) if columns else (at,)), op=op
            )

        for d in (5, 8, 2):
            update(b("add", i, i32(d)))
        branch(b, b("gt", value, literal(0, dtype)), lambda: update(b("sub", i32(N + 4), i)))

    return program([x, out], task(N, body), [out])


@pytest.mark.full
@pytest.mark.parametrize("columns", [0, 40])
@pytest.mark.parametrize("dtype", [F32, F64, I32, DType.f16, DType.bf16, DType.u8], ids=str)
def test_neighbours(columns: int, dtype: DType):
    """Iterations meet in elements, the lanes of one update do not, with masks and at both ends."""
    made = neighbours(dtype, columns=columns)
    rng = np.random.default_rng(0)
    args = [rng.integers(0, 2, ref_type(v).shape).astype(v.dtype.numpy) for v in made.params]
    agrees(made, args, vectors=(None, 2))


@pytest.mark.full
@pytest.mark.parametrize("op", ["min", "max"])
def test_neighbours_by_other_operations(op: str):
    made = neighbours(op=op)
    rng = np.random.default_rng(0)
    agrees(made, [rng.normal(size=ref_type(v).shape).astype(np.float32) for v in made.params])


def test_neighbours_are_updated_as_vectors():
    """Without locks: a load, an addition and a store of a vector, and no loop over lanes."""
    assert re.search(r"fadd [a-z ]*<16 x float>", text_of(neighbours()))


def test_what_one_exchange_takes():
    assert swaps(records(2)) == {"i64": 1}
    assert swaps(records(4)) == {"i128": 1}
    assert swaps(records(4), "portable") == {"i64": 2}
    assert swaps(records(2, F64)) == {"i128": 1}
    assert swaps(records(6)) == {"i64": 3}
    assert swaps(records(4, last=3)) == {"i64": 1}
    assert swaps(records(8)) == {"i128": 2}
    assert swaps(records(2, I32)) == {"i64": 1}


def test_odd_rows_take_the_pairs_that_are_aligned():
    """f32 rows of three begin at a multiple of eight bytes or four after it."""
    assert swaps(records(3)) == {"i64": 1}
    assert swaps(records(5)) == {"i64": 2}
    assert swaps(records(3, F64)) == {"i128": 1}
    assert swaps(records(3, F64), "portable") == {}
    assert swaps(records(3, last=2)) == {}


def mixed(kind: str) -> Program:
    rows = rows_for(2, F32)
    place, x, out = ref_var(I32, (N,), "place"), ref_var(F32, (N, 2), "x"), ref_var(F32, (rows, 2), "out")
    seen = ref_var(F32, (N,), "seen")

    def body(b: Builder, i: Var) -> None:
        at, one, two = b.load(place, i), b.load(x, i, i32(0)), b.load(x, i, i32(1))
        first, second = (i32(1), i32(0)) if kind == "backward" else (i32(0), i32(1))
        if kind == "twice":
            second = first
        b.accum(out, one, at, first)
        if kind == "a load":
            b.store(seen, b.load(out, at, second), i)
        elif kind == "an atomic":
            b.store(seen, b("atomic", out, f32(0), at, second, op="add"), i)
        elif kind == "another row":
            b.accum(out, one, b("add", at, i32(1)), first)
        elif kind == "a branch":
            branch(b, b("gt", one, f32(1)), lambda: b.accum(out, two, at, second))
            return
        elif kind == "any component":
            second = b("rem", b("add", i, i32(1)), i32(2))
        b.accum(out, two, at, second, op="max" if kind == "another operation" else "add")

    return program([place, x, out, seen], task(N, body), [out, seen] if kind == "an atomic" else [out])


OTHERWISE = [
    "twice", "backward", "another row", "a branch", "any component", "another operation", "a load", "an atomic",
]  # fmt: skip


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", OTHERWISE)
def test_components_that_do_not_follow_each_other_are_not_put_together(kind: str):
    made = mixed(kind)
    assert "i64" not in swaps(made)
    rng = np.random.default_rng(3)
    rows = ref_type(made.params[2]).shape[0]
    # rows of their own where iterations see each other's sums
    place = rng.permutation(rows // 2)[:N].astype(np.int32) * 2
    args = [place, rng.integers(0, 4, (N, 2)).astype(np.float32), np.ones((rows, 2), np.float32),
            np.zeros(N, np.float32)]  # fmt: skip
    agrees(made, args, vectors=(None, 2))


def test_components_follow_each_other():
    assert swaps(mixed("nothing else")) == {"i64": 1}


def test_values_with_signs_and_ends():
    """Infinities, signed zeros and roundings are those of single additions: one iteration a row."""
    made = records(3)
    place, x, start = given(made)
    rng = np.random.default_rng(9)
    place = rng.permutation(start.shape[0])[:N].astype(np.int32)
    smallest = 1e-45 if gpu() is None else 1e-37  # atomic additions of NVIDIA's GPUs make zeros of subnormal numbers
    special = np.array([0.0, -0.0, np.inf, -np.inf, smallest, 1e38, 1 / 3], np.float32)
    agrees(made, [place, rng.choice(special, x.shape), rng.choice(special[[0, 1, 4, 5, 6]], start.shape)])


@pytest.mark.full
def test_under_masks_and_in_loops():
    rows = rows_for(3, F32)
    place, x, out = ref_var(I32, (N,), "place"), ref_var(F32, (N, 3), "x"), ref_var(F32, (rows, 3), "out")

    def row(b: Builder, i: Var, at: Var) -> None:
        for c in range(3):
            b.accum(out, b.load(x, i, i32(c)), at, i32(c))

    def body(b: Builder, i: Var) -> None:
        at = b.load(place, i)
        even = b("eq", b("rem", at, i32(2)), i32(0))
        outside = b("sub", i32(0), b("mul", at, i32(10**6)))
        branch(b, even, lambda: row(b, i, at))
        branch(b, b("lt", at, i32(0)), lambda: row(b, i, outside))
        loop(b, i32(0), b("rem", at, i32(4)), i32(1), [], lambda j: row(b, i, b("add", at, j)))

        def turn(a: Var) -> list[Var]:
            row(b, i, a)
            return [b("sub", a, i32(1))]

        while_loop(b, [b("rem", at, i32(3))], lambda a: b("gt", a, i32(0)), turn)

    made = program([place, x, out], task(N, body), [out])
    places, values, start = given(made)
    agrees(made, [np.minimum(places, rows - 5), values, start], vectors=(None, 2))


@pytest.mark.full
def test_lanes_that_are_refilled():
    rows = rows_for(2, F32)
    place, x, out = ref_var(I32, (N,), "place"), ref_var(F32, (N, 2), "x"), ref_var(F32, (rows, 2), "out")

    def body(b: Builder, i: Var) -> None:
        at = b.load(place, i)

        def turn(j: Var, a: Var) -> list[Var]:
            for _ in range(12):
                a = b("max", b("sub", a, f32(1)), b("mul", a, f32(0)))
                a = b("add", a, b.load(x, i, i32(0)))
            return [a]

        (total,) = loop(b, i32(0), b("rem", at, i32(7)), i32(1), [f32(0)], turn)
        b.accum(out, b("min", total, f32(4)), at, i32(0))
        b.accum(out, b.load(x, i, i32(1)), at, i32(1))
        branch(b, b("gt", total, f32(2)), lambda: b.accum(out, f32(1), at, i32(0)))

    made = program([place, x, out], task(N, body), [out])
    assert "refill" in emit_task(made.tasks[0], Target.named("avx512")).reason
    assert re.search("cmpxchg weak ptr %\\w+, i64", text_of(made))
    agrees(made, given(made), vectors=(None, 2))


@pytest.mark.full
def test_a_row_that_is_the_same_for_all_lanes():
    where, x = ref_var(I32, (), "where"), ref_var(F32, (N, 2), "x")
    out, place = ref_var(F32, (rows_for(2, F32), 2), "out"), ref_var(I32, (N,), "place")

    def body(b: Builder, i: Var) -> None:
        def side(j: Var) -> None:
            for c in range(2):
                b.accum(out, b.load(x, i, i32(c)), b("add", j, b.load(where)), i32(c))

        loop(b, i32(0), i32(3), i32(1), [], side)
        b.accum(out, literal(1, F32), b.load(place, i), i32(0))

    made = program([where, place, x, out], task(N, body), [out])
    places, values, start = given(program([place, x, out], made.tasks[0], [out]))
    agrees(made, [np.array(5, np.int32), places, values, start], vectors=(None, 2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [F32, F64, I32, DType.bool, DType.u8, DType.f16, DType.bf16, DType.u64], ids=str)
@pytest.mark.parametrize("op", ["add", "min", "max", "mul"])
def test_copies_are_merged(dtype: DType, op: str, target: str):
    """Two arrays with tails; pieces of the merge that end anywhere; in the order of the copies."""
    sizes = (CPU.accumulation.chunk_bytes // dtype.itemsize + 1, CPU.accumulation.chunk_bytes // 4 + 37)
    k, one, two = ref_var(I32, (N,), "k"), ref_var(dtype, sizes[:1], "one"), ref_var(F32, sizes[1:], "two")

    def body(b: Builder, i: Var) -> None:
        b.accum(one, literal(1, dtype), b.load(k, i), op=op)
        b.accum(two, f32(1), b.load(k, i))

    kernel = Kernel(task(N, body), runnable(target))
    arrays, nbytes = kernel.code.copies.parts, kernel.code.copies.nbytes
    assert [a.ref for a in arrays] == [one, two]
    rng = np.random.default_rng(4)
    start, more = rng.integers(0, 3, sizes[0]).astype(dtype.numpy), rng.standard_normal(sizes[1]).astype(np.float32)
    memory = {k: np.zeros(N, np.int32), one: guarded(start)[1], two: guarded(more)[1]}
    copies = np.zeros((3, nbytes), np.uint8)
    want_one, want_two = start.copy(), more.copy()
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "mul": np.multiply}[op]
    for n, copy in enumerate(copies):
        first = copy[: arrays[0].nbytes].view(dtype.numpy)
        first[:] = arrays[0].neutral.value if n == 1 else rng.integers(0, 3, sizes[0])
        second = copy[arrays[1].offset :][: arrays[1].nbytes].view(np.float32)
        second[:] = rng.standard_normal(sizes[1])
        want_one = want_one if n == 1 else function(want_one, first)
        want_two = want_two + second
    lines = nbytes // 64
    kernel.merge(memory, copies.reshape(-1), (1, 100, lines // 2, lines - 1))
    same_bits(memory[one], want_one, "one")
    same_bits(memory[two], want_two, "two")


VECTORS = {
    (2, 0, 2): ["v2"],
    (3, 0, 3): ["v2", "1"],
    (4, 0, 4): ["v4"],
    (4, 1, 3): ["v2", "1"],
    (4, 1, 2): ["1", "1"],
    (5, 0, 5): ["v2", "v2", "1"],
    (6, 0, 6): ["v2", "v2", "v2"],
    (8, 2, 5): ["v2", "v2", "1"],
}
"""Columns of a row, the first one and the number that are added to; the additions of a GPU with vectors."""


def part_of_rows(columns: int, first: int, count: int) -> Program:
    """out[place[i], c] += x[i, c] for `count` columns from `first` on."""
    made = records(columns)
    (task_,) = made.tasks
    accums = [e for e in task_.body.eqns if e.primitive.name == "accum"]
    left = {*accums[:first], *accums[first + count :]}
    body = Block((), tuple(e for e in task_.body.eqns if e not in left))
    return made.rebuilt([task_.rebuilt(body)])


@pytest.mark.full
@pytest.mark.parametrize("where", VECTORS, ids=str)
def test_parts_of_rows(where: tuple[int, int, int]) -> None:
    made = part_of_rows(*where)
    agrees(made, given(made))


@pytest.mark.parametrize("where", VECTORS, ids=str)
def test_gpus_with_vector_additions_take_the_aligned_components_of_a_row_at_once(where: tuple[int, int, int]) -> None:
    made = part_of_rows(*where)
    text = emit_kernels(made.tasks[0], device("sm_90")).text
    found = re.findall(r"global\.add\.(v\d)|(atomicrmw fadd)", text)
    assert [vector or "1" for vector, _ in found] == VECTORS[where]
    assert assembly(text, device("sm_90")).count(".add.v") == sum(v != "1" for v in VECTORS[where])
    assert ".add.v" not in emit_kernels(made.tasks[0], device("sm_80")).text


@pytest.mark.parametrize(("dtype", "op"), [(F64, "add"), (I32, "add"), (F32, "mul")], ids=str)
def test_other_updates_of_gpus_are_of_one_element(dtype: DType, op: str) -> None:
    text = emit_kernels(records(4, dtype, op).tasks[0], device("sm_90")).text
    assert ".add.v" not in text
