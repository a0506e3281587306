"""References that a task overwrites whole may have their old content elsewhere; what it reads back, or writes in part,
may not."""


import numpy as np
import pytest

from lowering.plan import renewal
from lowering.runtime.layout import Place, plan_layout
from qdtrace.interpret.reference import evaluate
from qdtrace.ir import memory
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from tests.runtime.programs import compiled

SQUARE = """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a a
    store x b i
"""


@pytest.fixture(autouse=True)
def _every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE", 0)


def program(body: str, *, results: str = "x") -> Program:
    return parse_program(f"program p(x: ref[f32,8], n: ref[i32], w: ref[f32,8])\n{body}  return {results}\n")


def taken(made: Program) -> dict[str, int]:
    """Names of the parameters that may stay as they are, with the number of the task that renews them."""
    return {v.hint: k for v, k in renewal.renewals(made).items()}


TAKEN = {
    "each element": SQUARE,
    "the last iteration first": """\
  range_for i in 0:i32 : 8:i32
    j: i32 = sub 7:i32 i
    a: f32 = load x j
    store x a j
""",
    "two halves": """\
  range_for i in 0:i32 : 4:i32
    j: i32 = add i 4:i32
    a: f32 = load x i
    b: f32 = load x j
    store x b i
    store x a j
""",
    "rows of a loop": """\
  range_for i in 0:i32 : 2:i32
    for k in 0:i32 : 4:i32 : 1:i32
      r: i32 = mul i 4:i32
      j: i32 = add r k
      a: f32 = load x j
      b: f32 = add a 1.0:f32
      store x b j
""",
    "no load at all": """\
  range_for i in 0:i32 : 8:i32
    store x 1.5:f32 i
""",
    "another part later": SQUARE
    + """\
  range_for j in 0:i32 : 4:i32
    accum[op=add] x 1.0:f32 j
""",
    "read before and after": """\
  range_for j in 0:i32 : 8:i32
    c: f32 = load x 5:i32
    accum[op=add] w c 3:i32
"""
    + SQUARE
    + """\
  range_for k in 0:i32 : 8:i32
    head
      h: f32 = load x 2:i32
    d: f32 = load x 0:i32
    e: f32 = add d h
    accum[op=add] w e 3:i32
""",
    "twice": SQUARE + SQUARE,
    "two of one task": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = load w i
    c: f32 = mul b 3.0:f32
    store x c i
    store w a i
""",
}


@pytest.mark.parametrize("name", TAKEN)
def test_each_element_is_stored_and_none_is_read_again(name: str) -> None:
    """The results do not depend on who has the memory, nor on what is in that of the results."""
    made = program(TAKEN[name], results="x, w")
    assert "x" in taken(made)
    rng = np.random.default_rng(1)
    x, w = rng.integers(-4, 5, (2, 8)).astype(np.float32)  # sums are exact in any order
    args = [x, np.array(3, np.int32), w]
    want = evaluate(made, args)
    done = compiled(made)
    for needed in ((), (0,), (2,), (0, 2)):
        for got, expected in zip(done.call(*args, needed=needed), want, strict=True):
            np.testing.assert_array_equal(got, expected)


REFUSED = {
    "one element is left": SQUARE.replace(": 8:i32", ": 7:i32"),
    "one side of a branch": """\
  range_for i in 0:i32 : 8:i32
    c: bool = lt i 4:i32
    if c
      store x 1.0:f32 i
""",
    "a loop that may not run": """\
  range_for i in 0:i32 : 8:i32
    m: i32 = load n
    for k in 0:i32 : m : 1:i32
      store x 1.0:f32 i
""",
    "a range that is not known": """\
  range_for i in 0:i32 : m
    head
      m: i32 = load n
    store x 1.0:f32 i
""",
    "a load of what was stored": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a a
    store x b i
    c: f32 = load x i
    accum[op=add] w c 0:i32
""",
    "a load in the head": """\
  range_for i in 0:i32 : 8:i32
    head
      h: f32 = load x 2:i32
    store x h i
""",
    "a part first": """\
  range_for j in 0:i32 : 4:i32
    store x 1.0:f32 j
"""
    + SQUARE,
    "a sum": """\
  range_for i in 0:i32 : 8:i32
    accum[op=add] x 1.0:f32 i
""",
    "a store and a sum": """\
  range_for i in 0:i32 : 8:i32
    store x 2.0:f32 i
    accum[op=add] x 1.0:f32 i
""",
    "an atomic": """\
  range_for i in 0:i32 : 8:i32
    store x 2.0:f32 i
    b: f32 = atomic[op=add] x 1.0:f32 i
""",
    "a serial task that reads what it stored": """\
  serial
    for k in 0:i32 : 8:i32 : 1:i32
      j: i32 = sub 7:i32 k
      a: f32 = load x j
      store x a k
""",
    "a loop that reads what it stored": """\
  range_for i in 0:i32 : 8:i32
    for k in 0:i32 : 3:i32 : 1:i32
      a: f32 = load x i
      b: f32 = add a 1.0:f32
      store x b i
""",
    "no write": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    store w a 0:i32
""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proved_stays(name: str) -> None:
    assert "x" not in taken(program(REFUSED[name]))


def test_the_places_of_tasks() -> None:
    """Tasks before read the operand; the task loads there, and stores in the result, as do tasks after it."""
    made = program(TAKEN["read before and after"], results="x, w")
    places = plan_layout(made, renews=True).task_places
    operand, w, x = Place(0), Place(4), Place(3)
    assert places == ((operand, w), (x, operand), (x, w))
    assert plan_layout(made).task_places == ((x, w), (x,), (x, w))


def test_small_arrays_have_one_pointer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE", 33)
    made = program(SQUARE)
    assert taken(made) == {}
    assert renewal.large(made.params) == []
    monkeypatch.setattr(memory, "LARGE", 32)
    assert taken(made) == {"x": 0}
    assert renewal.sources_of(made.tasks[0], renewal.large(made.params)) == made.params[:1]


def test_code_is_known_by_what_it_renews(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that takes one pointer of an array is not that of a call which has two."""
    made = program(SQUARE)
    args = [np.arange(8, dtype=np.float32), np.array(3, np.int32), np.zeros(8, np.float32)]
    for worth in (33, 32, 33, 32):
        monkeypatch.setattr(memory, "LARGE", worth)
        for needed in ((), (0,)):
            (got,) = compiled(made).call(*args, needed=needed)
            np.testing.assert_array_equal(got, args[0] ** 2)
