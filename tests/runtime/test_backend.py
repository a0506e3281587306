"""Programs called from JAX."""

import re
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.backend import CpuBackend
from qdtrace.ir.builder import ref_var
from qdtrace.ir.program import Program, literal
from qdtrace.ir.types import DType
from qdtrace.stats import stats
from tests.runtime.programs import (
    F32,
    I32,
    affine,
    affine_task,
    chain,
    compiled,
    part,
    range_for,
    saxpy,
    serial,
    uncached,
)


def pointer(x: jax.Array) -> int:
    """Where the array lives."""
    return x.unsafe_buffer_pointer()


def f32(n: int) -> jax.Array:
    """A fresh array 0 ... n-1."""
    return jnp.arange(n, dtype=jnp.float32) + 0


@pytest.mark.parametrize("n", [0, 1, 7, 1024, 100_003])
def test_one_task(n):
    done = compiled(affine(n))
    assert np.array_equal(done.call(f32(n))[0], np.arange(n, dtype=np.float32) * 2 + 1)
    assert np.array_equal(jax.jit(done.call)(f32(n))[0], np.arange(n, dtype=np.float32) * 2 + 1)


@pytest.mark.full
def test_a_loop_large_enough_for_threads():
    n = 3_000_001
    out = jax.jit(compiled(affine(n)).call)(f32(n))[0]
    assert np.array_equal(out, np.arange(n, dtype=np.float32) * np.float32(2) + np.float32(1))
    limited = jax.jit(compiled(affine(n), num_threads=1).call)(f32(n))[0]
    assert np.array_equal(out, limited)


def test_three_tasks_over_scratch():
    done = compiled(chain(1000))
    assert done.scratch_bytes == 2 * 4032
    assert np.array_equal(jax.jit(done.call)(f32(1000))[0], np.arange(1000, dtype=np.float32) * 8 + 7)


def test_numpy_operands_and_rank_zero():
    y = compiled(saxpy(5)).call(np.float32(3), np.ones(5, np.float32), np.arange(5, dtype=np.float32))[0]
    assert np.array_equal(y, np.arange(5) + 3)


def test_rank_zero_results_of_a_serial_task():
    x, total = ref_var(F32, (3,), "x"), ref_var(F32, (), "total")

    def body(b):
        first = b("add", b.load(x, literal(0, I32)), b.load(x, literal(1, I32)))
        b.store(total, b("add", first, b.load(x, literal(2, I32))))

    program = Program("total", (x,), (total,), (serial(body),), (total,))
    (out,) = jax.jit(compiled(program).call)(jnp.array([1.0, 2.0, 4.0]))
    assert out.shape == ()
    assert out == 7.0


def test_bounds_that_are_arguments():
    call = jax.jit(compiled(part(10)).call)
    for lo, hi in [(2, 5), (0, 10), (4, 4), (7, 3)]:
        expected = np.zeros(10)
        expected[lo:hi] = 1
        assert np.array_equal(call(jnp.int32(lo), jnp.int32(hi), jnp.zeros(10))[0], expected)


def test_an_argument_that_is_written_stays_intact():
    x = f32(1000)
    call = jax.jit(compiled(chain(1000)).call)
    out = call(x)[0]
    assert np.array_equal(x, np.arange(1000))
    assert pointer(out) != pointer(x)


def test_a_donated_argument_is_updated_in_place():
    x = f32(1000)
    place = pointer(x)
    out = jax.jit(compiled(chain(1000)).call, donate_argnums=0)(x)[0]
    assert pointer(out) == place
    assert x.is_deleted()
    assert np.array_equal(out, np.arange(1000, dtype=np.float32) * 8 + 7)


def test_one_array_as_two_operands_of_which_one_is_written():
    y = f32(8)
    call = jax.jit(lambda x: compiled(saxpy(8)).call(jnp.float32(2), x, x), donate_argnums=0)
    assert np.array_equal(call(y)[0], 3 * np.arange(8))


def test_a_written_argument_that_is_not_returned_stays_intact():
    x, total = ref_var(F32, (4,), "x"), ref_var(F32, (4,), "out")
    program = Program("p", (x,), (total,), (affine_task(x, x, 2.0), affine_task(total, x, 1.0)), (total,))
    value = f32(4)
    out = jax.jit(compiled(program).call)(value)[0]
    assert np.array_equal(out, 2 * np.arange(4))
    assert np.array_equal(value, np.arange(4))


def test_results_repeat_and_pass_arguments_through():
    program = affine(4)
    (x,), (y,) = program.params, program.buffers
    outs = jax.jit(compiled(replace(program, results=(y, x, y))).call)(f32(4))
    assert [o.tolist() for o in outs] == [[1, 3, 5, 7], [0, 1, 2, 3], [1, 3, 5, 7]]
    only = compiled(Program("same", (x,), (), (), (x,))).call(np.ones(4, np.float32))
    assert isinstance(only[0], jax.Array)
    assert only[0].tolist() == [1, 1, 1, 1]
    assert compiled(Program("nothing", (x,), (), (), ())).call(np.ones(4, np.float32)) == ()


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.bool])
def test_every_dtype_reaches_the_task(dtype):
    with jax.enable_x64(True):
        x = jnp.arange(40).astype(dtype.numpy)
        out = jax.jit(compiled(affine(40, 2, 1, dtype=dtype)).call)(x)[0]
        assert out.dtype == dtype.numpy
        assert np.array_equal(np.asarray(out, np.float64), np.arange(40) * 2 + 1)


def test_a_program_without_parameters():
    x = ref_var(F32, (20,), "x")
    program = Program("ones", (), (x,), (range_for(lambda b, i: b.store(x, literal(1.0, F32), i), 20),), (x,))
    assert np.array_equal(jax.jit(compiled(program).call)()[0], np.ones(20))


@pytest.mark.full
def test_inside_loops_of_jax():
    call = compiled(affine(16, 1.0, 1.0)).call
    out = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda _, y: call(y)[0], x))(f32(16))
    assert np.array_equal(out, np.arange(16) + 1000)
    last, every = jax.jit(lambda x: jax.lax.scan(lambda y, _: (call(y)[0], y[0]), x, None, length=50))(f32(16))
    assert np.array_equal(last, np.arange(16) + 50)
    assert np.array_equal(every, np.arange(50))
    in_place = compiled(chain(16)).call
    out = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: in_place(y)[0], x))(f32(16))
    assert np.array_equal(out, ((np.arange(16) * 8 + 7) * 8 + 7) * 8 + 7)


@pytest.mark.full
def test_a_handler_runs_in_many_threads_at_once():
    n = 300_000
    call = jax.jit(compiled(chain(n)).call)
    call(jnp.zeros(n))
    outs: dict[int, np.ndarray] = {}

    def run(k: int) -> None:
        for _ in range(5):
            outs[k] = np.asarray(call(jnp.full(n, float(k)))[0])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(6):
        assert np.array_equal(outs[k], np.full(n, 8.0 * k + 7))


def test_threads_that_compile_the_same_compile_it_once():
    program = affine(77, 0.5)
    before = stats()
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(compiled(program).target_name)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(names)) == 1
    assert len(names) == 4
    assert stats().compiled - before.compiled <= 3  # the task, the handler, and maybe the launcher


def test_export():
    done = compiled(affine(6))
    allow = [jax.export.DisabledSafetyCheck.custom_call(done.target_name)]
    exported = jax.export.export(jax.jit(done.call), disabled_checks=allow)(jax.ShapeDtypeStruct((6,), jnp.float32))
    assert np.array_equal(exported.call(f32(6))[0], np.arange(6) * 2 + 1)


def test_equal_content_compiles_once():
    first = compiled(affine(33, 4.0))
    before = stats()
    second = compiled(affine(33, 4.0))
    assert (stats() - before).linked == 0
    assert second.target_name == first.target_name
    assert re.fullmatch(r"qdtrace_affine_[0-9a-f]{32}_[0-9a-f]{16}", first.target_name)
    other = compiled(affine(33, 5.0))
    assert other.target_name != first.target_name
    named = compiled(replace(affine(33, 4.0), name="other"))
    assert named.target_name.replace("other", "affine") != first.target_name


@pytest.mark.full
def test_another_number_of_iterations_is_the_same_code():
    compiled(affine(34, 3.25))
    before = stats()
    for n in (0, 2, 35, 1000):
        assert np.array_equal(compiled(affine(n, 3.25)).call(f32(n))[0], np.arange(n, dtype=np.float32) * 3.25 + 1)
    assert stats().compiled - before.compiled == 4  # the tables of four handlers
    assert np.array_equal(compiled(affine(1, 3.25)).call(f32(1))[0], np.ones(1, np.float32))
    assert stats().compiled - before.compiled == 6  # a task of one iteration is scalar code


def test_equal_tasks_of_a_program_compile_once():
    x, y = ref_var(F32, (32,), "x"), ref_var(F32, (32,), "y")
    tasks = (affine_task(y, x, 9.0), affine_task(x, y, 9.0), affine_task(y, x, 9.0))
    before = stats()
    done = compiled(Program("p", (x,), (y,), tasks, (y,)))
    made = stats()
    assert made.linked - before.linked <= 3  # the task, the handler, and maybe the launcher
    assert np.array_equal(done.call(f32(32))[0], np.arange(32) * 729)


def test_a_cached_program_runs_no_llvm_pass(tmp_path):
    def compile_into(folder, factor):
        options = uncached(offline_cache=True, offline_cache_dir=str(folder))
        return CpuBackend().compile(affine(21, factor), options)

    before = stats()
    compile_into(tmp_path, 1.25)
    assert stats().compiled - before.compiled in (2, 3)
    assert len(list(tmp_path.glob("*.qdo"))) in (2, 3)


def test_texts():
    backend, options = CpuBackend(), uncached()
    (task,) = affine(8).tasks
    assert "define void @qd_task(" in backend.emit(task, options).text
    assert "qd_task:" in backend.text(task, options, "asm")
    assert backend.emit(task, options).lanes >= 1
