"""An `if` branches or runs both of its sides, by the same limits of the machine everywhere."""

import pytest

from lowering.llvm.target import Target
from qdtrace.analysis.branches import runs_both
from qdtrace.analysis.machine import CPU, Machine
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.config import Options
from qdtrace.ir.parser import parse_program
from qdtrace.passes.pipelines import optimise

TEXT = """
program p(x: ref[f32,64], n: ref[i32,64], y: ref[f32,64])
  range_for i in 0:i32 : 64:i32
    a: f32 = load x i
    k: i32 = load n i
    p: bool = lt a 0.0:f32
    r: f32 = if p
      {side}
      yield b
    else
      yield a
    store y r i
  return y
"""


def both(side: str, machine: Machine = CPU) -> bool:
    program = parse_program(TEXT.format(side=side))
    (eqn,) = [e for e in program.all_eqns if e.primitive.name == "if"]
    return runs_both(eqn, analyse_uniformity(program.tasks[0]), machine)


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        ("b: f32 = mul a a", True),
        ("b: f32 = load x k", True),  # held back lane by lane
        ("b: f32 = load x 63:i32", True),
        ("b: f32 = load x 64:i32", False),  # one load for all lanes: it fails where no lane goes there
        ("b: f32 = exp a", False),
        ("b: f32 = add a 1.0:f32\n      store x b i", False),
    ],
)
def test_both_sides_run_where_a_mask_holds_back_what_may_fail(side: str, expected: bool) -> None:
    assert both(side) is expected


def test_the_machine_says_how_long_a_side_may_be() -> None:
    side = "b: f32 = mul a a"
    assert both(side, Machine(divergent_branch=1))
    assert not both(side, Machine(divergent_branch=0))


def test_the_pass_asks_the_same_limit() -> None:
    program = parse_program(TEXT.format(side="b: f32 = sqrt a"))
    names = [
        [e.primitive.name for e in optimise(program, Options(), machine=Machine(divergent_branch=limit)).all_eqns]
        for limit in (CPU.divergent_branch, 0)
    ]
    assert ["if" in found for found in names] == [False, True]


def test_a_target_describes_its_machine() -> None:
    assert Target.host().machine is CPU
