"""Accumulations into large arrays called from JAX: locks, copies by thread, and neither on one thread."""

import ctypes
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.llvm.target import Target
from lowering.runtime.compile import launcher
from lowering.runtime.thread_copies import MOST_COPY_BYTES, MOST_PIECES, UPDATE_BYTES
from lowering.simd.plan import plan_task
from lowering.tables import MERGE
from lowering.tables import TASK as TASK_RECORD
from qdtrace.analysis.machine import CPU
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Program, Var, literal, ref_type
from qdtrace.ir.types import DType
from tests.runtime.programs import F32, I32, compiled, range_for
from tests.runtime.test_parallel import COMBINE, TASK, Pool, check_cover, word

LARGE = CPU.accumulation.chunk_bytes // 4 + 1
N = 100_003


def into_rows(
    n: int, columns: int, dtype: DType = F32, op: str = "add", rows: int = 0, total: bool = False, often: int = 1
) -> Program:
    """out[k[i]] op= x[i], `often` times, component by component; perhaps with a sum."""
    rows = rows or LARGE // columns + 1
    k, x = ref_var(I32, (n,), "k"), ref_var(dtype, (n, columns), "x")
    out, all_of_them = ref_var(dtype, (rows, columns), "out"), ref_var(dtype, (), "total")

    def body(b: Builder, i: Var) -> None:
        at, values = b.load(k, i), [b.load(x, i, literal(c, I32)) for c in range(columns)]
        for turn in range(often):
            row = b("rem", b("add", at, literal(turn, I32)), literal(rows, I32))
            for c, value in enumerate(values):
                b.accum(out, value, row, literal(c, I32), op=op)
        if total:
            b.accum(all_of_them, values[0])

    results = (out, all_of_them) if total else (out,)
    return Program("rows", (k, x, *results), (), (range_for(body, n),), results)


def arguments(made: Program, hot: bool = False, whole: bool = True) -> list[np.ndarray]:
    k, x, *results = made.params
    rng = np.random.default_rng(3)
    n, rows = ref_type(k).size, ref_type(results[0]).shape[0]
    places = np.full(n, rows - 1) if hot else rng.integers(0, rows, n)
    values = rng.integers(0, 2, ref_type(x).shape) if whole else rng.standard_normal(ref_type(x).shape)
    starts = [np.ones(ref_type(r).shape, r.dtype.numpy) for r in results]
    return [places.astype(np.int32), values.astype(x.dtype.numpy), *starts]


def run(made: Program, given: Sequence[np.ndarray], times: int = 1, **options: object) -> list[list[np.ndarray]]:
    call = jax.jit(compiled(made, **options).call)
    return [[np.asarray(r) for r in call(*map(jnp.asarray, given))] for _ in range(times)]


def expected(made: Program, given: Sequence[np.ndarray], often: int = 1) -> np.ndarray:
    k, x, out = given[:3]
    want = out.astype(np.float64)
    for turn in range(often):
        np.add.at(want, (k + turn) % len(out), x.astype(np.float64))
    return want


@pytest.mark.full
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("hot", [False, True])
def test_sums_on_any_number_of_threads(columns: int, hot: bool):
    made = into_rows(N, columns)
    given = arguments(made, hot)
    want = expected(made, given)
    for threads in (1, 2, None):
        for (got,) in run(made, given, 3, num_threads=threads):
            np.testing.assert_array_equal(got, want)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [DType.bool, DType.i16, DType.f16, DType.bf16, DType.u32, DType.i32], ids=str)
def test_other_dtypes(dtype: DType):
    n = 20_011
    op = "max" if dtype is DType.bool else "add"
    made = into_rows(n, 2, dtype, op, rows=CPU.accumulation.chunk_bytes // (2 * dtype.itemsize) + 9)
    given = arguments(made)
    (want,) = evaluate(made, given)
    for (got,) in run(made, given, 3):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["mul", "min", "max"])
def test_other_operations(op: str):
    made = into_rows(N, 2, op=op)
    given = arguments(made)
    given[1] = (given[1] + 1).astype(np.float32) if op == "mul" else given[1] * 7 - 3
    given[0][:] = np.arange(N) % len(given[2])
    k, x, want = given[0], given[1], given[2].copy()
    {"mul": np.multiply, "min": np.minimum, "max": np.maximum}[op].at(want, k, x)
    for (got,) in run(made, given, 3):
        np.testing.assert_array_equal(got, want)


def test_signed_zeros_where_nothing_is_accumulated():
    """What copies begin with changes nothing, not even the sign of a zero."""
    made = into_rows(N, 2)
    given = arguments(made)
    given[2][:] = -0.0
    given[0] //= 2
    ((got,),) = run(made, given)
    assert np.signbit(got[len(got) // 2 + 1 :]).all()


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2])
def test_copies_give_the_same_bits_every_time(threads: int):
    made = into_rows(N, 2, often=4)
    given = arguments(made, whole=False)
    results = run(made, given, 20, num_threads=threads)
    assert len({got.tobytes() for (got,) in results}) == 1
    np.testing.assert_allclose(results[0][0], expected(made, given, 4), rtol=1e-5, atol=1e-4)  # some hundred roundings


@pytest.mark.full
def test_a_sum_beside_a_large_array_has_the_bits_of_any_number_of_threads():
    made = into_rows(N, 2, total=True, often=3)
    given = arguments(made, whole=False)
    totals = {r[1].tobytes() for threads in (1, 2, None) for r in run(made, given, 5, num_threads=threads)}
    assert len(totals) == 1
    given = arguments(made)
    for got, total in run(made, given, 3):
        np.testing.assert_array_equal(got, expected(made, given, 3))
        assert float(total) == 1 + given[1][:, 0].sum()


@pytest.mark.full
def test_an_array_that_is_much_larger_than_the_loop_keeps_locks():
    """Copies would cost more than they save; sums are right all the same."""
    rows = N * UPDATE_BYTES
    made = into_rows(N, 2, rows=rows)
    given = arguments(made)
    for (got,) in run(made, given, 3):
        np.testing.assert_array_equal(got, expected(made, given))


@pytest.mark.full
def test_two_arrays_and_an_array_that_cannot_be_copied():
    n = 50_001
    k, one, two = (ref_var(d, s, h) for d, s, h in ((I32, (n,), "k"), (F32, (LARGE,), "one"), (I32, (LARGE, 3), "two")))
    three = ref_var(I32, (LARGE,), "three")

    def body(mixed: bool, b: Builder, i: Var) -> None:
        at = b.load(k, i)
        b.accum(one, literal(1, F32), at)
        for c in range(3):
            b.accum(two, literal(c, I32), at, literal(c, I32))
        if mixed:
            b.accum(three, literal(1, I32), at)
            b.accum(three, literal(0, I32), at, op="max")

    rng = np.random.default_rng(1)
    places = rng.integers(0, LARGE, n).astype(np.int32)
    counts = np.bincount(places, minlength=LARGE)
    given = [places, np.zeros(LARGE, np.float32), np.zeros((LARGE, 3), np.int32), np.zeros(LARGE, np.int32)]
    for mixed in (False, True):
        task = range_for(lambda b, i, mixed=mixed: body(mixed, b, i), n)
        assert (plan_task(task, Target.host()).accumulation.thread_copies.nbytes > 0) is not mixed
        made = Program("both", (k, one, two, three), (), (task,), (one, two, three))
        for got in run(made, given, 3):
            np.testing.assert_array_equal(got[0], counts)
            np.testing.assert_array_equal(got[1], counts[:, None] * np.arange(3))
            np.testing.assert_array_equal(got[2], counts * mixed)


def test_bounds_of_unknown_value():
    stop, k, out = ref_var(I32, (), "stop"), ref_var(I32, (N,), "k"), ref_var(F32, (LARGE, 2), "out")

    def body(b: Builder, i: Var) -> None:
        for c in range(2):
            b.accum(out, literal(1, F32), b.load(k, i), literal(c, I32))

    task = range_for(body, N, lambda b: (literal(0, I32), b.load(stop)))
    made = Program("part", (stop, k, out), (), (task,), (out,))
    places = np.random.default_rng(2).integers(0, LARGE, N).astype(np.int32)
    for n in (0, 1, 100, 40_000, N):
        ((got,),) = run(made, [np.array(n, np.int32), places, np.zeros((LARGE, 2), np.float32)])
        np.testing.assert_array_equal(got[:, 1], np.bincount(places[:n], minlength=LARGE))


@pytest.mark.full
@pytest.mark.parametrize("axes", [2, 3])
def test_a_mesh_as_it_is_written(axes: int):
    """Points of a row are vectors of the program: their components become one record of the task."""

    @qd.jit
    def pulls(x: Any, edge: Any) -> Any:
        f = qd.zeros(x.shape, x.dtype)
        for e in qd.range(edge.shape[0]):
            a, b = edge[e, 0], edge[e, 1]
            d = x[b] - x[a]
            f[a] += d
            f[b] += -d
        return f

    n = LARGE // axes + 1
    rng = np.random.default_rng(6)
    x, edge = rng.integers(0, 9, (n, axes)).astype(np.float32), rng.integers(0, n, (2 * n, 2)).astype(np.int32)
    want = np.zeros((n, axes))
    np.add.at(want, edge[:, 0], x[edge[:, 1]] - x[edge[:, 0]])
    np.add.at(want, edge[:, 1], x[edge[:, 0]] - x[edge[:, 1]])
    low = pulls.lower(jnp.asarray(x), jnp.asarray(edge))
    assert "cmpxchg weak ptr" in low.as_text("llvm")
    assert ", i64" in next(line for line in low.as_text("llvm").splitlines() if "cmpxchg weak" in line)
    np.testing.assert_array_equal(np.asarray(pulls(jnp.asarray(x), jnp.asarray(edge))), want)


UPDATE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3)


class Task:
    """A record of a task with one reference, an array of `size` numbers; iteration i adds 1 to number i % size.

    Task, merge and combination are Python functions that note how they were called.
    """

    def __init__(
        self, size: int, updates: int, reduces: bool = False, grain: int = 10, lanes: int = 1, pieces: int = 0
    ) -> None:
        self.array, self.size = np.zeros(size, np.int64), size
        self.ways: list[tuple[int, int, int, bool]] = []
        self.slots: dict[int, int] = {}
        self.copies = 0
        self.code, self.merge, self.combine = TASK(self.run), TASK(self.add), COMBINE(self.total)
        self.table = (ctypes.c_int64 * 4)(0, 0, size * 8, 0)
        self.record = (ctypes.c_int64 * (TASK_RECORD.size // 8))()
        values: dict[str, Any] = {
            "code": self.code, "ref_count": 1, "grain": grain, "lanes": lanes, "updates": updates, "merge": self.merge,
            "copy_bytes": size * 8, "copies": ctypes.addressof(self.table), "copy_count": 1,
            "combine": self.combine if reduces else 0, "slot_bytes": 64 * reduces, "most_slots": 8, "pieces": pieces,
        }  # fmt: skip
        for name, value in values.items():
            number = value if isinstance(value, int) else ctypes.cast(value, ctypes.c_void_p).value
            self.record[TASK_RECORD.offsets[name] // 8] = number

    def numbers(self, address: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_int64 * self.size).from_address(address))

    def run(self, refs: int, lo: int, hi: int, slot: int | None) -> None:
        into, alone = word(refs, 0), bool(word(refs, 8))
        np.add.at(self.numbers(into), np.arange(lo, hi) % self.size, 1)
        self.ways.append((lo, hi, into, alone))
        if slot:
            ctypes.c_int64.from_address(slot).value = hi - lo

    def add(self, job: int, lo: int, hi: int, slot: int | None) -> None:
        refs, copies, count = (word(job, MERGE.offsets[name]) for name in ("refs", "copies", "others"))
        into = word(refs, 0)
        self.copies = count
        for k in range(count):
            self.numbers(into)[lo * 8 : hi * 8] += self.numbers(copies + k * self.size * 8)[lo * 8 : hi * 8]

    def total(self, refs: int, slots: int, count: int) -> None:
        assert word(refs, 0) == self.array.ctypes.data
        self.slots = {k: word(slots, 64 * k) for k in range(count)}

    def launch(self, pool: Pool, start: int, stop: int, threads: int = 0) -> None:
        refs = (ctypes.c_int64 * 2)(self.array.ctypes.data, 77)
        call = UPDATE(launcher(Target.host(), None)["qd_parallel_update"])
        call(ctypes.addressof(pool.frame), ctypes.addressof(self.record), ctypes.addressof(refs), start, stop, threads)
        for thread in pool.started:
            thread.join()
        want = np.bincount(np.arange(start, stop) % self.size, minlength=self.size)
        if all(alone for *_, alone in self.ways):
            np.testing.assert_array_equal(self.array, want)
        check_cover([(lo, hi) for lo, hi, _, _ in self.ways], start, stop, 1)


@pytest.mark.parametrize("threads", [2, 3, 8, MOST_PIECES])
def test_a_piece_a_thread(threads: int):
    task = Task(64, updates=100)
    task.launch(Pool(threads), 3, 5003)
    assert len(task.ways) == threads
    assert task.copies == threads - 1
    ordered = sorted(task.ways)
    assert ordered[0][2] == task.array.ctypes.data
    assert [into - ordered[1][2] for _, _, into, _ in ordered[1:]] == [64 * 8 * k for k in range(threads - 1)]
    assert all(alone for *_, alone in ordered)


@pytest.mark.parametrize("threads", [2, 5])
def test_slots_do_not_depend_on_pieces(threads: int):
    alone, task = Task(64, updates=100, reduces=True), Task(64, updates=100, reduces=True)
    alone.launch(Pool(1), 0, 5000)
    task.launch(Pool(threads), 0, 5000)
    assert task.slots == alone.slots
    assert sum(task.slots.values()) == 5000
    assert len({into for _, _, into, _ in task.ways}) == threads


def test_one_thread_needs_neither_locks_nor_copies():
    for pool, threads, stop in ((Pool(1), 0, 5000), (Pool(8), 1, 5000), (Pool(8), 0, 19)):
        task = Task(64, updates=1)
        task.launch(pool, 0, stop, threads)
        assert [(into, alone) for _, _, into, alone in task.ways] == [(task.array.ctypes.data, True)]


@pytest.mark.parametrize(
    ("size", "updates", "pieces", "want"), [(64, 100, 8, 8), (64, 100, 1, 1), (5008, 4, 8, 2), (5008, 1, 8, 1)]
)
def test_pieces_that_do_not_depend_on_threads(size: int, updates: int, pieces: int, want: int):
    """As many as the copies are worth; which iterations each has is the same for any number of threads."""
    found: list[list[tuple[int, int, int]]] = []
    for pool, threads in ((1, 0), (2, 0), (3, 0), (20, 0), (8, 1), (8, 3)):
        task = Task(size, updates, pieces=pieces)
        task.launch(Pool(pool), 0, 5000, threads)
        assert all(alone for *_, alone in task.ways)
        arrays = [task.array.ctypes.data, *sorted({into for _, _, into, _ in task.ways} - {task.array.ctypes.data})]
        found.append([(lo, hi, arrays.index(into)) for lo, hi, into, _ in sorted(task.ways)])
        assert len(arrays) == want
    assert all(one == found[0] for one in found)


@pytest.mark.full
@pytest.mark.parametrize(("threads", "want"), [(2, 1), (3, 0)])
def test_a_large_array_has_one_copy_and_not_two(threads: int, want: int):
    task = Task(MOST_COPY_BYTES // 8 + 8, updates=1000)
    task.launch(Pool(threads), 0, 5000)
    assert task.copies == want
    assert all(alone is (want > 0) for *_, alone in task.ways)


@pytest.mark.parametrize(("size", "updates", "threads"), [(64, 100, MOST_PIECES + 1), (5008, 1, 3)])
def test_locks_where_copies_cost_more(size: int, updates: int, threads: int):
    task = Task(size, updates)
    task.launch(Pool(threads), 0, 5000)
    assert not any(alone for *_, alone in task.ways)
    assert {into for _, _, into, _ in task.ways} == {task.array.ctypes.data}


def test_a_pool_that_refuses():
    task = Task(64, updates=100)
    task.launch(Pool(4, refuse=True), 0, 5000)
    assert len(task.ways) == 4
