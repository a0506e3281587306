"""Accumulations at fixed offsets become loops over elements."""

from random import Random

import numpy as np
import pytest

from qdtrace.analysis import scattered
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.primitives import ACCUM, ATOMIC, CHECK
from qdtrace.ir.program import Program, ref_type
from qdtrace.ir.verify import verify_program
from qdtrace.passes import gather
from qdtrace.passes.gather import GatherScatters
from tests.passes.harness import arguments, assert_same_bits, check, parsed, unchanged
from tests.passes.scattering_programs import scattering_program


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


KEPT = """
program p(y: ref[f32,8])
  buffer x: ref[f32,9] = 0.0:f32
  range_for i in 0:i32 : 8:i32
    a: f32 = load y i
    b: f32 = exp a
    accum[op=add] x b i
    j: i32 = add i 1:i32
    accum[op=add] x b j
  return x
"""


def test_expensive_values_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "SCATTER_COST", 0)
    check(
        GatherScatters(),
        KEPT,
        """
program p(y: ref[f32,8])
  buffer x: ref[f32,9]
  buffer kept: ref[f32,8]
  range_for i in 0:i32 : 8:i32
    a: f32 = load y i
    b: f32 = exp a
    store kept b i
    j: i32 = add i 1:i32
  range_for p in 0:i32 : 9:i32 @_gather
    below: bool = lt p 8:i32
    s: f32 = if below
      c: f32 = load kept p
      t: f32 = add 0.0:f32 c
      yield t
    else
      yield 0.0:f32
    above: bool = ge p 1:i32
    k: i32 = add p -1:i32
    u: f32 = if above
      d: f32 = load kept k
      v: f32 = add s d
      yield v
    else
      yield s
    store x u p
  return x
""",
    )


LATTICE = """
program p(y: ref[f32,2x8])
  buffer x: ref[f32,2x8] = 0.0:f32
  range_for i in 0:i32 : 8:i32
    a: f32 = load y 0:i32 i
    b: f32 = load y 1:i32 i
    k: i32 = add i 1:i32
    l: i32 = rem k 8:i32
    accum[op=add] x a 0:i32 i
    accum[op=add] x b 1:i32 l
  return x
"""


def test_accumulations_apart_are_stores() -> None:
    stored = LATTICE.replace(" = 0.0:f32", "")
    stored = stored.replace("accum[op=add] x a", "c: f32 = add 0.0:f32 a\n    store x c")
    stored = stored.replace("accum[op=add] x b", "d: f32 = add 0.0:f32 b\n    store x d")
    check(GatherScatters(), LATTICE, stored)


UNCHANGED = {
    "irregular": KEPT.replace("j: i32 = add i 1:i32", "e: f32 = floor b\n    j: i32 = convert[dtype=i32] e"),
    "own elements": KEPT.replace("x b j", "x b i"),
    "two operations": KEPT.replace("accum[op=add] x b j", "accum[op=max] x b j"),
    "also loaded": KEPT.replace("b: f32 = exp a", "b: f32 = load x i"),
    "strided": KEPT.replace("8:i32", "4:i32").replace("add i 1:i32", "mul i 2:i32"),
    "one element": KEPT.replace("9", "17").replace("8", "16").replace("x b i", "x b 0:i32"),
    "unknown range": KEPT.replace("(y: ", "(n: ref[i32], y: ").replace(
        ": 8:i32\n", ": m\n    head\n      m: i32 = load n\n"
    ),
}


@pytest.mark.parametrize("text", UNCHANGED.values(), ids=UNCHANGED)
def test_others_stay(always: None, text: str) -> None:
    unchanged(GatherScatters(), text)


@pytest.mark.full
@pytest.mark.parametrize("cost", [10**6, -(10**6)], ids=["computed again", "kept"])
@pytest.mark.parametrize("peeled", [0, 10**6])
@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1000, 9000, 1000))])
def test_random_programs(monkeypatch: pytest.MonkeyPatch, cost: int, peeled: int, first: int) -> None:
    monkeypatch.setattr(gather, "PEELED", peeled)
    monkeypatch.setattr(gather, "SCATTER_COST", cost)
    programs = 1000 if first else 20
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


def test_a_buffer_that_was_used_keeps_its_initial_content(always: None) -> None:
    for text, row in ((THREE_POINTS, ""), (LATTICE, "1:i32 ")):
        first = f"  range_for n in 3:i32 : 5:i32\n    c: f32 = load y {row}n\n    accum[op=add] x c {row}n\n"
        program = parsed(text.replace("  range_for", f"{first}  range_for", 1))
        got = GatherScatters()(program)
        assert got.initial == program.initial
        args = arguments(program)
        assert_same_bits(evaluate(program, args)[0], evaluate(got, args)[0])


def test_a_check_in_front_of_the_task_stays_once(always: None) -> None:
    head = '7:i32\n    head\n      n: i32 = load m\n      b: bool = lt n 9:i32\n      check[message="too many"] b\n'
    program = parsed(THREE_POINTS.replace("(y: ", "(m: ref[i32], y: ").replace("7:i32\n", head, 1))
    got = GatherScatters()(program)
    verify_program(got)
    assert got is not program
    assert sum(e.primitive is CHECK for e in got.all_eqns) == 1


def test_an_old_value_of_an_atomic_is_asked_for_once(always: None) -> None:
    text = THREE_POINTS.replace("load y i", "atomic[op=exchange] y 0.0:f32 0:i32")
    program = parsed(text.replace("return x", "return x, y"))
    got = GatherScatters()(program)
    verify_program(got)
    assert sum(e.primitive is ATOMIC for e in got.all_eqns) == 1
    args = arguments(program)
    for a, b in zip(evaluate(program, args), evaluate(got, args), strict=True):
        assert_same_bits(a, b)


STEPS = """
program p(y: ref[f32,4])
  buffer x: ref[f32,9] = 0.0:f32
  range_for i in 0:i32 : 4:i32
    a: f32 = load y i
    j: i32 = mul i 2:i32
    k: i32 = add j 1:i32
    l: i32 = add j 2:i32
    accum[op=add] x a j
    accum[op=add] x a k
    accum[op=add] x a l
  return x
"""
HALVES = """
program p(y: ref[f32,8])
  buffer x: ref[f32,4] = 0.0:f32
  range_for i in 0:i32 : 8:i32
    a: f32 = load y i
    j: i32 = div i 2:i32
    k: i32 = add i 1:i32
    l: i32 = div k 2:i32
    m: i32 = min l 3:i32
    accum[op=add] x a j
    accum[op=add] x a m
  return x
"""
REFLECTED = """
program p(y: ref[f32,8])
  buffer x: ref[f32,8] = 0.0:f32
  range_for i in 0:i32 : 8:i32
    a: f32 = load y i
    j: i32 = sub i 2:i32
    k: i32 = abs j
    accum[op=add] x a i
    accum[op=add] x a k
  return x
"""


@pytest.mark.parametrize("text", [STEPS, HALVES, REFLECTED], ids=["steps", "halves", "reflected"])
@pytest.mark.parametrize("peeled", [0, 10**6])
def test_elements_in_steps(always: None, monkeypatch: pytest.MonkeyPatch, text: str, peeled: int) -> None:
    """Restriction, prolongation and reflection: each element is stored once, by a loop over whole steps."""
    monkeypatch.setattr(gather, "PEELED", peeled)
    program = parsed(text)
    made = GatherScatters()(program)
    verify_program(made)
    assert not any(e.primitive is ACCUM for e in made.all_eqns)
    given = [np.arange(1.0, ref_type(program.params[0]).size + 1, dtype=np.float32)]
    for want, got in zip(evaluate(program, given), evaluate(made, given, check_races=True), strict=True):
        assert_same_bits(want, got)


PAIRS = """
program p(y: ref[f32,8])
  buffer x: ref[f32,5] = 0.0:f32
  range_for i in 0:i32 : 4:i32
    j: i32 = mul i 2:i32
    k: i32 = add j 1:i32
    a: f32 = load y j
    store y 0.0:f32 j
    b: f32 = load y k
    store y 0.0:f32 k
    l: i32 = add i 1:i32
    accum[op=add] x a i
    accum[op=add] x b l
  return x, y
"""


@pytest.mark.parametrize(("text", "kept"), [(PAIRS, False), (PAIRS.replace("load y k", "load y j"), True)])
def test_a_load_behind_a_store(always: None, text: str, kept: bool) -> None:
    """A value loaded behind a store to another element is computed again, one behind a store to its own is kept."""
    program = parsed(text)
    made = GatherScatters()(program)
    verify_program(made)
    assert (len(made.buffers) > len(program.buffers)) is kept
    given = [np.arange(1.0, 9.0, dtype=np.float32)]
    for want, got in zip(evaluate(program, given), evaluate(made, given, check_races=True), strict=True):
        assert_same_bits(want, got)
