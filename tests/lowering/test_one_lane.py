"""The choice between lanes of vectors and one lane at a time, in scalar code."""

from dataclasses import replace

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from lowering.simd.plan import plan_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from tests.lowering.harness import execute, same_bits

WALK = """
program p(first: ref[i32,63], weight: ref[f32,63x4], q: ref[f32,100], out: ref[f32,100])
  range_for i in 0:i32 : 100:i32
    stack: cell[i32,8] = cell[dtype=i32, shape=(8)]
    store stack 0:i32 0:i32
    a: f32 = load q i
    t: i32, s: f32 = while carry top = 1:i32, sum = 0.0:f32
      more: bool = gt top 0:i32
      test more
      below: i32 = sub top 1:i32
      node: i32 = load stack below
      w: f32 = load weight node 0:i32
      v: f32 = load weight node 1:i32
      p: f32 = mul w v
      near: bool = gt p a
      n: i32, g: f32 = if near
        child: i32 = load first node
        inner: bool = gt child 0:i32
        m: i32, h: f32 = if inner
          other: i32 = add child 1:i32
          store stack child below
          store stack other top
          above: i32 = add top 1:i32
          yield above, sum
        else
          x: f32 = load weight node 2:i32
          y: f32 = load weight node 3:i32
          z: f32 = mul x y
          u: f32 = add sum z
          yield below, u
        yield m, h
      else
        yield below, sum
      yield n, g
    store out s i
  return out
"""
ONE, LANES = "one lane at a time", "divergent loops under masks"
UNIFORM = WALK.replace("store stack child below", "store stack child 3:i32").replace(
    "store stack other top", "store stack other 4:i32"
)

SEARCH = WALK.replace(
    """          x: f32 = load weight node 2:i32
          y: f32 = load weight node 3:i32
          z: f32 = mul x y
""",
    """          least: i32 = for k in 0:i32 : 4:i32 : 1:i32 carry so = 2147483647:i32
            x: f32 = load weight node k
            y: f32 = mul x x
            key: i32 = bitcast[dtype=i32] y
            same: i32 = and key -4:i32
            numbered: i32 = or same k
            lower: i32 = min so numbered
            yield lower
          z: f32 = bitcast[dtype=f32] least
""",
)
"""The same walk, which searches each leaf for the smallest of four numbers."""


def program() -> Program:
    return parse_program(WALK)


def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    first = np.array([2 * k + 1 if k < 31 else 0 for k in range(63)], np.int32)
    weight = rng.random((63, 4), dtype=np.float32)
    return [first, weight, rng.random(100, dtype=np.float32) / 3, np.zeros(100, np.float32)]


@pytest.mark.parametrize(("target", "way"), [("avx512", LANES), ("avx2", ONE), ("portable", ONE)])
def test_a_walk_over_a_tree(target: str, way: str) -> None:
    made = program()
    assert way in plan_task(made.tasks[0], Target.named(target)).reason
    code = emit_task(made.tasks[0], Target.named(target))
    assert (code.lanes == 1) == (way == ONE)
    assert ("masked" not in code.text) or way == LANES


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize("vectorize", [True, False, None])
def test_every_form_gives_what_the_interpreter_gives(target: str, vectorize: bool | None) -> None:
    got = execute(program(), arguments(), target, EmitOptions(fast_math=False, vectorize=vectorize), (0.4,))
    same_bits(got[0], evaluate(program(), arguments())[0])


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_inner_loops_of_one_lane_run_in_vectors(target: str) -> None:
    made = parse_program(SEARCH)
    reason = plan_task(made.tasks[0], Target.named(target)).reason
    assert (ONE in reason) == ("vectors along its loops: 4 lanes x 1" in reason) == (target != "avx512")
    for vectorize in (False, None):
        got = execute(made, arguments(), target, EmitOptions(fast_math=False, vectorize=vectorize), (0.4,))
        same_bits(got[0], evaluate(made, arguments())[0])


ROWS = """
program p(ends: ref[i32,41], col: ref[i32,90], value: ref[f32,90], dense: ref[f32,9x32])
  buffer out: ref[f32,40x32] = 0.0:f32
  range_for i in 0:i32 : 40:i32
    j: i32 = add i 1:i32
    a: i32 = load ends i
    b: i32 = load ends j
    for k in a : b : 1:i32
      c: i32 = load col k
      v: f32 = load value k
      for n in 0:i32 : 32:i32 : 1:i32
        d: f32 = load dense c n
        w: f32 = mul v d
        accum[op=add] out w i n
  return out
"""


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_loops_along_rows_that_lanes_differ_in(target: str) -> None:
    """A sparse matrix times a dense one: a lane's rows are its own, and each is a few vectors."""
    made, rng = parse_program(ROWS), np.random.default_rng(0)
    reason = plan_task(made.tasks[0], Target.named(target)).reason
    assert ONE in reason
    assert "vectors along its loops" in reason
    ends = np.array([*np.sort(rng.integers(0, 90, 40)), 90], np.int32)
    matrix = [rng.integers(0, 9, shape).astype(np.float32) for shape in (90, (9, 32))]
    args = [ends, rng.integers(0, 9, 90).astype(np.int32), *matrix]
    same_bits(execute(made, args, target)[0], evaluate(made, args)[0])


ALONE = """
program p(at: ref[i32,40], x: ref[f32,40], y: ref[f32,40])
  range_for i in 3:i32 : 4:i32
    for k in 0:i32 : 40:i32 : 1:i32
      a: i32 = load at k
      accum[op=add] x 1.5:f32 a
      b: f32 = load x k
      store y b k
  return x, y
"""


def test_one_iteration_is_scalar_code_without_locks() -> None:
    """`for _ in qd.range(1)` around a loop whose trips meet: sums in order, in memory."""
    made = parse_program(ALONE)
    assert plan_task(made.tasks[0], Target.named("avx512")).reason == "one iteration"
    args = [np.arange(40, dtype=np.int32)[::-1] // 2, *(np.zeros(40, np.float32) for _ in range(2))]
    for got, want in zip(execute(made, args, "avx512"), evaluate(made, args), strict=True):
        same_bits(got, want)


def test_the_option_decides() -> None:
    task = program().tasks[0]
    forced = plan_task(task, Target.named("avx512"), EmitOptions(vectorize=False))
    assert forced.shape.width == 1
    assert "by the option `vectorize`" in forced.reason
    assert plan_task(task, Target.named("avx2"), EmitOptions(vectorize=True)).shape.width == 8


def test_refill_that_the_user_asks_for_needs_lanes() -> None:
    task = program().tasks[0]
    assert "with lane refill" in plan_task(replace(task, hints={"refill": True}), Target.named("avx2")).reason


@pytest.mark.parametrize("text", [UNIFORM, WALK])
def test_stores_at_equal_indices_do_not_ask_for_one_lane(text: str) -> None:
    chosen = plan_task(parse_program(text).tasks[0], Target.named("avx2")).reason
    assert (ONE in chosen) == (text == WALK)


@pytest.mark.parametrize(
    ("cpu", "gathers"), [("skylake", True), ("alderlake", True), ("znver3", False), ("haswell", False)]
)
def test_gathers_are_instructions_where_they_are_fast(cpu: str, gathers: bool) -> None:
    assert replace(Target.named("avx2"), cpu=cpu).has_gathers is gathers


@pytest.mark.parametrize(("cpu", "fast"), [("x86-64-v4", True), ("sapphirerapids", True), ("znver4", False)])
def test_gathers_of_amd_are_no_faster_than_loads(cpu: str, fast: bool) -> None:
    assert replace(Target.named("avx512"), cpu=cpu).has_fast_gathers is fast


def test_accesses_of_lanes_have_no_branches_without_masks() -> None:
    task = program().tasks[0]
    text = emit_task(task, Target.named("avx2"), EmitOptions(vectorize=True)).text
    assert "masked.gather" not in text
    assert "masked.scatter" not in text
    assert "masked.gather" in emit_task(task, Target.named("avx512"), EmitOptions(vectorize=True)).text
    fast = replace(Target.named("avx2"), cpu="skylake")
    assert "masked.gather" in emit_task(task, fast, EmitOptions(vectorize=True)).text


@pytest.mark.full
def test_lanes_ordered_by_trips_keep_branches_of_accesses() -> None:
    rows = """program p(last: ref[i32,5000], col: ref[i32,80], x: ref[f32,80])
  buffer y: ref[f32,5000]
  range_for i in 0:i32 : 5000:i32
    n: i32 = load last i
    r: f32 = for j in 0:i32 : n : 1:i32 carry s = 0.5:f32
      k: i32 = load col j
{body}
    store y r i
  return y
"""
    load = "      v: f32 = load x k\n      t: f32 = add s v\n      yield t"
    nested = """      t: f32 = for h in k : n : 1:i32 carry q = s
        v: f32 = load x h
        u: f32 = add q v
        yield u
      yield t"""
    rng = np.random.default_rng(0)
    given = [rng.integers(0, 80, 5000, np.int32), rng.integers(0, 80, 80, np.int32), rng.random(80, np.float32)]
    for body, branches in ((load, True), (nested, False)):
        program = parse_program(rows.format(body=body))
        options = EmitOptions(fast_math=False, vectorize=True)
        assert ("masked.gather" in emit_task(program.tasks[0], Target.named("avx2"), options).text) == branches
        same_bits(execute(program, given, "avx2", options, (0.4,))[0], evaluate(program, given)[0])
