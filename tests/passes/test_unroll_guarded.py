"""Unrolling of loops from one of few starts: which become copies of their bodies, and which stay."""

from itertools import product

import pytest

from qdtrace.analysis.machine import Machine
from qdtrace.config import Options
from qdtrace.passes import unroll_guarded
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.unroll_guarded import UnrollGuarded
from tests.passes.harness import assert_same_results, check, parsed, unchanged

HEAD = "program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])\n  range_for i in 0:i32 : 8:i32\n"


def primitives(program) -> list[str]:
    return [e.primitive.name for e in program.all_eqns]


def loop(*, start="s", stop="3:i32", step="1:i32", body="a: f32 = mul d d") -> str:
    return (
        HEAD
        + f"""\
    v: f32 = load x i
    m: i32 = load n
    p: bool = gt v 0.0:f32
    s: i32 = select p 0:i32 1:i32
    z: f32 = for c in {start} : {stop} : {step} carry d = v
      {body}
      yield a
    store y z i
  return y
"""
    )


LONG = "e: f32 = exp d\n      f: f32 = exp e\n      a: f32 = exp f"
ARRAY = "h: cell[f32,4] = cell[dtype=f32, shape=(4)]\n      store h d m\n      a: f32 = load h m"
INNER = "for j in 0:i32 : m : 1:i32\n        store y d j\n      a: f32 = mul d d"


def test_copies_of_which_the_first_is_under_a_branch() -> None:
    check(
        UnrollGuarded(),
        loop(),
        HEAD
        + """\
    v: f32 = load x i
    m: i32 = load n
    p: bool = gt v 0.0:f32
    s: i32 = select p 0:i32 1:i32
    r: bool = le s 0:i32
    z: f32 = if r
      a: f32 = mul v v
      yield a
    else
      yield v
    a_1: f32 = mul z z
    a_2: f32 = mul a_1 a_1
    store y a_2 i
  return y
""",
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(loop(start="m"), id="a start that is anything"),
        pytest.param(loop(stop="m"), id="a stop that is no constant"),
        pytest.param(loop(stop="20:i32"), id="too many iterations"),
        pytest.param(loop(body=LONG, stop="8:i32"), id="too much code"),
        pytest.param(loop(start="0:i32"), id="a constant start"),
        pytest.param(loop(step="2:i32"), id="another step"),
        pytest.param(loop(step="m"), id="a step that is no constant"),
        pytest.param(loop(stop="-3:i32", step="-1:i32"), id="downwards"),
        pytest.param(loop(body=ARRAY), id="a private array that stays"),
        pytest.param(loop(body=INNER), id="a loop inside"),
    ],
)
def test_what_stays(text: str) -> None:
    unchanged(UnrollGuarded(), text)


def test_private_arrays_at_the_counter() -> None:
    body = """h: cell[f32,4] = cell[dtype=f32, shape=(4)]
      store h d c
      a: f32 = load h c"""
    program = parsed(loop(body=body))
    made = UnrollGuarded()(program)
    assert "for" not in primitives(made)
    assert_same_results(program, made)


def table(stages: int) -> str:
    """A row of constants that the counter picks, as the importer writes it."""
    tests = "\n".join(f"      q{k}: bool = le c {k}:i32" for k in range(stages))
    rows = [f"      r0: f32 = select q0 0.5:f32 {stages}.0:f32"]
    rows += [f"      r{k}: f32 = select q{k} {k}.0:f32 r{k - 1}" for k in range(1, stages)]
    return tests + "\n" + "\n".join(rows) + f"\n      a: f32 = mul d r{stages - 1}"


def test_choices_by_the_counter_are_free() -> None:
    program = parsed(loop(stop="14:i32", body=table(14).strip()))
    made = UnrollGuarded()(program)
    assert "for" not in primitives(made)
    left = optimise(program, Options())
    assert primitives(left).count("select") <= 4
    assert_same_results(program, made)


def test_the_limit_of_a_task() -> None:
    unchanged(UnrollGuarded(Machine(task_cost=15)), loop(stop="8:i32"))


@pytest.mark.parametrize(("low", "high", "stop"), [*product((-2, 0, 1), (0, 1, 2, 4), (-3, -1, 0, 1, 3))])
def test_every_start_and_stop(low: int, high: int, stop: int) -> None:
    text = loop(stop=f"{stop}:i32").replace("select p 0:i32 1:i32", f"select p {low}:i32 {high}:i32")
    program = parsed(text)
    made = UnrollGuarded()(program)
    assert ("for" in primitives(made)) == (abs(high - low) >= unroll_guarded.STARTS)
    assert_same_results(program, made)
    assert_same_results(program, optimise(program, Options()))
