"""Reciprocals: which divisions become quotients, and that these have the values of the divisions."""


import pytest
from hypothesis import HealthCheck, given, settings

from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.verify import verify_program
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.reciprocals import Reciprocals
from tests.differential.compare import compare
from tests.differential.corpus import Case
from tests.differential.programs import programs
from tests.passes.harness import check, parsed, unchanged

reciprocals = Reciprocals()
TEXT = """\
program p(x: ref[{dtype},64], w: ref[{dtype},8], y: ref[{dtype},64])
  range_for i in 0:i32 : 64:i32
    l: {dtype} = load x i
{lines}    store y q i
  return y
"""


def text(*lines: str, dtype: str = "f32") -> str:
    return TEXT.format(dtype=dtype, lines="".join(f"    {line}\n" for line in lines))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_divisor_that_lanes_share(dtype: str) -> None:
    check(
        reciprocals,
        text(f"r: {dtype} = load w 2:i32", f"q: {dtype} = div l r", dtype=dtype),
        text(
            f"r: {dtype} = load w 2:i32", f"c: {dtype} = div 1.0:{dtype} r", f"q: {dtype} = quotient l r c", dtype=dtype
        ),
    )


def test_a_divisor_that_the_loop_does_not_change() -> None:
    lines = ["q: f32 = for k in 0:i32 : 8:i32 : 1:i32 carry a = 0.0:f32", "  v: f32 = load w k", "  {}", "  yield s"]
    check(
        reciprocals,
        text(*lines).format("s: f32 = div v l"),
        text(*lines).format("c: f32 = div 1.0:f32 l\n      s: f32 = quotient v l c"),
    )


def test_two_divisions_by_one_value() -> None:
    check(
        reciprocals,
        text("a: f32 = add l 1.0:f32", "b: f32 = div l l", "d: f32 = div a l", "q: f32 = add b d"),
        text(
            "a: f32 = add l 1.0:f32",
            "c: f32 = div 1.0:f32 l",
            "b: f32 = quotient l l c",
            "e: f32 = div 1.0:f32 l",
            "d: f32 = quotient a l e",
            "q: f32 = add b d",
        ),
    )


def test_in_branches_and_in_serial_tasks() -> None:
    before = """\
program p(x: ref[f32,8], r: ref[f32], y: ref[f32,8])
  serial
    b: f32 = load r
    for k in 0:i32 : 8:i32 : 1:i32
      a: f32 = load x k
      t: bool = lt a 0.0:f32
      if t
        q: f32 = div a b
        store y q k
  return y
"""
    check(
        reciprocals,
        before,
        before.replace("q: f32 = div a b", "c: f32 = div 1.0:f32 b\n        q: f32 = quotient a b c"),
    )


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["r: f32 = load w 2:i32", "q: f32 = div r l"], id="lanes have divisors of their own"),
        pytest.param(["a: f32 = div l l", "b: f32 = ceil a", "d: f32 = div b l", "q: f32 = add d b"], id="one of two"),
        pytest.param(["q: f32 = div l 3.0:f32"], id="a constant"),
        pytest.param(["r: f32 = load w 2:i32", "s: f32 = div 2.0:f32 r", "q: f32 = mul s l"], id="all lanes share it"),
        pytest.param(
            [
                "q: f32 = for k in 0:i32 : 8:i32 : 1:i32 carry a = 0.0:f32",
                "  v: f32 = load w k",
                "  d: f32 = add v l",
                "  s: f32 = div l d",
                "  yield s",
            ],
            id="a divisor that the loop changes",
        ),
        pytest.param(["r: f32 = load w 2:i32", "j: f32 = convert[dtype=f32] i", "q: f32 = div j r"], id="integer"),
        *[
            pytest.param(["r: f32 = load w 2:i32", "d: f32 = div l r", f"q: f32 = {name} d"], id=name)
            for name in ("floor", "ceil", "trunc", "round_even", "round_away")
        ],
        pytest.param(
            [
                "r: f32 = load w 2:i32",
                "d: f32 = div l r",
                "n: i32 = convert[dtype=i32] d",
                "q: f32 = convert[dtype=f32] n",
            ],
            id="converted to a whole number",
        ),
    ],
)
def test_what_stays(lines: list[str]) -> None:
    unchanged(reciprocals, text(*lines))


def test_what_stays_of_other_dtypes() -> None:
    for dtype in ("f16", "bf16", "i32"):
        unchanged(reciprocals, text(f"r: {dtype} = load w 2:i32", f"q: {dtype} = div l r", dtype=dtype))


def test_only_with_fast_math() -> None:
    unchanged(Reciprocals(fast_math=False), text("r: f32 = load w 2:i32", "q: f32 = div l r"))


def test_the_reciprocal_leaves_the_loop() -> None:
    program = parsed(
        text(
            "q: f32 = for k in 0:i32 : i : 1:i32 carry a = 0.0:f32",
            "  m: i32 = rem k 8:i32",
            "  v: f32 = load w m",
            "  d: f32 = div v l",
            "  s: f32 = add d a",
            "  yield s",
        )
    )
    (task,) = optimise(program, Options()).tasks
    assert [e.primitive.name for e in task.body.eqns] == ["load", "div", "for", "store"]
    assert [e.primitive.name for e in task.body.eqns[2].blocks[0].eqns] == ["rem", "load", "quotient", "add"]


@pytest.mark.full
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs_keep_every_bit(case: Case) -> None:
    after = reciprocals(case.program)
    verify_program(after)
    assert reciprocals(after) is after
    compare(evaluate(after, case.args), evaluate(case.program, case.args))
