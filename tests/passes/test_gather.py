"""Accumulations at fixed offsets become loops over elements."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from qdtrace.analysis import scattered
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.verify import verify_program
from qdtrace.passes import gather
from qdtrace.passes.gather import GatherScatters
from tests.passes.harness import arguments, assert_same_bits, check, parsed
from tests.passes.scattering_programs import scattering_program

if TYPE_CHECKING:
    from qdtrace.ir.program import Program


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "SCATTER_COST", 10**6)


THREE_POINTS = """
program p(y: ref[f32,8])
  buffer x: ref[f32,8] = 0.0:f32
  range_for i in 1:i32 : 7:i32
    a: f32 = load y i
    j: i32 = add i -1:i32
    k: i32 = add i 1:i32
    accum[op=add] x a j
    accum[op=add] x a k
  return x
"""


def test_an_interior() -> None:
    check(
        GatherScatters(),
        THREE_POINTS,
        """
program p(y: ref[f32,8])
  buffer x: ref[f32,8]
  range_for p in 0:i32 : 8:i32 @_gather
    below: bool = lt p 6:i32
    j: i32 = add p 1:i32
    s: f32 = if below
      a: f32 = load y j
      t: f32 = add 0.0:f32 a
      yield t
    else
      yield 0.0:f32
    above: bool = ge p 2:i32
    k: i32 = add p -1:i32
    u: f32 = if above
      b: f32 = load y k
      v: f32 = add s b
      yield v
    else
      yield s
    store x u p
  return x
""",
    )


def random_program(seed: int) -> Program:
    return parsed(scattering_program(Random(seed)))


def compare(seed: int) -> bool:
    """Compares a random program before and after the pass; returns whether the pass changed it."""
    program = random_program(seed)
    got = GatherScatters()(program)
    verify_program(got)
    args = [np.abs(np.rint(a)).astype(a.dtype) for a in arguments(program, seed)]
    for x, y in zip(evaluate(program, args), evaluate(got, args, check_races=True), strict=True):
        assert_same_bits(x, y)
    return got is not program


@pytest.mark.parametrize("peeled", [0, 10**6])
@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1000, 9000, 1000))])
def test_random_programs(always: None, monkeypatch: pytest.MonkeyPatch, peeled: int, first: int) -> None:
    monkeypatch.setattr(gather, "PEELED", peeled)
    programs = 1000 if first else 40
    assert sum(map(compare, range(first, first + programs))) > 0.6 * programs


def test_a_loop_with_many_results_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body was read anew for each result: hundreds of times in the adjoint of a loop that carries arrays."""
    count = 50
    names = [f"r{k}" for k in range(count)]
    made, carried = ", ".join(f"{n}: f32" for n in names), ", ".join(f"c{n} = a" for n in names)
    program = parsed(f"""
program p(y: ref[f32,8])
  buffer x: ref[f32,8] = 0.0:f32
  range_for i in 0:i32 : 8:i32
    a: f32 = load y i
    {made} = for k in 0:i32 : 3:i32 : 1:i32 carry {carried}
      {chr(10).join(f"      n{n}: f32 = add c{n} a" for n in names).lstrip()}
      yield {", ".join(f"n{n}" for n in names)}
    {chr(10).join(f"    accum[op=add] x {n} i" for n in names).lstrip()}
  return x
""")
    reads: list[object] = []
    used_vars = scattered.used_vars
    monkeypatch.setattr(scattered, "used_vars", lambda eqn: reads.append(eqn) or used_vars(eqn))
    found = scattered.scattering(program.tasks[0])
    assert found is not None
    needed = found.needed(program.tasks[0].body.eqns[1].outvars)
    assert len(needed) > 2 * count
    assert len(reads) == len(set(reads)) <= count + 2
