"""The race detector: what races, what does not, and what it says."""

import numpy as np
import pytest

from qdtrace.errors import InterpreterError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program

X = np.arange(4, dtype=np.float32)


def run(body: list[str], kind="range_for i in 0:i32 : 4:i32", **options):
    lines = "".join(f"    {line}\n" for line in body)
    program = parse_program(f"program p(x: ref[f32,4], s: ref[f32])\n  {kind}\n{lines}  return x, s", file="t.qd")
    return evaluate(program, [X, np.float32(0)], **{"check_races": True, **options})


STORE, READ = "store s 1.0:f32", "a: f32 = load s"
ADD, MAX = "accum[op=add] s 1.0:f32", "accum[op=max] s 1.0:f32"
ATOMIC, ATOMIC_MAX = "b: f32 = atomic[op=add] s 1.0:f32", "c: f32 = atomic[op=max] s 1.0:f32"


@pytest.mark.parametrize(
    "body",
    [
        [STORE], [STORE, READ], [READ, STORE], [READ, ADD], [ADD, READ], [STORE, ADD], [ADD, MAX], [READ, ATOMIC],
        [ATOMIC, STORE], [ATOMIC, MAX], [ATOMIC_MAX, ADD],
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_races(body, order):
    with pytest.raises(InterpreterError, match=r"^race on `s`: two iterations of one task use it"):
        run(body, order=order)
    run(body, order=order, check_races=False)


@pytest.mark.parametrize(
    "body",
    [
        [READ], [ADD], [MAX], [ATOMIC], [ATOMIC, ATOMIC_MAX], [ADD, ATOMIC],
        ["a: f32 = load x i", "store x 2.0:f32 i", "accum[op=add] x 1.0:f32 i", "accum[op=max] x 1.0:f32 i"],
        ["z: bool = eq i 2:i32", "if z", "  " + READ, "  store s 1.0:f32", "  accum[op=add] s 1.0:f32"],
        ["c: cell[f32] = cell[dtype=f32, shape=()]", "store c 1.0:f32", "d: f32 = load c"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_no_races(body, order):
    for got, want in zip(run(body, order=order), run(body, order=order, check_races=False), strict=True):
        np.testing.assert_array_equal(got, want)


def test_serial_tasks_do_not_race():
    body = ["for k in 0:i32 : 4:i32 : 1:i32", "  a: f32 = load s", "  b: f32 = add a 1.0:f32", "  store s b"]
    assert run(body, kind="serial")[1] == 4


def test_tasks_are_barriers():
    text = (
        "program p(x: ref[f32,4], y: ref[f32,3])\n  range_for i in 0:i32 : 4:i32\n    store x 1.0:f32 i\n"
        "  range_for j in 0:i32 : 3:i32\n    k: i32 = add j 1:i32\n    a: f32 = load x k\n    store y a j\n  return y"
    )
    (y,) = evaluate(parse_program(text), [X, np.zeros(3, np.float32)], check_races=True)
    np.testing.assert_array_equal(y, np.ones(3))


def test_bounds_do_not_race_with_the_body():
    text = (
        "program p(n: ref[i32])\n  range_for i in 0:i32 : m\n    head\n      m: i32 = load n\n"
        "    accum[op=add] n 1:i32\n  return n"
    )
    assert evaluate(parse_program(text), [np.int32(3)], check_races=True)[0] == 6


def test_both_lines_are_named():
    body = ["z: bool = eq i 3:i32", "if z", "  store x 1.0:f32 1:i32", "else", "  a: f32 = load x i"]
    with pytest.raises(InterpreterError) as caught:
        run(body, kind="range_for i in 0:i32 : 4:i32 @step")
    assert str(caught.value) == (
        "race on `x[1]`: two iterations of one task `step` use it, at least one writes\n  at t.qd:5\n"
        "note: iteration 1 reads it at t.qd:7\n"
        "note: iteration 3 stores to it at t.qd:5\n"
        "help: split the loop in two, so that what is written is read by a later loop"
    )


def test_two_writers_are_told_to_accumulate():
    with pytest.raises(InterpreterError) as caught:
        run([ADD, MAX])
    assert str(caught.value) == (
        "race on `s`: two iterations of one task use it, at least one writes\n  at t.qd:3\n"
        "note: iteration 0 accumulates into it with max at t.qd:4\n"
        "note: iteration 1 accumulates into it with add at t.qd:3\n"
        "help: accumulate with one operation (`b[i] += v`), or give each iteration its own element"
    )


def test_a_race_that_the_first_iteration_to_touch_does_not_show():
    """Iterations 0 and 1 read, then 1 stores: the store meets its own read first, and 0's after it."""
    body = [READ, "z: bool = eq i 1:i32", "if z", "  store s 1.0:f32"]
    with pytest.raises(InterpreterError, match=r"note: iteration 0 reads it at t\.qd:3"):
        run(body)
