"""Programs on a fake device: what a call enqueues, what it computes, what it says."""

from dataclasses import replace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.gpu.commands import TaskKernels, plan_commands
from lowering.runtime.layout import Place, plan_layout
from lowering.runtime.native import Piece
from lowering.simt.code import Launch
from lowering.simt.devices import device as named
from lowering.simt.emit import emit_kernels
from qdtrace.errors import BackendError
from qdtrace.ir.builder import ref_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program, literal
from qdtrace.ir.types import DType
from qdtrace.stats import stats
from tests.gpu.fake import FakeDriver, Filled, Launched, fake_backend
from tests.runtime.programs import F32, affine, affine_task, chain, part, saxpy, total, uncached

OPTIONS = uncached(block_dim=4, fuse_tasks="off")
ALONE = Piece(range(1), "", "f", Mock())


def f32(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


@pytest.mark.parametrize("n", [0, 1, 7, 100])
def test_one_task(n: int) -> None:
    with fake_backend() as (backend, driver):
        done = backend.compile(affine(n), OPTIONS)
        assert np.array_equal(done.call(f32(n))[0], f32(n) * 2 + 1)
        assert np.array_equal(jax.jit(done.call)(f32(n))[0], f32(n) * 2 + 1)
        (launch,) = backend.emit(affine(n).tasks[0], OPTIONS).launches
    asked = [("qd_kernel", launch.blocks_for(n), launch.threads)] * (2 if n else 0)
    assert [(c.name, c.blocks, c.threads) for c in driver.asked] == asked


def test_small_numbers_of_f16() -> None:
    """They are subnormal in f16 only: the threads of XLA that take subnormal f32 for zeros keep them."""
    program = parse_program("""program p(x: ref[f16,2048])
  buffer y: ref[f32,2048]
  range_for i in 0:i32 : 2048:i32
    v: f16 = load x i
    w: f32 = convert[dtype=f32] v
    store y w i
    u: f16 = add v 0.000001:f16
    store x u i
  return x, y""")
    x = np.arange(2048, dtype=np.uint16).view(np.float16) * np.float16(-1)
    with fake_backend() as (backend, _):
        x_now, y = jax.jit(backend.compile(program, OPTIONS).call)(x)
    assert np.array_equal(y, x.astype(np.float32))
    assert np.array_equal(x_now, x + np.float16(1e-6))


def test_arguments_of_a_launch() -> None:
    """Operands, results and scratch; the range; no word where nothing fails; memory of kernels where they have some."""
    program = chain(100)
    with fake_backend(FakeDriver(runs=False)) as (backend, driver):
        done = backend.compile(program, OPTIONS)
        jax.block_until_ready(jax.jit(done.call)(f32(100)))
    first, second, third = (c.arguments for c in driver.asked)
    assert [a[2:] for a in (first, second, third)] == [(0, 100, 0, 0)] * 3
    refs = dict(zip((v.hint for v in done.layout.task_refs[0]), first, strict=False))
    refs |= dict(zip((v.hint for v in done.layout.task_refs[1]), second, strict=False))
    assert set(third[:2]) == {refs["x"], refs["z"]}
    y, z = program.buffers
    assert refs["z"] - refs["y"] == done.layout.places[z].offset - done.layout.places[y].offset


def test_scratch_of_kernels_is_counted() -> None:
    """What is said of code for a chip, and what a call asks XLA for."""

    @qd.jit
    def counts(k, n):
        out = qd.zeros(16, jnp.int32)
        for i in qd.range(n):
            out[k[i] & 15] += 1
        return out

    low = counts.lower(jnp.zeros(1000, jnp.int32), 900, target="sm_90")
    blocks = emit_kernels(low.programs[0].program.tasks[-1], named("sm_90")).launches[0].blocks
    found = low.memory_analysis()
    assert found["kernel_scratch"] == blocks * 16 * 4 > 0
    assert (found["stacks"], found["temporaries"]) == (0, 0)
    assert counts.lower(jnp.zeros(1000, jnp.int32), 900, target="cpu").memory_analysis()["kernel_scratch"] == 0
    with fake_backend() as (backend, _):
        program = total(100_000)
        scratch = max(backend.describe(task, OPTIONS).kernel_scratch for task in program.tasks)
        assert backend.compile(program, OPTIONS).scratch_bytes == scratch > 0


def test_three_tasks_and_results_in_place() -> None:
    with fake_backend() as (backend, _):
        assert np.array_equal(jax.jit(backend.compile(chain(50), OPTIONS).call)(f32(50))[0], f32(50) * 8 + 7)
        call = jax.jit(backend.compile(saxpy(50), OPTIONS).call, donate_argnums=2)
        y = jnp.asarray(f32(50))
        where = y.unsafe_buffer_pointer()
        (out,) = call(np.float32(3), np.ones(50, np.float32), y)
        assert np.array_equal(out, f32(50) + 3)
        assert out.unsafe_buffer_pointer() == where


def test_sums_have_scratch_of_their_own() -> None:
    with fake_backend() as (backend, driver):
        done = backend.compile(total(100), OPTIONS)
        assert done.call(f32(100), np.float32(1))[0] == 4951
    assert [c.name for c in driver.asked] == ["qd_kernel", "qd_combine"]
    assert driver.asked[0].arguments == driver.asked[1].arguments
    assert done.scratch_bytes > 0
    assert driver.asked[0].arguments[-1] != 0


def test_bounds_known_on_the_device_are_not_passed() -> None:
    with fake_backend() as (backend, driver):
        done = backend.compile(part(30), OPTIONS)
        (x,) = done.call(np.int32(3), np.int32(17), f32(30))
    assert np.array_equal(x, f32(30) + [3 <= k < 17 for k in range(30)])
    assert driver.asked[0].arguments[-4:-2] == (0, 0)


def test_equal_tasks_share_code_and_take_constants() -> None:
    x, outs = ref_var(F32, (9,), "x"), [ref_var(F32, (9,), f"o{k}") for k in range(4)]
    tasks = tuple(affine_task(o, x, k + 0.5, k) for k, o in enumerate(outs))
    program = Program("many", (x,), tuple(outs), tasks, tuple(outs))
    with fake_backend() as (backend, driver):
        before = stats().compiled
        done = backend.compile(program, OPTIONS)
        kernels_launcher_and_handler = 3
        assert stats().compiled - before == kernels_launcher_and_handler
        results = jax.jit(done.call)(f32(9))
    assert all(np.array_equal(o, f32(9) * (k + 0.5) + k) for k, o in enumerate(results))
    assert len(driver.asked) == 4
    assert done.layout.passes_constants


FILLS = [
    (DType.f32, 0.0, 7, (4, 0, 7)),
    (DType.f32, 1.5, 7, (4, 0x3FC00000, 7)),
    (DType.f16, 1.0, 6, (4, 0x3C003C00, 3)),
    (DType.f16, 1.0, 7, (2, 0x3C00, 7)),
    (DType.i8, -1, 8, (4, 0xFFFFFFFF, 2)),
    (DType.i8, -1, 7, (1, 0xFF, 7)),
    (DType.i8, 3, 6, (2, 0x0303, 3)),
    (DType.bool, True, 5, (1, 1, 5)),
    (DType.f64, 0.0, 5, (4, 0, 10)),
    (DType.i64, -1, 5, (4, 0xFFFFFFFF, 10)),
    (DType.f64, 1.0, 5, None),
    (DType.i64, -2, 600, None),
]


@pytest.mark.parametrize(("dtype", "value", "n", "expected"), FILLS)
def test_initial_values(dtype: DType, value: float, n: int, expected: tuple[int, int, int] | None) -> None:
    b = ref_var(dtype, (n,), "b")
    with jax.enable_x64(True), fake_backend() as (backend, driver):
        done = backend.compile(Program("filled", (), (b,), (), (b,), {b: literal(value, dtype)}), OPTIONS)
        (out,) = done.call()
        assert np.asarray(out).tobytes() == np.full(n, value, dtype.numpy).tobytes()
    (command,) = driver.asked
    if expected:
        assert isinstance(command, Filled)
        assert (command.width, command.number, command.count) == expected
    else:
        assert isinstance(command, Launched)
        number = int.from_bytes(np.array(value, dtype.numpy).tobytes(), "little", signed=True)
        assert command.arguments[1:] == (n, number)
        assert command.blocks == -(-n // command.threads)


def test_clears_come_right_before_the_first_use() -> None:
    program = parse_program("""
program p(x: ref[f32,8])
  buffer a: ref[f32,8]
  buffer s: ref[f32] = 1.0:f32
  buffer unused: ref[f32,8] = 2.0:f32
  range_for i in 0:i32 : 8:i32
    v: f32 = load x i
    store a v i
  range_for j in 0:i32 : 8:i32
    w: f32 = load a j
    accum[op=add] s w
  range_for k in 4:i32 : 4:i32
    store a 0.0:f32 k
  return a, s, unused""")
    with fake_backend() as (backend, driver):
        a, s, unused = backend.compile(program, OPTIONS).call(f32(8))
    assert (float(s), unused.tolist()) == (29.0, [2.0] * 8)
    assert np.array_equal(a, f32(8))
    kinds = [c.name if isinstance(c, Launched) else c.number for c in driver.asked]
    assert kinds == ["qd_kernel", 0x3F800000, "qd_kernel", "qd_combine", 0x40000000]


def test_what_the_driver_refuses_is_an_error_of_the_call() -> None:
    driver = FakeDriver(refusal=7)
    with fake_backend(driver) as (backend, _):
        b = ref_var(F32, (3,), "b")
        filled = backend.compile(Program("filled", (), (b,), (), (b,), {b: literal(1.0, F32)}), OPTIONS)
        program = affine(8)
        (task,) = program.tasks
        launched = backend.compile(replace(program, tasks=(replace(task, name="f.0"),)), OPTIONS)

        def message(call: object, *args: object) -> str:
            with pytest.raises(jax.errors.JaxRuntimeError) as raised:
                jax.block_until_ready(jax.jit(call)(*args))
            return str(raised.value)

        assert message(filled.call) == "INTERNAL: qdtrace: program `filled`: the driver refused a fill: FAKE_ERROR_7"
        expected = "INTERNAL: qdtrace: program `affine`: the driver refused f.0: qd_kernel: "
        assert message(launched.call, f32(8)) == expected + "FAKE_ERROR_7"
        driver.refusal = 99
        assert message(launched.call, f32(8)) == expected + "an unknown error"
        driver.refusal = 0
        assert np.array_equal(launched.call(f32(8))[0], f32(8) * 2 + 1)


def test_null_arguments_and_shared_memory_of_a_launch() -> None:
    program = affine(8)
    (refs,) = plan_layout(program).task_refs
    launch = Launch("k", threads=4, blocks=0, shared_bytes=64, null_arguments=2)
    layout = plan_layout(program)
    (run,) = plan_commands(layout, {ALONE: TaskKernels(tuple(range(len(refs))), (launch,), 0)}, Place(0))
    nothing = Place(layout.slot_count)
    assert run.places[len(refs) :] == (nothing, Place(layout.slot_count, 8), *[nothing] * 4)
    assert (run.blocks, run.threads, run.shared_bytes) == (2, 4, 64)


def test_more_than_a_launch_or_a_word_can_hold_is_refused() -> None:
    program = affine(8)
    (task,) = program.tasks
    long = replace(task, stop=literal(1 << 40, DType.i64), name="long")
    kernels = {ALONE: TaskKernels((), (Launch("k", threads=4, blocks=0, group=2),), 0)}
    with pytest.raises(BackendError) as raised:
        plan_commands(plan_layout(replace(program, tasks=(long,))), kernels, Place(0))
    assert str(raised.value) == f"long: needs at most {((1 << 31) - 1) * 8} iterations, got {1 << 40}"
    layout = replace(plan_layout(program), faults=(("",) * (1 << 16),))
    with pytest.raises(BackendError, match=": needs at most 65535 checks, got 65536"):
        plan_commands(layout, kernels, Place(0))


def test_equal_content_has_one_handler() -> None:
    with fake_backend() as (backend, _):
        first = backend.compile(total(100), OPTIONS)
        before = stats()
        again = backend.compile(total(100), OPTIONS)
        assert (stats() - before).linked == 0
        assert (again.address, again.target_name, again.scratch_bytes) == (
            first.address, first.target_name, first.scratch_bytes,
        )  # fmt: skip
        assert again.call(f32(100), np.float32(2))[0] == 4952
        other = backend.compile(total(100), uncached(block_dim=2, fuse_tasks="off"))
        assert other.target_name != first.target_name


def test_a_wrong_call_is_refused_as_on_the_cpu() -> None:
    with fake_backend() as (backend, driver):
        done = backend.compile(affine(8, name="wrong"), OPTIONS)
        wrong = jax.ffi.ffi_call(done.target_name, jax.ShapeDtypeStruct((8,), jnp.float32))
        with pytest.raises(jax.errors.JaxRuntimeError, match="program `wrong` needs 8 elements in operand 0"):
            jax.block_until_ready(jax.jit(wrong)(jnp.ones(7)))
    assert driver.asked == []


def test_a_warm_backend_compiles_nothing(tmp_path) -> None:
    options = uncached(block_dim=4, fuse_tasks="off", offline_cache=True, offline_cache_dir=str(tmp_path))
    x, b = ref_var(DType.f64, (5,), "x"), ref_var(DType.f64, (5,), "b")
    tasks = (affine_task(b, x, 2.0, dtype=DType.f64), affine_task(x, b, 2.0, dtype=DType.f64))
    program = Program("warm", (x,), (b,), tasks, (x,), {b: literal(1.0, DType.f64)})
    made = []
    for _ in range(2):
        before = stats()
        with jax.enable_x64(True), fake_backend(kind=1) as (backend, _):
            done = backend.compile(program, options)
            made.append((stats().compiled - before.compiled, stats().loaded - before.loaded))
            assert done.address
    kernel_fill_launcher_and_handler = 4
    assert made == [(kernel_fill_launcher_and_handler, 0), (0, kernel_fill_launcher_and_handler)]
