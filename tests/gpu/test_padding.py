"""Rows of three floats that get a fourth on GPUs that add vectors to memory."""

import re

import numpy as np
import pytest

from lowering.gpu.padding import padded
from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from qdtrace.analysis.machine import GPU
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program, ref_type
from qdtrace.ir.verify import verify_program

LIMITS = GPU.accumulation
ROWS, VALUES = 9_000, 40_000
"""More rows than blocks have room for, and more than two values for each."""
WHOLE = "accum[op=add] f v j 0:i32\naccum[op=add] f w j 1:i32\naccum[op=add] f v j 2:i32"


def forces(body: str = WHOLE, values: int = VALUES, result: str = "out", first: str = " = 0.25:f32") -> Program:
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return parse_program(f"""program p(k: ref[i32,{values}], x: ref[f32,{values}])
  buffer f: ref[f32,{ROWS}x3]{first}
  buffer out: ref[f32,{ROWS}x3]
  range_for i in 0:i32 : {values}:i32
    j: i32 = load k i
    v: f32 = load x i
    w: f32 = mul v 3.0:f32
{lines}
  range_for n in 0:i32 : {3 * ROWS}:i32
    r: i32 = div n 3:i32
    c: i32 = rem n 3:i32
    y: f32 = load f r c
    store out y r c
  return {result}""")


def widths(program: Program) -> list[int]:
    return [ref_type(v).shape[-1] for v in program.buffers]


LOOP = "for m in 0:i32 : 2:i32 : 1:i32\n" + "\n".join("  " + line for line in WHOLE.split("\n"))


@pytest.mark.full
@pytest.mark.parametrize("body", [WHOLE, LOOP, WHOLE + "\naccum[op=add] f w j 1:i32", WHOLE + "\n" + WHOLE])
def test_rows_have_a_fourth_component_and_the_same_sums(body: str) -> None:
    program = forces(body)
    made = padded(program, LIMITS)
    verify_program(made)
    assert widths(made) == [4, 3]
    rng = np.random.default_rng(0)  # numbers whose sums are exact
    args = rng.integers(0, ROWS, VALUES, np.int32), rng.integers(-9, 9, VALUES).astype(np.float32)
    for one, other in zip(evaluate(made, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_text_and_the_code_of_a_row() -> None:
    made = padded(forces(), LIMITS)
    assert "    accum[op=add] f v j 2:i32\n    accum[op=add] f 0.0:f32 j 3:i32\n" in print_program(made)
    assert re.findall(r"add\.v\d|atomicrmw", emit_kernels(made.tasks[0], device("sm_90")).text) == ["add.v4"]


@pytest.mark.parametrize(
    "program",
    [
        forces(values=ROWS),
        forces(result="f"),
        forces("accum[op=add] f v j 0:i32\naccum[op=add] f v j 2:i32\naccum[op=add] f v j 1:i32"),
        forces("accum[op=add] f v j 0:i32\naccum[op=add] f w i 1:i32\naccum[op=add] f v j 2:i32"),
        forces("accum[op=add] f v j 1:i32\naccum[op=add] f w j 2:i32"),
        forces("accum[op=max] f v j 0:i32\naccum[op=max] f w j 1:i32\naccum[op=max] f v j 2:i32"),
        parse_program(print_program(forces()).replace("f32", "f64")),
    ],
    ids=["few updates", "a result", "another order", "other rows", "parts of rows", "another operation", "f64"],
)
def test_other_arrays_stay(program: Program) -> None:
    assert padded(program, LIMITS) is program


def test_an_array_that_is_not_cleared_stays() -> None:
    """What its fourth component has at first would be read."""
    assert widths(padded(forces(first=""), LIMITS)) == [3, 3]
