"""Addresses, gathers and scatters, private memory, accumulations and atomics."""

import ctypes
import re
import threading

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Var, literal
from qdtrace.ir.types import DType
from tests.lowering.harness import TARGETS, Kernel, agrees, branch, execute, f32, i32, loop, program, runnable, task
from tests.lowering.test_control import arguments, buffers, check

F32, I32, BOOL = DType.f32, DType.i32, DType.bool
N = 37


def text_of(made, target: str = "avx512") -> str:
    """The LLVM text of the first task."""
    return emit_task(made.tasks[0], Target.named(target)).text


@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_every_dtype_goes_through_memory_unchanged(dtype: DType):
    rng = np.random.default_rng(1)
    x, y, z = (ref_var(dtype, (N,), h) for h in "xyz")
    order = ref_var(I32, (N,), "order")
    raw = rng.integers(0, 256, N * dtype.itemsize).astype(np.uint8)
    values = (raw[:N] & 1).astype(bool) if dtype is BOOL else raw.view(dtype.numpy)

    def body(b: Builder, i: Var) -> None:
        b.store(y, b.load(x, i), i)
        b.store(z, b.load(x, b.load(order, i)), b.load(order, i))

    made = program([x, order, y, z], task(N, body), [y, z])
    agrees(made, [values, rng.permutation(N).astype(np.int32), np.zeros_like(values), np.zeros_like(values)])


@pytest.mark.parametrize(("scale", "shift"), [(1, 0), (1, 3), (-1, N - 1), (2, 1), (3, 2), (-2, 2 * N)])
def test_strided_access(scale: int, shift: int):
    x, y = ref_var(F32, (3 * N + 5,), "x"), ref_var(F32, (3 * N + 5,), "y")

    def body(b: Builder, i: Var) -> None:
        place = b("add", b("mul", i, i32(scale)), i32(shift))
        b.store(y, b("add", b.load(x, place), f32(1)), place)

    made = program([x, y], task(N, body), [y])
    agrees(made, [np.arange(3 * N + 5, dtype=np.float32), np.zeros(3 * N + 5, np.float32)], vectors=(None, 2))


def test_rows_and_columns():
    x, y = ref_var(F32, (N, 3), "x"), ref_var(F32, (3, N), "y")

    def body(b: Builder, i: Var) -> None:
        for c in range(3):
            b.store(y, b("mul", b.load(x, i, i32(c)), f32(c + 1)), i32(c), i)

    made = program([x, y], task(N, body), [y])
    agrees(made, [np.arange(3 * N, dtype=np.float32).reshape(N, 3), np.zeros((3, N), np.float32)])
    assert "masked.scatter" not in text_of(made)


@pytest.mark.parametrize("shape", [(5, 8), (4, 3, 6)])
def test_the_mixed_radix_split_of_a_flat_index_is_contiguous(shape: tuple[int, ...]):
    size = int(np.prod(shape))
    x, y = ref_var(F32, (*shape[:-1], shape[-1] + 0), "x"), ref_var(F32, shape, "y")

    def body(b: Builder, i: Var) -> None:
        indices, rest = [], i
        for extent in reversed(shape[1:]):
            indices.insert(0, b("rem", rest, i32(extent)))
            rest = b("div", rest, i32(extent))
        indices.insert(0, rest)
        inside = b("lt", indices[-1], i32(shape[-1] - 1))
        following = [*indices[:-1], b("add", indices[-1], i32(1))]
        (right,) = branch(b, inside, lambda: [b.load(x, *following)], lambda: [f32(0)])
        b.store(y, b("add", b.load(x, *indices), right), *indices)

    made = program([x, y], task(size, body), [y])
    agrees(made, [np.arange(size, dtype=np.float32).reshape(shape), np.zeros(shape, np.float32)])
    text = text_of(made)
    assert "gather" not in text
    assert "scatter" not in text


def test_indices_that_wrap_keep_their_meaning():
    """A hash: 32 bit products wrap, so it is no affine function of the index."""
    x, y = ref_var(F32, (64,), "x"), ref_var(F32, (N,), "y")

    def body(b: Builder, i: Var) -> None:
        hashed = b("mul", i, i32(-1640531527))
        place = b("shift_right_logical", hashed, i32(26))
        wrapped = b("add", b("sub", b("mul", i, i32(1 << 30)), b("mul", i, i32(1 << 30))), i)
        b.store(y, b("add", b.load(x, place), b.load(x, b("div", wrapped, i32(2)))), i)

    made = program([x, y], task(N, body), [y])
    agrees(made, [np.arange(64, dtype=np.float32), np.zeros(N, np.float32)])


FAR = """program p(x: ref[i32,40], p: ref[i32,40], y: ref[i32,40], z: ref[i32,40])
  range_for i in {start}:i32 : -2147483610:i32
    k: i32 = {op} i -2147483648:i32
    v: i32 = load x k
    store y v k
    g: i32 = load p k
    h: i32 = {op} g -2147483648:i32
    w: i32 = load x h
    c: cell[i32,40] = cell[dtype=i32, shape=(40)]
    store c w h
    store c v k
    u: i32 = load c k
    store z u k
  return y, z
"""


@pytest.mark.parametrize("op", ["add", "sub"])
@pytest.mark.parametrize("start", [-(1 << 31), -(1 << 31) + 3])
def test_sums_of_an_index_and_a_large_number(op: str, start: int):
    """They wrap around on their way into the array, by vectors, gathers and scalars, and into private arrays."""
    places = (np.arange(40) * 7 % 40 - (1 << 31)).astype(np.int32)
    args = [np.arange(40, dtype=np.int32), places, *np.zeros((2, 40), np.int32)]
    agrees(parse_program(FAR.format(start=start, op=op)), args)


LOW_HALVES = """program p(x: ref[i32,40], p: ref[{d},40], n: ref[{d}], y: ref[i32,40], z: ref[i32,40])
  range_for i in 0:i32 : 40:i32
    head
      far: {d} = load n
    g: {d} = load p i
    h: i32 = convert[dtype=i32] g
    h1: i32 = add h 1:i32
    v: i32 = load x h1
    store y v i
    m: i32 = convert[dtype=i32] far
    m1: i32 = add m 1:i32
    c: cell[i32,40] = cell[dtype=i32, shape=(40)]
    store c v m1
    u: i32 = load c m1
    k: i32 = add m1 i
    w: i32 = load x k
    e: i32 = load x m1
    uw: i32 = add u w
    s: i32 = add uw e
    store z s i
  return y, z
"""


@pytest.mark.every_case
@pytest.mark.parametrize("dtype", [DType.u32, DType.i64, DType.u64], ids=str)
@pytest.mark.parametrize("more", [0, 1 << 32, 5 << 32])
def test_indices_that_are_the_low_half_of_a_number(dtype: DType, more: int):
    """And a sum beyond the largest u32: by vectors, gathers and scalars, and in private arrays."""
    least = more - 1  # the number of element 0
    numbers = (least + np.arange(40) * 7 % 40).astype(dtype.numpy)
    far = np.array(least).astype(dtype.numpy)
    args = [np.arange(40, dtype=np.int32), numbers, far, *np.zeros((2, 40), np.int32)]
    agrees(parse_program(LOW_HALVES.format(d=dtype.value)), args)


FOLDED = """program p(x: ref[i32,40], y: ref[i32,40])
  range_for i in 0:i32 : 40:i32
    k: i32 = convert[dtype=i32] 4294967303:i64
    v: i32 = load x k
    c: cell[i32,40] = cell[dtype=i32, shape=(40)]
    store c v k
    u: i32 = load c k
    w: i32 = load c 7:i32
    s: i32 = add u w
    store y s i
  return y
"""


def test_an_index_that_is_the_low_half_of_a_constant():
    agrees(parse_program(FOLDED), [np.arange(40, dtype=np.int32), np.zeros(40, np.int32)])


def test_gather_in_two_dimensions():
    table = ref_var(F32, (6, 10), "table")
    _x, k, y, _z = refs = buffers(N)

    def body(b: Builder, i: Var) -> None:
        row = b("min", b("max", b.load(k, i), i32(0)), i32(5))
        column = b("rem", i, i32(10))
        b.store(y, b("add", b.load(table, row, column), b.load(table, i32(2), column)), i)

    made = program([*refs, table], task(N, body), [y])
    agrees(made, [*arguments(N), np.arange(60, dtype=np.float32).reshape(6, 10)])


NEAR = """program p(x: ref[f32,40], y: ref[f32,40])
  range_for i in 0:i32 : 40:i32
    c: cell[f32,40] = cell[dtype=f32, shape=(40)]
    for j in 0:i32 : 40:i32 : 1:i32
      a: f32 = load x j
      store c a j
    for k in 3:i32 : 37:i32 : 1:i32
      before: i32 = sub k 3:i32
      after: i32 = add k 2:i32
      u: f32 = load c before
      v: f32 = load c k
      w: f32 = load c after
      s: f32 = sub u v
      t: f32 = sub w s
      store c t k
    z: f32 = load c i
    store y z i
  return y
"""


@pytest.mark.parametrize("vectors", [1, 2])
def test_private_elements_a_constant_apart_have_one_address(vectors: int):
    made = parse_program(NEAR)
    agrees(made, [np.arange(40, dtype=np.float32) ** 2, np.zeros(40, np.float32)], vectors=(vectors,))
    text = emit_task(made.tasks[0], Target.named("avx512"), EmitOptions(vectors=vectors)).text
    numbers = [line for line in text.splitlines() if " = mul i64 " in line]
    assert len(numbers) == 2 * (vectors - 1)  # one in each loop


@pytest.mark.full
def test_private_arrays_with_uniform_and_varying_indices():
    def body(b: Builder, i, x, k, y, z):
        cell = b.cell(F32, (8,))
        loop(b, i32(0), i32(8), i32(1), [], lambda j: b.store(cell, b("mul", b.load(x, j), b.load(x, i)), j))
        mine = b("and", b("add", i, b.load(k, i)), i32(7))
        b.store(cell, b("add", b.load(cell, mine), f32(1)), mine)
        branch(b, b("gt", b.load(k, i), i32(2)), lambda: b.store(cell, f32(9), i32(3)))
        b.accum(cell, f32(2), i32(1))
        (total,) = loop(b, i32(0), i32(8), i32(1), [f32(0)], lambda j, a: [b("add", a, b.load(cell, j))])
        b.store(y, b("add", total, b.load(cell, i32(3))), i)

    check(body)


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_private_arrays_are_stored_without_masks_of_steps(target: str):
    made = parse_program("""program p(x: ref[f32,37], n: ref[i32,37])
  buffer y: ref[f32,37]
  range_for i in 0:i32 : 37:i32
    a: cell[f32,50] = cell[dtype=f32, shape=(50)]
    v: f32 = load x i
    m: i32 = load n i
    for k in 0:i32 : 50:i32 : 1:i32
      f: f32 = convert[dtype=f32] k
      w: f32 = mul f v
      store a w k
    for k_1 in 0:i32 : 50:i32 : 1:i32
      few: bool = lt k_1 m
      if few
        store a 1.0:f32 k_1
    s: f32 = for k_2 in 0:i32 : 50:i32 : 1:i32 carry t = 0.0:f32
      e: f32 = load a k_2
      r: f32 = add t e
      yield r
    store y s i
  return y
""")
    text = text_of(made, target)
    stores = re.findall(r"store <\d+ x float> (%\S+), ptr %\S+$", text, re.MULTILINE)
    chosen = [s for s in stores if re.search(rf"{re.escape(s)} = select ", text)]
    assert 0 < len(chosen) < len(stores)  # under the condition alone
    assert ("freeze <8 x float>" in text) is (target == "avx2")  # else LLVM makes a masked store
    rng = np.random.default_rng(0)
    agrees(made, [rng.normal(size=37).astype(np.float32), rng.integers(-3, 60, 37, np.int32)])


STORES_IN_A_LOOP = """program p(x: ref[f32,37], n: ref[i32,37])
  buffer y: ref[f32,50x37]
  buffer z: ref[f32,50x37x2]
  range_for i in 0:i32 : 37:i32
    v: f32 = load x i
    m: i32 = load n i
    for k in 0:i32 : 50:i32 : 1:i32
      f: f32 = convert[dtype=f32] k
      w: f32 = mul f v
      store y w k i
      store z f k i 0:i32
      store z w k i 1:i32
    for k_1 in 0:i32 : 50:i32 : 1:i32
      old: f32 = load y k_1 i
      few: bool = lt k_1 m
      new: f32 = select few 1.0:f32 old
      store y new k_1 i
  return y, z
"""


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_stores_of_whole_steps_are_without_masks_where_these_are_slow(target: str):
    made = parse_program(STORES_IN_A_LOOP)
    text = text_of(made, target)
    of_lanes = re.findall(r"^  store <\d+ x float> ", text, re.MULTILINE)
    of_few = re.findall(r"call void @llvm.masked.store.v\d+f32", text)
    assert of_few
    assert len(of_lanes) == (len(of_few) if target == "avx2" else 0)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=37).astype(np.float32), rng.integers(-3, 60, 37, np.int32)]
    agrees(made, args, vectors=(None, 1, 2))


def test_a_choice_of_old_and_new_elements_is_no_masked_store():
    text = text_of(parse_program(STORES_IN_A_LOOP), "avx2")
    stored = re.findall(r"^  store <8 x float> (%\S+),", text, re.MULTILINE)
    frozen = [s for s in stored if re.search(rf"{re.escape(s)} = freeze <8 x float> ", text)]
    assert 0 < len(frozen) < len(stored)


@pytest.mark.full
@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_private_cells_of_every_dtype_keep_lanes_apart(dtype: DType):
    _x, k, _y, _z = refs = buffers(N)
    out = ref_var(dtype, (N,), "out")

    def body(b: Builder, i: Var) -> None:
        one, pair = b.cell(dtype), b.cell(dtype, (2, 2))
        value = b.convert(b.load(k, i), dtype)
        b.store(one, value)
        place = (b("and", i, i32(1)), b("and", b.load(k, i), i32(1)))
        for a in range(2):
            for c in range(2):
                b.store(pair, b.convert(b("add", i, i32(a + c)), dtype), i32(a), i32(c))
        b.store(pair, b.load(one), *place)

        def turn(j):
            b.store(one, b.load(pair, b("and", j, i32(1)), place[1]))

        loop(b, i32(0), b.load(k, i), i32(1), [], turn)
        b.store(out, b.load(one), i)

    made = program([*refs, out], task(N, body), [out])
    agrees(made, [*arguments(N), np.zeros(N, dtype.numpy)], vectors=(None, 2))


def test_private_atomics():
    def body(b: Builder, i, x, k, y, z):
        cell = b.cell(I32, (2,))
        b.store(cell, b.load(k, i), i32(0))
        b.store(cell, i, i32(1))
        old = [b("atomic", cell, i32(3), i32(0), op=op) for op in ("add", "max", "xor", "exchange")]
        swapped = b("atomic", cell, i32(5), i32(77), i32(1), op="cas")
        total = b("add", b.load(cell, i32(0)), b.load(cell, i32(1)))
        for value in (*old, swapped):
            total = b("add", b("mul", total, i32(3)), value)
        b.store(z, total, i)

    check(body)


ACCUMS = [(d, op) for d in DType for op in ("add", "mul", "min", "max")]


def exact_values(dtype: DType, n: int, seed: int) -> np.ndarray:
    """Values whose sums and products are exact in every order."""
    rng = np.random.default_rng(seed)
    if dtype is BOOL:
        return rng.integers(0, 2, n).astype(bool)
    return rng.choice([1, 2], n, p=[0.9, 0.1]).astype(dtype.numpy)


@pytest.mark.sample(full=4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_accumulations_of_every_kind(dtype: DType, target: str):
    """Each element its own; all into one; a histogram; all into one from inside a loop, under a condition."""
    places = ref_var(I32, (N,), "places")
    x = ref_var(dtype, (N,), "x")
    outs = [ref_var(dtype, shape, f"{op}{len(shape)}{m}") for op in ("add", "mul", "min", "max")
            for m, shape in enumerate([(N,), (), (5,), (3,)])]  # fmt: skip

    def body(b: Builder, i: Var) -> None:
        value = b.load(x, i)
        for k, op in enumerate(("add", "mul", "min", "max")):
            own, one, histogram, inner = outs[4 * k : 4 * k + 4]
            b.accum(own, value, i, op=op)
            b.accum(one, value, op=op)
            b.accum(histogram, value, b.load(places, i), op=op)
            odd = b("eq", b("and", i, i32(1)), i32(1))

            def side(inner=inner, op=op) -> None:
                loop(b, i32(0), i32(2), i32(1), [], lambda j: b.accum(inner, value, j, op=op))

            branch(b, odd, side)

    made = program([places, x, *outs], task(N, body), outs)
    rng = np.random.default_rng(3)
    first = [rng.integers(0, 5, N).astype(np.int32), exact_values(dtype, N, 4)]
    agrees(made, [*first, *(exact_values(dtype, o.type.size, 5).reshape(o.type.shape) for o in outs)], (target,))


@pytest.mark.full
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16, F32, DType.f64], ids=lambda d: d.value)
def test_accumulated_extremes_keep_nan_and_the_sign_of_zero(dtype: DType, op: str):
    x = ref_var(dtype, (N,), "x")
    zeros, numbers = ref_var(dtype, (), "zeros"), ref_var(dtype, (2,), "numbers")

    def body(b: Builder, i: Var) -> None:
        value = b.load(x, i)
        b.accum(zeros, b("mul", value, literal(0, dtype)), op=op)
        b.accum(numbers, value, b("and", i, i32(1)), op=op)

    values = np.linspace(-3, 3, N).astype(dtype.numpy)
    made = program([x, zeros, numbers], task(N, body), [zeros, numbers])
    agrees(made, [values, np.zeros((), dtype.numpy), np.array([0, np.nan]).astype(dtype.numpy)])
    values[5] = np.nan
    agrees(made, [values, np.zeros((), dtype.numpy), np.zeros(2, dtype.numpy)])


def test_an_own_element_needs_no_atomic():
    x, _k, y, _z = refs = buffers(3 * N)

    def body(b: Builder, i: Var) -> None:
        first = b("mul", i, i32(3))
        for c in range(3):
            b.accum(y, b.load(x, b("add", first, i32(c))), b("add", first, i32(c)))

    made = program(refs, task(N, body), [y])
    agrees(made, arguments(3 * N))
    assert "atomicrmw" not in text_of(made)


@pytest.mark.full
def test_neighbours_in_a_large_array_do():
    size = 10_000
    z = ref_var(I32, (size,), "z")

    def body(b: Builder, i: Var) -> None:
        b.accum(z, i32(1), i)
        b.accum(z, i32(2), b("add", i, i32(1)))

    made = program([z], task(N, body), [z])
    agrees(made, [np.arange(size, dtype=np.int32)])
    assert "atomicrmw" in text_of(made)


ATOMICS = [(d, op) for d in DType for op in ("add", "mul", "min", "max", "exchange", "cas")] + [
    (d, op) for d in DType if not d.is_float for op in ("and", "or", "xor")
]


@pytest.mark.cpu
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_atomics_give_the_old_value_lane_after_lane(dtype: DType, target: str):
    """One chunk runs in order of iterations, so even shared elements have one right answer."""
    ops = [op for d, op in ATOMICS if d is dtype]
    _x, k, _y, _z = refs = buffers(N)
    values = ref_var(dtype, (N,), "values")
    shared = [ref_var(dtype, (5,), "s" + op) for op in ops]
    outs = [ref_var(dtype, (N,), "o" + op) for op in ops]

    def body(b: Builder, i: Var) -> None:
        place = b("rem", b("mul", i, i32(3)), i32(5))
        value = b.load(values, i)

        def side() -> None:
            for op, ref, out in zip(ops, shared, outs, strict=True):
                operands = [literal(1, dtype), value] if op == "cas" else [value]
                b.store(out, b("atomic", ref, *operands, place, op=op), i)

        branch(b, b("lt", b.load(k, i), i32(7)), side)

    made = program([*refs, values, *shared, *outs], task(N, body), [*shared, *outs])
    first = [*arguments(N), exact_values(dtype, N, 8)]
    states = [exact_values(dtype, 5, 9) for _ in ops]
    args = [*first, *states, *(np.zeros(N, dtype.numpy) for _ in ops)]
    # one vector side by side: with several equations in a row, vector after vector is lane order for each of them
    agrees(made, args, (target,))


@pytest.mark.every_case
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [DType.f32, DType.f64], ids=str)
def test_threads_may_meet(dtype: DType, columns: int, target: str):
    """Two chunks at the same time from two threads: no update is lost."""
    n = 60_000
    size = 100_000
    bins = ref_var(dtype, (size, columns), "bins")

    def body(b: Builder, i: Var) -> None:
        for c in range(columns):
            b.accum(bins, literal(c + 1, dtype), b("rem", i, i32(3)), i32(c))

    made = program([bins], task(n, body), [bins])
    kernel = Kernel(made.tasks[0], runnable(target))
    assert kernel.code.slot_bytes == 0
    memory = np.zeros((size, columns), dtype.numpy)
    zeros = (ctypes.c_int64 * 2)()
    # others see it: with locks
    pointers = (ctypes.c_void_p * 4)(memory.ctypes.data, 0, ctypes.addressof(zeros), ctypes.addressof(zeros))
    arguments = [(pointers, k * n // 2, (k + 1) * n // 2, None) for k in (0, 1)]
    halves = [threading.Thread(target=kernel._task, args=a) for a in arguments]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
    assert memory[:3].sum(axis=0).tolist() == [n * (c + 1) for c in range(columns)]
    assert not memory[3:].any()


def test_results_do_not_depend_on_execution_order_of_chunks():
    x, _k, y, _z = refs = buffers(N)

    def body(b: Builder, i: Var) -> None:
        b.store(y, b.load(x, i), i)

    made = program(refs, task(N, body), [y])
    for cuts in ((0.03, 0.06), (0.99,), tuple(np.linspace(0, 1, 30)[1:-1])):
        (got,) = execute(made, arguments(N), "avx512", cuts=cuts)
        np.testing.assert_array_equal(got, arguments(N)[0])
