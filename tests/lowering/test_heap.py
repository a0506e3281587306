"""Private memory larger than the stack of a thread."""

import numpy as np
import pytest

from lowering.llvm.target import Target
from lowering.simd import emit
from qdtrace.errors import CheckError
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType
from tests.lowering.harness import TARGETS, Kernel, agrees, runnable

# Each iteration writes the first, the last and some elements in between of an array, and adds up what it reads back.
TEXT = """
program large(x: ref[f32,9], y: ref[f32,9])
  range_for i in 0:i32 : 9:i32
    v: f32 = load x i
    a: cell[f32,{size}] = cell[dtype=f32, shape=({size})]
    for k in 0:i32 : {size}:i32 : {step}:i32
      w: f32 = convert[dtype=f32] k
      u: f32 = mul w v
      store a u k
    total: f32 = for k in {last}:i32 : -1:i32 : -{step}:i32 carry s = 0:f32
      u: f32 = load a k
      t: f32 = add s u
      yield t
    fine: bool = lt i {limit}:i32
    check[message="too far"] fine
    store y total i
  return y
"""


def large(size: int, step: int, limit: int = 9):
    return parse_program(TEXT.format(size=size, step=step, last=(size - 1) // step * step, limit=limit))


ARGUMENTS = [np.linspace(-1, 1, 9, dtype=np.float32), np.zeros(9, np.float32)]


@pytest.mark.full
def test_more_than_a_stack():
    agrees(large(1 << 22, 700_001), ARGUMENTS, TARGETS)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bf16", "f16", "bool", "i64"])
def test_arrays_of_other_dtypes_have_room(dtype, monkeypatch):
    """Private memory keeps narrow floats in 32 bits: an array that is full is followed by another one."""
    monkeypatch.setattr(emit, "ON_STACK", 0)
    text = f"""
program rooms(x: ref[{dtype},64x1000], y: ref[{dtype},64x1000], z: ref[{dtype},64x1000])
  range_for i in 0:i32 : 64:i32
    a: cell[{dtype},3000] = cell[dtype={dtype}, shape=(3000)]
    b: cell[{dtype},3000] = cell[dtype={dtype}, shape=(3000)]
    for k in 0:i32 : 1000:i32 : 1:i32
      v: {dtype} = load x i k
      j: i32 = sub 2999:i32 k
      store b v j
      store b v k
      store a v k
      store a v j
    for k in 0:i32 : 1000:i32 : 1:i32
      j: i32 = sub 2999:i32 k
      v: {dtype} = load a j
      w: {dtype} = load b k
      store y v i k
      store z w i k
  return x, y, z
"""
    drawn = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (64, 1000))
    x = drawn.astype(DType[dtype].numpy)
    agrees(parse_program(text), [x, np.zeros_like(x), np.zeros_like(x)], TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_arrays_on_the_heap_are_freed_where_a_check_fails(target, monkeypatch):
    """The function that leaves early is called by the one that frees."""
    monkeypatch.setattr(emit, "ON_STACK", 0)
    program = large(1 << 10, 100, limit=8)
    code = emit.emit_task(program.tasks[0], Target.named(target)).text
    assert code.count("@aligned_alloc(i64 64,") == code.count("call void @free") == 1
    memory = dict(zip(program.params, map(np.copy, ARGUMENTS), strict=True))
    with pytest.raises(CheckError, match="too far"):
        Kernel(program.tasks[0], runnable(target)).run(memory)


def test_small_arrays_stay_on_the_stack():
    assert "aligned_alloc" not in emit.emit_task(large(1 << 10, 100).tasks[0], Target.named("avx512")).text
