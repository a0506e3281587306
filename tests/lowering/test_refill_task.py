"""The task of lanes that take further elements: a rewrite that the interpreter runs as one lane."""

from dataclasses import replace

import numpy as np
import pytest

from lowering.llvm.facts import TaskFacts
from lowering.llvm.target import Target
from lowering.simd.divergence.refill import find_refill
from lowering.simd.divergence.refill_task import refilled_task
from lowering.simd.lane_facts import LaneFacts
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import ref_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program

N = 24
WHILE = f"""program p(x: ref[f32,{N}], s: ref[f32], n: ref[i32,{N}], y: ref[f32,{N}], z: ref[i32,2])
  range_for i in 0:i32 : {N}:i32 {{refill=true}}
    limit: f32 = load s
    a: f32 = load x i
    r: f32 = while carry c = a
      g: bool = gt c limit
      test g
      h: f32 = mul c 0.5:f32
      yield h
    store y r i
  return y, z
"""
FOR = f"""program p(x: ref[f32,{N}], s: ref[f32], n: ref[i32,{N}], y: ref[f32,{N}], z: ref[i32,2])
  range_for i in 0:i32 : {N}:i32 {{refill=true}}
    b: i32 = load n i
    f: f32 = load x i
    r: f32, q: i32 = for k in 1:i32 : b : 1:i32 carry c = 1.0:f32, m = 0:i32
      h: f32 = mul c f
      o: i32 = add m k
      accum[op=add] z 1:i32 0:i32
      yield h, o
    accum[op=add] z q 1:i32
    e: f32 = add r f
    store y e i
  return y, z
"""
CELL = f"""program p(x: ref[f32,{N}], s: ref[f32], n: ref[i32,{N}], y: ref[f32,{N}], z: ref[i32,2])
  range_for i in 0:i32 : {N}:i32 {{refill=true}}
    kept: cell[i32,3] = cell[dtype=i32, shape=(3)]
    for t in 0:i32 : 3:i32 : 1:i32
      store kept i t
    b: i32 = load n i
    j: i32 = while carry k = 0:i32
      g: bool = lt k b
      test g
      d: i32 = rem k 3:i32
      store kept k d
      w: i32 = add k 1:i32
      yield w
    o: i32 = load kept 1:i32
    v: f32 = convert[dtype=f32] o
    store y v i
    accum[op=max] z j 0:i32
  return y, z
"""
EMPTY = WHILE.replace("    store y r i\n", "").replace("      yield h", "      store y h i\n      yield h")
REFILLED = """  range_for lane in 0:i32 : 1:i32 {refill=true}
    v0: i64 = load chunk 0:i32
    v1: i64 = load chunk 1:i32
    v2: bool = lt v0 v1
    if v2
      limit: f32 = load s
"""


def refilled(text: str, lanes: int = 1) -> Program:
    """The program whose lanes take elements of a chunk, which is its last parameter."""
    program = parse_program(text)
    task, chunk = program.tasks[0], ref_var(DType.i64, (2,), "chunk")
    refill = find_refill(LaneFacts(TaskFacts(task), analyse_uniformity(task)), Target.named("avx512"), reduces=False)
    assert refill is not None
    made = replace(program, params=(*program.params, chunk), tasks=(refilled_task(task, refill, chunk, lanes)[0],))
    verify_program(made)
    return made


def test_what_is_shared_is_evaluated_if_there_is_an_element() -> None:
    assert REFILLED in print_program(refilled(WHILE))


@pytest.mark.parametrize("text", [WHILE, FOR, CELL, EMPTY], ids=["while", "for", "private array", "nothing after"])
@pytest.mark.parametrize("chunk", [(0, N), (5, 17), (7, 8), (9, 9)])
def test_one_lane_takes_all_elements_of_a_chunk(text: str, chunk: tuple[int, int]) -> None:
    rng = np.random.default_rng(N)
    x, limit = np.exp(rng.normal(size=N) * 3).astype(np.float32), np.asarray(0.7, np.float32)
    arguments = [x, limit, rng.integers(-1, 9, N).astype(np.int32), np.full(N, -1, np.float32), np.zeros(2, np.int32)]
    found = evaluate(refilled(text), [*(np.copy(a) for a in arguments), np.array(chunk, np.int64)])
    low, high = chunk
    part = parse_program(text.replace(f"0:i32 : {N}:i32 {{", f"{low}:i32 : {high}:i32 {{"))
    for got, expected in zip(found, evaluate(part, arguments), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("lanes", "least"), [(1, 0), (16, 15), (64, 57)])
def test_lanes_run_until_one_in_eight_is_idle(lanes: int, least: int) -> None:
    text = print_program(refilled(WHILE, lanes))
    assert f"range_for lane in 0:i32 : {lanes}:i32" in text
    assert f" {least}:i32 1:i32\n" in text
