"""Checks of counted loops in front of them."""

import numpy as np
import pytest

from qdtrace.errors import BoundsError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.passes.hoist_bounds import HoistBounds
from tests.passes.harness import parsed

LOOP = """\
program p(x: ref[f32,8], r: ref[i32,2], y: ref[f32,3])
  range_for i in 0:i32 : 3:i32
    a: i32 = load r 0:i32
    b: i32 = load r 1:i32
    for k in a : b : 1:i32
      j: i32 = bound[axis=0, buffer=x, shape=(8), size=8] k
      v: f32 = load x j
      accum[op=add] y v i
  return y
"""


def test_both_ends_are_checked_before_the_loop() -> None:
    made = HoistBounds()(parsed(LOOP))
    assert print_program(made) == """\
program p(x: ref[f32,8], r: ref[i32,2], y: ref[f32,3])
  range_for i in 0:i32 : 3:i32
    a: i32 = load r 0:i32
    b: i32 = load r 1:i32
    v0: bool = lt a b
    v1: i32 = select v0 a 0:i32
    v2: i32 = sub b 1:i32
    v3: i32 = min v2 8:i32
    v4: i32 = select v0 v3 0:i32
    v5: i32 = bound[axis=0, buffer=x, shape=(8), size=8] v1
    v6: i32 = bound[axis=0, buffer=x, shape=(8), size=8] v4
    for k in a : b : 1:i32
      v: f32 = load x k
      accum[op=add] y v i
  return y"""


@pytest.mark.parametrize(
    ("ends", "index"),
    [
        ((0, 8), None),
        ((3, 3), None),
        ((9, 9), None),
        ((2**31 - 1, -(2**31)), None),
        ((20, -20), None),
        ((-(2**31), -(2**31)), None),
        ((7, 9), 8),
        ((-1, 4), -1),
        ((-3, 200), -3),
        ((8, 9), 8),
        ((2**31 - 5, 2**31 - 1), 2**31 - 5),
        ((0, 2**31 - 1), 8),
        ((-(2**31), 2**31 - 1), -(2**31)),
    ],
)
def test_the_first_index_that_fails_is_named(ends: tuple[int, int], index: int | None) -> None:
    """Of the loop as it was and of that with its check in front."""
    arguments = [np.arange(8, dtype=np.float32), np.array(ends, np.int32), np.zeros(3, np.float32)]
    for program in (parsed(LOOP), HoistBounds()(parsed(LOOP))):
        if index is None:
            want = arguments[0][slice(*ends)].sum() if ends[0] < ends[1] else 0.0
            np.testing.assert_array_equal(evaluate(program, arguments)[0], np.full(3, want))
            continue
        with pytest.raises(BoundsError, match=f"^index {index} is out of bounds for axis 0 of `x` with shape"):
            evaluate(program, arguments, fuel=1000)


KEPT = {
    "in a branch": LOOP.replace("      j:", "      c: bool = gt k 3:i32\n      if c\n        j:")
    .replace("      v: f32", "        v: f32")
    .replace("      accum", "        accum"),
    "of another value": LOOP.replace("      j:", "      m: i32 = mul k 2:i32\n      j:").replace("8] k", "8] m"),
    "of another step": LOOP.replace("a : b : 1:i32", "a : b : 2:i32"),
    "of an axis without elements": LOOP.replace("f32,8", "f32,0").replace("(8), size=8", "(0), size=0"),
    "of a task with a check in a branch": """\
program p(x: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : b
    head
      b: i32 = load n
    c: bool = gt i 3:i32
    if c
      j: i32 = bound[axis=0, buffer=x, shape=(8), size=8] i
      store x 1.0:f32 j
  return x
""",
    "none": LOOP.replace("      j: i32 = bound[axis=0, buffer=x, shape=(8), size=8] k\n", "").replace("x j", "x k"),
}  # fmt: skip


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_what_is_not_surely_made_stays(text: str) -> None:
    program = parsed(text)
    assert HoistBounds()(program) is program


def test_checks_of_the_index_of_a_task_go_to_its_head() -> None:
    text = """\
program p(x: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : b
    head
      b: i32 = load n
    j: i32 = bound[axis=0, buffer=x, shape=(8), size=8] i
    store x 1.0:f32 j
  return x
"""
    program = HoistBounds()(parsed(text))
    (task,) = program.tasks
    assert [e.primitive.name for e in task.body.eqns] == ["store"]
    assert [e.primitive.name for e in task.head].count("bound") == 2
    for count in (-4, 0, 5, 8):
        (got,) = evaluate(program, [np.zeros(8, np.float32), np.array(count, np.int32)])
        np.testing.assert_array_equal(got, np.arange(8) < count)
    with pytest.raises(BoundsError, match=r"^index 8 is out of bounds for axis 0 of `x` with shape \(8,\)"):
        evaluate(program, [np.zeros(8, np.float32), np.array(9, np.int32)])


def test_an_axis_longer_than_the_index_reaches_is_checked_in_the_loop() -> None:
    text = LOOP.replace("(8), size=8", "(2147483648), size=2147483648").replace("f32,8", "f32,2147483648")
    program = parsed(text)
    assert HoistBounds()(program) is program
