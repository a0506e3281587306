"""Clipped indices of code for one lane at a time: a branch in loops, the nearest element all the same."""

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.analysis.clipped_indices import clipped_indices
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from tests.lowering.harness import execute, same_bits

SCALAR = EmitOptions(fast_math=False, vectorize=False)
CLIP = """p: bool = lt j 0:{d}
w: {d} = add j 5:{d}
s: {d} = select p w j
m: {d} = max s 0:{d}
l: {d} = min m 4:{d}"""
OTHERS = {
    "a wrap of another value": CLIP.replace("lt j", "lt w").replace("p: bool", "w: {d} = add j 5:{d}\np: bool", 1)
    .replace("\nw: {d} = add j 5:{d}\ns", "\ns"),
    "no wrap": "m: {d} = max j 0:{d}\nl: {d} = min m 4:{d}",
    "another least index": CLIP.replace("max s 0", "max s 1"),
    "a last index that varies": CLIP.replace("min m 4:{d}", "min m z"),
}
EDGES = [-6, -5, -4, -1, 0, 1, 4, 5, 6]


def _program(clip: str, d: str, loop: str = "for k in 0:i32 : 3:i32 : 1:i32") -> str:
    lines = "\n".join(f"      {line}" for line in clip.format(d=d).splitlines())
    return f"""program p(x: ref[f32,5], n: ref[{d},16], out: ref[f32,16])
  range_for i in 0:i32 : 16:i32
    z: {d} = convert[dtype={d}] i
    {loop}
      j: {d} = load n i
{lines}
      v: f32 = load x l
      store out v i
  return out
"""


def _given(d: str) -> list[np.ndarray]:
    ends = np.iinfo({"i32": np.int32, "i64": np.int64}[d])
    indices = [*EDGES, ends.min, ends.min + 1, ends.max - 5, ends.max - 4, ends.max, 2, 3]
    return [np.arange(1, 6, dtype=np.float32), np.array(indices, ends.dtype), np.zeros(16, np.float32)]


@pytest.mark.every_case
@pytest.mark.parametrize("d", ["i32", "i64"])
@pytest.mark.parametrize("target", ["avx512", "avx2", "portable", "scalar"])
def test_far_indices_take_the_nearest_element(d: str, target: str) -> None:
    program = parse_program(_program(CLIP, d))
    assert "\nfar" in emit_task(program.tasks[0], Target.named(target), SCALAR).text
    same_bits(execute(program, _given(d), target, SCALAR, (0.4,))[0], evaluate(program, _given(d))[0])


@pytest.mark.parametrize("clip", OTHERS.values(), ids=OTHERS)
def test_others_are_left_to_llvm(clip: str) -> None:
    program = parse_program(_program(clip, "i32"))
    assert not clipped_indices(program.tasks[0])
    assert "\nfar" not in emit_task(program.tasks[0], Target.named("avx2"), SCALAR).text


def test_neither_lanes_nor_code_without_loops_branch() -> None:
    lanes = EmitOptions(fast_math=False, vectorize=True)
    assert "\nfar" not in emit_task(parse_program(_program(CLIP, "i32")).tasks[0], Target.named("avx2"), lanes).text
    once = parse_program(_program(CLIP, "i32", "if true"))
    assert not clipped_indices(once.tasks[0])
