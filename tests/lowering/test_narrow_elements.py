"""Lanes access elements of 8 and 16 bits one by one, without branches, as no processor gathers or scatters them."""

import re

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from tests.lowering.harness import execute, same_bits

LANES = EmitOptions(fast_math=False, vectorize=True)


def _marks(d: str) -> str:
    """The distinct entries of rows of different lengths, marked in an array of the lane and in one of the program."""
    return f"""program p(last: ref[i32,100], col: ref[i32,300], x: ref[{d},70], n: ref[i32,100], y: ref[{d},70])
  range_for i in 0:i32 : 100:i32
    seen: cell[{d},70] = cell[dtype={d}, shape=(70)]
    for k in 0:i32 : 70:i32 : 1:i32
      store seen 0:{d} k
    e: i32 = load last i
    j_1: i32, h_1: i32 = while carry j = i, c = 0:i32
      t: bool = lt j e
      test t
      k_1: i32 = load col j
      m: {d} = load seen k_1
      new: bool = eq m 0:{d}
      if new
        v: {d} = load x k_1
        store seen 1:{d} k_1
        store y v k_1
      a: i32 = convert[dtype=i32] new
      g: i32 = add j 1:i32
      h: i32 = add c a
      yield g, h
    store n h_1 i
  return n, y
"""


@pytest.mark.every_case
@pytest.mark.parametrize("d", ["u8", "i16", "i32"])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_marks_of_lanes(d: str, target: str) -> None:
    program, rng = parse_program(_marks(d)), np.random.default_rng(0)
    dtype = {"u8": np.uint8, "i16": np.int16, "i32": np.int32}[d]
    text = emit_task(program.tasks[0], Target.named(target), LANES).text
    for name in ("gather", "scatter"):
        assert not re.search(rf"masked\.{name}\.v\d+(i8|i16)\b", text)
        assert (f"masked.{name}" in text) == (target == "avx512")  # of words
    given = [
        np.arange(100, dtype=np.int32) + rng.integers(-3, 200, 100, np.int32), rng.integers(0, 70, 300, np.int32),
        rng.integers(1, 99, 70).astype(dtype), np.zeros(100, np.int32), np.zeros(70, dtype),
    ]  # fmt: skip
    for got, want in zip(execute(program, given, target, LANES, (0.4,)), evaluate(program, given), strict=True):
        same_bits(got, want)
