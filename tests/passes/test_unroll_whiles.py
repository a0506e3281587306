"""Unrolling of a `while` that counts: which become copies of their bodies, and which stay."""

from __future__ import annotations

from itertools import product

import pytest

from qdtrace.analysis.machine import Machine
from qdtrace.config import Options
from qdtrace.ir.walk import walk_program
from qdtrace.passes import unroll_whiles
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.unroll_whiles import UnrollWhiles
from tests.passes.harness import assert_same_results, check, parsed, unchanged

HEAD = "program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])\n  range_for i in 0:i32 : 8:i32\n"


def primitives(program) -> list[str]:
    return [e.primitive.name for e in walk_program(program)]


def loop(*, start="s", stop="3:i32", test="lt c", body="a: f32 = mul d d", extra="") -> str:
    return (
        HEAD
        + f"""\
    v: f32 = load x i
    m: i32 = load n
    p: bool = gt v 0.0:f32
    s: i32 = select p 0:i32 1:i32
    k: i32, z: f32 = while carry c = {start}, d = v
      t: bool = {test} {stop}
{extra}\
      test t
      {body}
      b: i32 = add c 1:i32
      yield b, a
    store y z i
    w: f32 = convert[dtype=f32] k
    store x w i
  return y, x
"""
    )


LONG = "e: f32 = exp d\n      f: f32 = exp e\n      a: f32 = exp f"
ARRAY = "h: cell[f32,4] = cell[dtype=f32, shape=(4)]\n      store h d m\n      a: f32 = load h m"
INNER = "for j in 0:i32 : m : 1:i32\n        store y d j\n      a: f32 = mul d d"


def test_copies_of_which_the_first_is_under_a_branch() -> None:
    check(
        UnrollWhiles(),
        loop(),
        HEAD
        + """\
    v: f32 = load x i
    m: i32 = load n
    p: bool = gt v 0.0:f32
    s: i32 = select p 0:i32 1:i32
    r: bool = le s 0:i32
    k: i32, z: f32 = if r
      a: f32 = mul v v
      b: i32 = add 0:i32 1:i32
      yield b, a
    else
      yield s, v
    a_1: f32 = mul z z
    b_1: i32 = add 1:i32 1:i32
    a_2: f32 = mul a_1 a_1
    b_2: i32 = add 2:i32 1:i32
    store y a_2 i
    w: f32 = convert[dtype=f32] b_2
    store x w i
  return y, x
""",
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(loop(start="m"), id="a start that is anything"),
        pytest.param(loop(stop="m"), id="a stop that is no constant"),
        pytest.param(loop(stop="20:i32"), id="too many iterations"),
        pytest.param(loop(test="le c"), id="another comparison"),
        pytest.param(loop(test="gt c"), id="the other way round"),
        pytest.param(loop(body=LONG, stop="8:i32"), id="too much code"),
        pytest.param(loop(extra="      u: bool = gt d 0.5:f32\n").replace("test t", "test u"), id="no counter"),
        pytest.param(
            loop(extra="      u: bool = gt d 0.5:f32\n      q: bool = and t u\n").replace("test t", "test q"),
            id="another condition beside the counter",
        ),
        pytest.param(loop().replace("add c 1:i32", "add c 2:i32"), id="another step"),
        pytest.param(loop().replace("add c 1:i32", "sub c 1:i32"), id="downwards"),
        pytest.param(loop(body=ARRAY), id="a private array that stays"),
        pytest.param(loop(body=INNER), id="a loop inside"),
    ],
)
def test_what_stays(text: str) -> None:
    unchanged(UnrollWhiles(), text)


def test_private_arrays_at_the_counter() -> None:
    body = """h: cell[f32,4] = cell[dtype=f32, shape=(4)]
      store h d c
      a: f32 = load h c"""
    program = parsed(loop(body=body))
    made = UnrollWhiles()(program)
    assert "while" not in primitives(made)
    assert_same_results(program, made)


def table(stages: int) -> str:
    """A row of constants that the counter picks, as the importer writes it."""
    tests = "\n".join(f"      q{k}: bool = le c {k}:i32" for k in range(stages))
    rows = [f"      r0: f32 = select q0 0.5:f32 {stages}.0:f32"]
    rows += [f"      r{k}: f32 = select q{k} {k}.0:f32 r{k - 1}" for k in range(1, stages)]
    return tests + "\n" + "\n".join(rows) + f"\n      a: f32 = mul d r{stages - 1}"


def test_choices_by_the_counter_are_free() -> None:
    program = parsed(loop(stop="14:i32", body=table(14).strip()))
    made = UnrollWhiles()(program)
    assert "while" not in primitives(made)
    left = optimise(program, Options())
    assert primitives(left).count("select") <= 4
    assert_same_results(program, made)


def test_the_limit_of_a_task() -> None:
    unchanged(UnrollWhiles(Machine(task_cost=30)), loop(stop="8:i32"))


SECOND = """      u: bool = lt e {limit}:i32
      q: bool = and {order}
"""


@pytest.mark.parametrize(("limit", "order"), [*product(range(5), ("t u", "u t"))])
def test_two_counters(limit: int, order: str) -> None:
    """The other counter ends the loop first, or not; where that depends on the start, the loop stays."""
    text = loop(extra=SECOND.format(limit=limit, order=order)).replace("test t", "test q")
    text = text.replace("d = v", "d = v, e = 0:i32").replace("yield b, a", "f: i32 = add e 1:i32\n      yield b, a, f")
    text = text.replace("z: f32 = while", "z: f32, g: i32 = while")
    program = parsed(text)
    made = UnrollWhiles()(program)
    assert ("while" in primitives(made)) == (limit == 2 and made is program)
    assert_same_results(program, made)
    assert_same_results(program, optimise(program, Options()))


@pytest.mark.parametrize(("low", "high", "stop"), [*product((-2, 0, 1), (0, 1, 2, 4), (-3, -1, 0, 1, 3))])
def test_every_start_and_stop(low: int, high: int, stop: int) -> None:
    text = loop(stop=f"{stop}:i32").replace("select p 0:i32 1:i32", f"select p {low}:i32 {high}:i32")
    program = parsed(text)
    made = UnrollWhiles()(program)
    assert ("while" in primitives(made)) == (abs(high - low) >= unroll_whiles.STARTS)
    assert_same_results(program, made)
    assert_same_results(program, optimise(program, Options()))
