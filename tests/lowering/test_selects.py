"""Choices between scalar floats by several comparisons, in tasks that run one lane at a time."""

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from lowering.simd.selects import MOST
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from tests.lowering.harness import execute, nearest, same_bits

SCALAR = EmitOptions(fast_math=False, vectorize=False)
BRANCHLESS = "select <{} x i1>"


def _program(dtype: str, lines: str) -> str:
    return f"""program p(a: ref[{dtype},64], b: ref[{dtype},64], out: ref[{dtype},64])
  range_for i in 0:i32 : 64:i32
    x: {dtype} = load a i
    y: {dtype} = load b i
{lines}
    store out z i
  return out
"""


BOTH = """    p: bool = le x 0.0:{0}
    q: bool = gt y x
    r: bool = and p q
    z: {0} = select r x 1.0:{0}"""
EITHER = """    p: bool = lt x y
    q: bool = ne y 0.0:{0}
    r: bool = ge x 1.0:{0}
    s: bool = and p q
    t: bool = or s r
    z: {0} = select t y x"""
INTEGER = """    p: bool = le x 0.0:{0}
    q: bool = lt i 40:i32
    r: bool = and p q
    z: {0} = select r x y"""
ONE = """    r: bool = le x y
    z: {0} = select r x y"""
WIDER = """    k: f64 = convert[dtype=f64] x
    p: bool = le k 0.25:f64
    q: bool = ge k -0.25:f64
    r: bool = and p q
    z: {0} = select r x y"""


def _many(count: int) -> str:
    lines = ["    r0: bool = le x 0.0:{0}"]
    for k in range(1, count):
        lines += [f"    q{k}: bool = ge y -{k}.0:{{0}}", f"    r{k}: bool = and r{k - 1} q{k}"]
    return "\n".join([*lines, f"    z: {{0}} = select r{count - 1} x y"])


def _arguments(dtype: type) -> list[np.ndarray]:
    special = np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 0.25], dtype)
    a, b = np.meshgrid(special, special)
    return [a.ravel(), b.ravel(), np.zeros(64, dtype)]


@pytest.mark.parametrize(("dtype", "lanes"), [("f32", 4), ("f64", 2), ("f16", 4)])
@pytest.mark.parametrize("lines", [BOTH, EITHER, _many(MOST)])
def test_several_comparisons_choose_without_a_branch(dtype: str, lanes: int, lines: str) -> None:
    program = parse_program(_program(dtype, lines.format(dtype)))
    for target, expected in (("avx2", True), ("avx512", True), ("portable", False)):
        text = emit_task(program.tasks[0], Target.named(target), SCALAR).text
        assert (BRANCHLESS.format(lanes) in text) == expected
    given = _arguments({"f32": np.float32, "f64": np.float64, "f16": np.float16}[dtype])
    for target in dict.fromkeys(map(nearest, ("avx2", "avx512"))):
        same_bits(execute(program, given, target, SCALAR, (0.4,))[0], evaluate(program, given)[0])


@pytest.mark.parametrize("lines", [INTEGER, ONE, WIDER, _many(MOST + 1)])
def test_other_conditions_are_left_to_llvm(lines: str) -> None:
    program = parse_program(_program("f32", lines.format("f32")))
    text = emit_task(program.tasks[0], Target.named("avx2"), SCALAR).text
    assert "select i1" in text
    assert "x i1>" not in text
    given = _arguments(np.float32)
    same_bits(execute(program, given, "avx2", SCALAR, (0.4,))[0], evaluate(program, given)[0])


def test_lanes_are_not_concerned() -> None:
    program = parse_program(_program("f32", BOTH.format("f32")))
    text = emit_task(program.tasks[0], Target.named("avx2"), EmitOptions(fast_math=False)).text
    assert "insertelement <4 x float>" not in text
