"""Initial values of buffers: the memory has them before the first task that uses it, whoever had it before."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.runtime.clear import CLEAR_GRAIN
from lowering.runtime.layout import Clear, Place, plan_layout
from qdtrace.ir.builder import ref_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Literal, Program, Var, literal
from qdtrace.ir.syntax import literal_value
from qdtrace.ir.types import DType
from tests.runtime.programs import F32, affine_task, compiled

SIZES = [0, 1, 7, 9, 37, 1000]
VALUES = {
    DType.bool: ["true", "false"],
    DType.f16: ["0.0", "-0.0", "1.5", "nan(0x7e01)"],
    DType.bf16: ["0.0", "-1.5", "inf"],
    DType.f32: ["0.0", "-0.0", "1.5", "nan(0xffc00001)"],
    DType.f64: ["0.0", "-0.0", "1e-300", "nan"],
}


def value_of(text: str, dtype: DType) -> Literal:
    return literal(text == "true", dtype) if dtype is DType.bool else literal_value(text, dtype)


def values_of(dtype: DType) -> list[Literal]:
    """Zeros and ones, equal bytes and unequal ones."""
    if dtype in VALUES:
        return [value_of(text, dtype) for text in VALUES[dtype]]
    low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    return [literal(n, dtype) for n in (0, 1, low, high, high // 3)]


def filled(value: Literal, *shapes: tuple[int, ...]) -> Program:
    """A program without tasks that returns buffers."""
    buffers = tuple(ref_var(value.dtype, shape, f"b{k}") for k, shape in enumerate(shapes))
    return Program("filled", (), buffers, (), buffers, dict.fromkeys(buffers, value))


def bits(x: object) -> bytes:
    return np.asarray(x).tobytes()


@pytest.mark.parametrize("dtype", list(DType))
def test_every_dtype_and_small_sizes(dtype: DType):
    with jax.enable_x64(True):
        for value in values_of(dtype):
            outs = compiled(filled(value, *((n,) for n in SIZES))).call()
            for n, out in zip(SIZES, outs, strict=True):
                assert out.shape == (n,)
                assert out.dtype == dtype.numpy
                assert bits(out) == bits(value.value) * n, (dtype, value, n)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [DType.i8, DType.i16, DType.f32, DType.f64])
@pytest.mark.parametrize("extra", [-1, 0, 7])
def test_sizes_around_the_chunks_of_threads(dtype: DType, extra: int):
    with jax.enable_x64(True):
        for grains in (2, 37):
            n = grains * CLEAR_GRAIN // dtype.itemsize + extra
            for number in (0, 3):
                for threads in (None, 1):
                    (out,) = compiled(filled(literal(number, dtype), (n,)), num_threads=threads).call()
                    assert np.array_equal(out, np.full(n, number, dtype.numpy)), (grains, number, threads)


def test_shapes():
    value = literal(2.5, F32)
    for shape in [(), (3, 5), (2, 0, 3)]:
        assert np.array_equal(compiled(filled(value, shape)).call()[0], np.full(shape, 2.5, np.float32))


def test_neither_more_nor_less_than_the_buffer():
    """Three results of odd sizes side by side in scratch, seen through tasks."""
    made = parse_program("""
program p(x: ref[i8,99])
  buffer a: ref[i8,33] = 1:i8
  buffer b: ref[i16,17] = 770:i16
  buffer c: ref[i8,33]
  range_for i in 0:i32 : 33:i32
    store c 7:i8 i
    one: i8 = load a i
    store x one i
    small: bool = lt i 17:i32
    if small
      two: i16 = load b i
      store b 1:i16 i
      less: i16 = sub two 769:i16
      byte: i8 = convert[dtype=i8] less
      j: i32 = add i 33:i32
      store x byte j
  range_for k in 0:i32 : 33:i32
    three: i8 = load c k
    m: i32 = add k 66:i32
    store x three m
  return x, b""")
    x, b = jax.jit(compiled(made).call)(np.zeros(99, np.int8))
    assert np.array_equal(x, [1] * 33 + [1] * 17 + [0] * 16 + [7] * 33)
    assert np.array_equal(b, np.ones(17))


def test_a_buffer_is_cleared_in_every_call():
    made = parse_program("""
program p(x: ref[f32,8])
  buffer sum: ref[f32] = 1.0:f32
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    accum[op=add] sum a
  return sum""")
    call = jax.jit(compiled(made).call)
    for _ in range(3):
        assert call(np.ones(8, np.float32))[0] == 9.0
    total = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, s: s + call(x)[0], 0.0))(jnp.ones(8))
    assert total == 45.0


def chained() -> tuple[Program, list[Var]]:
    """`late` takes the memory of `big`, whose content is still needed when the program starts."""
    x, out = ref_var(F32, (100,), "x"), ref_var(F32, (100,), "out")
    big, small, late = (ref_var(F32, (100,), hint) for hint in ("big", "small", "late"))
    tasks = (affine_task(big, x, 2.0), affine_task(small, big, 3.0), affine_task(x, late, 1.0, 1.0))
    tasks += (affine_task(out, small, 1.0),)
    program = Program("p", (x,), (big, small, late, out), tasks, (x, out), {late: literal(4.0, F32)})
    return program, [big, small, late, out]


def test_shared_memory_is_cleared_when_it_is_free():
    program, (big, small, late, _) = chained()
    layout = plan_layout(program)
    assert layout.places[big] == layout.places[late] != layout.places[small]
    assert layout.clears == (Clear(2, layout.places[late], 400, np.float32(4).tobytes()),)
    x, out = jax.jit(compiled(program).call)(np.arange(100, dtype=np.float32))
    assert np.array_equal(x, np.full(100, 5.0))
    assert np.array_equal(out, 6.0 * np.arange(100))


def test_what_is_cleared_and_when():
    x, unused, result, empty = (ref_var(F32, (n,), "b") for n in (4, 5, 6, 0))
    scratch = ref_var(DType.i16, (3,), "s")
    tasks = (affine_task(x, x, 1.0), affine_task(scratch, scratch, 1.0, dtype=DType.i16))
    one = literal(1.0, F32)
    initial = {result: one, unused: one, empty: one, scratch: literal(5, DType.i16)}
    program = Program("p", (x,), (unused, scratch, empty, result), tasks, (x, result, empty), initial)
    layout = plan_layout(program)
    assert [(c.before, c.place, c.nbytes) for c in layout.clears] == [(1, Place(4), 6), (2, Place(2), 24)]


def test_initial_values_are_part_of_the_content():
    program = filled(literal(1.0, F32), (8,))
    (b,) = program.buffers
    names = {compiled(program).target_name}
    for value in (literal(-1.0, F32), literal(0.0, F32), literal(-0.0, F32)):
        names.add(compiled(replace(program, initial={b: value})).target_name)
    assert len(names) == 4
    assert compiled(filled(literal(1.0, F32), (8,))).target_name in names
