"""The generator of random programs of many tasks: what it draws, and that it shrinks failing programs."""

import pytest
from hypothesis import HealthCheck, given, settings

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Literal, Program, Task, literal
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from tests.differential.corpus import Case, case
from tests.differential.places import places
from tests.differential.reduce import reduced
from tests.differential.task_programs import is_definite, random_case, task_programs
from tests.passes.harness import parsed


@pytest.mark.full
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(task_programs())
def test_every_program_is_valid(case: Case) -> None:
    verify_program(case.program)
    assert print_program(parse_program(print_program(case.program))) == print_program(case.program)
    assert is_definite(case)


def test_a_number_gives_one_program() -> None:
    assert repr(random_case(7)) == repr(random_case(7))
    assert repr(random_case(7)) != repr(random_case(8))


@pytest.mark.full
def test_the_programs_have_everything() -> None:
    programs = [random_case(seed).program for seed in range(150)]
    tasks = [t for p in programs for t in p.tasks]
    assert {len(p.tasks) for p in programs} >= set(range(2, 10))
    assert {t.kind for t in tasks} == {"serial", "range_for"}
    assert any(t.hints.get("fuse") is False for t in tasks)
    assert {(isinstance(t.start, Literal), isinstance(t.stop, Literal)) for t in tasks} >= {(True, True), (True, False)}
    names = {e.primitive.name for p in programs for e in p.all_eqns}
    assert names >= {
        "load", "store", "accum", "atomic", "for", "while", "if", "div", "rem", "xor", "not", "neg", "shift_left",
        "bitcast", "convert", "select", "min", "max",
    }  # fmt: skip
    ops = {e.params["op"] for p in programs for e in p.all_eqns if e.primitive.name == "accum"}
    assert ops == {"add", "min", "max", "mul"}
    assert any(p.initial for p in programs)
    assert any(b in p.results for p in programs for b in p.buffers)
    assert any(b not in p.results for p in programs for b in p.buffers)


def test_the_elements_of_places_are_what_the_interpreter_finds() -> None:
    n, m = 12, 3
    for dtype in (DType.i32, DType.i64):
        for place in places(n, m):
            builder, index, out = Builder(), scalar_var(dtype), ref_var(DType.i64, (n,))
            with builder.block() as body:
                value = builder.convert(place.write(builder, index), DType.i64)
                builder.store(out, value, index)
            task = Task("range_for", index, literal(0, dtype), literal(n, dtype), body.close())
            (got,) = evaluate(Program("p", (), (out,), (task,), (out,)), [])
            assert got.tolist() == [place.at(i) for i in range(n)], place.name


def test_a_failure_is_made_small() -> None:
    program = parsed("""
program p(x: ref[i32,4], y: ref[i32,4], n: ref[i32])
  buffer t: ref[i32,4]
  range_for i in 0:i32 : 4:i32
    store t 1:i32 i
  range_for i in 0:i32 : m {fuse=false}
    head
      m: i32 = load n
    a: i32 = load x i
    c: bool = gt a 0:i32
    if c
      b: i32 = mul a 3:i32
      store y b i
      store y 7:i32 i
    else
      store y 1:i32 i
  return x, y
""")
    stores_seven = "store y 7:i32"
    small = reduced(case(program, "plain", 0), lambda c: stores_seven in repr(c))
    assert repr(small) == """
# inputs: plain 0
program p(x: ref[i32,4], y: ref[i32,4], n: ref[i32])
  range_for i in 0:i32 : m
    head
      m: i32 = load n
    store y 7:i32 i
  return y
"""
