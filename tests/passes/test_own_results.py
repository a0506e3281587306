"""Parameters that a task overwrites whole become buffers; what reads the new content, or writes a part, stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qdtrace.passes.own_results import OwnResults
from tests.passes.harness import changes, check, parsed, unchanged

if TYPE_CHECKING:
    from qdtrace.ir.program import Program

SQUARE = """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a a
    store x b i
"""


def own(program: Program) -> Program:
    """The program in which the arguments of all parameters are needed."""
    return OwnResults(program.params)(program)


def program(body: str, *, kind: str = "ref[f32,8]", results: str = "x") -> str:
    return f"program p(x: {kind}, n: ref[i32], w: {kind})\n{body}  return {results}\n"


def test_what_is_overwritten_whole_is_a_buffer() -> None:
    check(
        own,
        program(SQUARE),
        """
program p(x: ref[f32,8], n: ref[i32], w: ref[f32,8])
  buffer y: ref[f32,8]
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a a
    store y b i
  return y
""",
    )


def test_tasks_before_read_the_argument_and_tasks_behind_the_buffer() -> None:
    before = "  range_for j in 0:i32 : 8:i32\n    c: f32 = load x 5:i32\n    accum[op=add] w c 3:i32\n"
    behind = """\
  range_for k in 0:i32 : 8:i32
    head
      h: f32 = load x 2:i32
    d: f32 = load x 0:i32
    e: f32 = add d h
    accum[op=add] w e 3:i32
  range_for l in 0:i32 : 2:i32
    accum[op=add] x 1.0:f32 l
"""
    after = f"""
program p(x: ref[f32,8], n: ref[i32], w: ref[f32,8])
  buffer y: ref[f32,8]
{before}{SQUARE.replace("store x", "store y")}{behind.replace(" x ", " y ")}  return y, w, y
"""
    check(own, program(before + SQUARE + behind, results="x, w, x"), after)


def test_only_parameters_that_are_needed() -> None:
    both = program(SQUARE + SQUARE.replace(" x ", " w "), results="w, x")
    some = parsed(both)
    (found,) = OwnResults(some.params[2:])(some).buffers
    assert found.type is some.params[2].type
    assert OwnResults(())(some) is some


def test_two_in_one_task() -> None:
    swap = """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = load w i
    store x b i
    store w a i
"""
    assert changes(own, program(swap, results="x, w"))
    assert len(own(parsed(program(swap, results="x, w"))).buffers) == 2


def test_a_result_that_nobody_wants_is_scratch() -> None:
    read = "  range_for j in 0:i32 : 8:i32\n    c: f32 = load x j\n    store w c j\n"
    assert changes(own, program(SQUARE + read, results="w"))


TAKEN = {
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
    "no load at all": """\
  range_for i in 0:i32 : 8:i32
    store x 1.0:f32 i
""",
    "another part later": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    store x a i
  range_for j in 0:i32 : 4:i32
    accum[op=add] x 1.0:f32 j
""",
}


@pytest.mark.parametrize("name", TAKEN)
def test_each_element_is_stored_and_none_is_read_again(name: str) -> None:
    assert changes(own, program(TAKEN[name]))


REFUSED = {
    "one element is left": SQUARE.replace(": 8:i32", ": 7:i32"),
    "one side of a branch": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    c: bool = lt i 4:i32
    if c
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
    "a part first": """\
  range_for j in 0:i32 : 4:i32
    store x 1.0:f32 j
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    store x a i
""",
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
    unchanged(own, program(REFUSED[name]))
