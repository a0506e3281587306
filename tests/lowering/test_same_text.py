"""The text of a task is that of its graph: it does not depend on where objects are in memory."""

import pytest

from lowering.backend import CpuBackend
from lowering.llvm.target import Target
from qdtrace.backend import backend
from qdtrace.config import Options
from qdtrace.ir.parser import parse_program

DIVIDED = """
program p(x: ref[f32,64x3], n: ref[i32,3], y: ref[f32,64])
  range_for i in 0:i32 : 64:i32
    head
      a: i32 = load n 0:i32
      b: i32 = load n 1:i32
      c: i32 = load n 2:i32
    d: i32 = mul b 3:i32
    e: i32 = add a d
    f: i32 = add e c
    g: i32 = div f 3:i32
    h: i32 = add i g
    j: i32 = rem f 5:i32
    v: f32 = load x h j
    store y v i
  return y
"""


@pytest.mark.parametrize("target", ["avx512", "avx2", "sm_90", "gfx942"])
def test_what_is_divided_is_summed_in_order(target: str) -> None:
    emitter = CpuBackend(Target.named(target)) if target.startswith("avx") else backend(target)
    programs, texts = [], set()
    for size in range(24):
        programs.append((bytearray(100 * size), parse_program(DIVIDED)))  # all are kept, so that addresses differ
        texts.add(emitter.text(programs[-1][1].tasks[0], Options(), "llvm"))
    assert len(texts) == 1
