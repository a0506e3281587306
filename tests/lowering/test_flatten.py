"""Nested divergent loops as one loop over the state of a lane."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lowering.llvm.facts import TaskFacts
from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.divergence import flatten
from lowering.simd.divergence.flatten import FlatFacts, flattened, flattened_steps
from lowering.simd.lane_facts import LaneFacts
from lowering.simd.plan import plan_task
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.errors import BoundsError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from qdtrace.ir.verify import verify_program
from tests.differential.compare import compare
from tests.differential.corpus import Case
from tests.differential.divergent import nested_programs, programs_in_steps, with_hint
from tests.ir.equal import programs_equal
from tests.lowering.harness import execute, same_bits
from tests.selection import drawn

HEAD = """program p(n: ref[i32,70], x: ref[f32,9], y: ref[f32,70])
  range_for i in 0:i32 : 70:i32 {refill=true}
    a: i32 = load n i
"""
NESTED = f"""{HEAD}    k_1: i32, s_2: f32 = while carry k = a, s = 0.5:f32
      more: bool = gt k 0:i32
      test more
      b: i32 = rem k 3:i32
      even: bool = eq b 0:i32
      s_1: f32 = if even
        c: i32 = rem k 8:i32
        t_1: f32 = for j in b : c : 1:i32 carry t = s
          v: f32 = load x j
          u: f32 = mul t v
          yield u
        w: f32 = add t_1 1.0:f32
        yield w
      else
        o: f32 = sub s 0.25:f32
        yield o
      d: i32 = sub k 1:i32
      yield d, s_1
    store y s_2 i
  return y
"""
FLAT = f"""{HEAD}    i_1: bool, k_1: i32, s_2: f32, j_3: i32, t_3: f32, c_3: i32, e_3: bool = while carry \
inside = false, k = a, s = 0.5:f32, j = 0:i32, t = 0.0:f32, c = 0:i32, even = false
      more: bool = gt k 0:i32
      go: bool = or inside more
      test go
      n_0: bool, j_2: i32, t_2: f32, c_2: i32, e_2: bool = if inside
        v: f32 = load x j
        u: f32 = mul t v
        j_1: i32 = add j 1:i32
        m: bool = lt j_1 c
        yield m, j_1, u, c, even
      else
        b: i32 = rem k 3:i32
        even_1: bool = eq b 0:i32
        r0: bool, r1: i32, r2: f32, r3: i32 = if even_1
          c_1: i32 = rem k 8:i32
          z: bool = lt b c_1
          yield z, b, s, c_1
        else
          yield false, 0:i32, 0.0:f32, 0:i32
        yield r0, r1, r2, r3, even_1
      k_2: i32, s_3: f32 = if n_0
        yield k, s
      else
        s_1: f32 = if e_2
          w: f32 = add t_2 1.0:f32
          yield w
        else
          o: f32 = sub s 0.25:f32
          yield o
        d: i32 = sub k 1:i32
        yield d, s_1
      yield n_0, k_2, s_3, j_2, t_2, c_2, e_2
    store y s_2 i
  return y
"""


def flat(program: Program) -> Program | None:
    """The program with the nested loops of its only task as one."""
    (task,) = program.tasks
    facts = flattened(LaneFacts(TaskFacts(task), analyse_uniformity(task)), Target.named("avx512"))
    return None if facts is None else replace(program, tasks=(facts.task,))


def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 30, 70).astype(np.int32), rng.random(9, np.float32), np.zeros(70, np.float32)]


@pytest.fixture
def light_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flattens light inner loops, too."""
    monkeypatch.setattr(flatten, "_is_heavy", lambda outer, way: True)


@pytest.mark.usefixtures("light_ones")
def test_two_loops_become_one() -> None:
    program = parse_program(NESTED)
    made = flat(program)
    assert made is not None
    verify_program(made)
    assert programs_equal(made, parse_program(FLAT)), print_program(made)
    same_bits(evaluate(made, arguments())[0], evaluate(program, arguments())[0])


@pytest.mark.usefixtures("light_ones")
@pytest.mark.parametrize("vectors", [1, 2])
def test_machine_code(vectors: int) -> None:
    program = parse_program(NESTED)
    options = EmitOptions(fast_math=False, vectors=vectors)
    plan = plan_task(program.tasks[0], Target.named("avx512"), options)
    assert "with lane refill, nested loops as one" in plan.reason
    same_bits(execute(program, arguments(), "avx512", options, (0.4,))[0], evaluate(program, arguments())[0])


def test_inner_loops_that_cost_less_than_what_is_around_them_stay() -> None:
    heavy = "u: f32 = mul t v" + "".join(f"\n          e{k}: f32 = exp v" for k in range(3))
    for text, made in ((NESTED, False), (NESTED.replace("u: f32 = mul t v", heavy), True)):
        plan = plan_task(parse_program(text).tasks[0], Target.named("avx512"))
        assert isinstance(plan.facts, FlatFacts) == made


@pytest.mark.usefixtures("light_ones")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(" {refill=true}", " {refill=false}", id="a hint"),
        pytest.param("eq b 0:i32", "eq a 0:i32", id="lanes agree for a whole loop"),
        pytest.param("b : c : 1:i32", "b : c : 2:i32", id="a step of two"),
        pytest.param("b : c : 1:i32", "0:i32 : 4:i32 : 1:i32", id="lanes leave the inner loop together"),
    ],
)
def test_other_bodies(old: str, new: str) -> None:
    assert old in NESTED
    program = parse_program(NESTED.replace(old, new))
    plan = plan_task(program.tasks[0], Target.named("avx512"))
    assert isinstance(plan.facts, FlatFacts) == ("eq a" in new)
    same_bits(execute(program, arguments(), "avx512")[0], evaluate(program, arguments())[0])


@pytest.mark.usefixtures("light_ones")
def test_a_failing_check_is_the_one_of_the_nested_loops() -> None:
    check = "        c: i32 = rem k 8:i32\n"
    bound = "q: i32 = bound[axis=0, buffer={}, shape=(9), size={}] {}\n"
    inner = f"{bound.format('inner', 5, 'j')}          v: f32 = load x q"
    text = NESTED.replace("v: f32 = load x j", inner)
    text = text.replace(check, check + "        " + bound.format("outer", 1000, "k").replace("q:", "h:"))
    program = parse_program(text)
    assert isinstance(plan_task(program.tasks[0], Target.named("avx512")).facts, FlatFacts)
    for run in (lambda: evaluate(program, arguments()), lambda: execute(program, arguments(), "avx512")):
        with pytest.raises(BoundsError, match="index 5 is out of bounds for axis 0 of `inner`"):
            run()


RANDOM = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)


@pytest.mark.full
@settings(RANDOM, max_examples=drawn(60))
@given(nested_programs())
def test_random_programs_keep_their_meaning(case: Case) -> None:
    agree(case, code=False)


@pytest.mark.full
@settings(RANDOM, max_examples=drawn(12))
@given(nested_programs())
def test_random_programs_as_machine_code(case: Case) -> None:
    agree(case, code=True)


@pytest.mark.full
@settings(RANDOM, max_examples=drawn(60))
@given(programs_in_steps())
def test_time_steps_keep_their_meaning(case: Case) -> None:
    (task,) = case.program.tasks
    found = flattened_steps(LaneFacts(TaskFacts(task), analyse_uniformity(task)))
    if found is not None:
        made = replace(case.program, tasks=(found[0].task,))
        verify_program(made)
        compare(evaluate(made, case.args), evaluate(case.program, case.args))


@pytest.mark.slow
@settings(RANDOM, max_examples=1000, derandomize=False)
@given(nested_programs())
def test_many(case: Case) -> None:
    agree(case, code=True)


def agree(case: Case, *, code: bool) -> None:
    """Flattens all loops that may be, also those that all lanes enter together; others are refilled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flatten, "_is_entered_by_few", lambda lanes, way: True)
        patch.setattr(flatten, "_is_heavy", lambda outer, way: True)
        hinted = with_hint(case.program, True)
        made = flat(hinted)
        want = evaluate(case.program, case.args)
        if made is not None:
            verify_program(made)
            compare(evaluate(made, case.args), want)
        if code:
            options = EmitOptions(fast_math=False)
            compare(execute(hinted, case.args, "avx512", options, (0.6,)), want)
