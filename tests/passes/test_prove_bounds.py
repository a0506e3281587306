"""Proven checks go; what is left keeps every access behind its check, and reports nothing that is not executed."""


import numpy as np
import pytest

from qdtrace.config import Options
from qdtrace.errors import BoundsError, CheckError, QdError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program, literal
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.passes.hoist_bounds import HoistBounds
from qdtrace.passes.motion import ConstantExtraction, LoopInvariant
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.predicate import Predicate
from qdtrace.passes.prove_bounds import ProveBounds
from qdtrace.passes.scalar_replacement import ScalarReplacement
from qdtrace.passes.simplify import Simplify
from tests.ir.equal import programs_equal
from tests.passes.harness import assert_same_results, check, parsed, unchanged

PROVE = ProveBounds()
B = '[size=8, axis=0, buffer="x", shape=(8)]'
LONG = '[size=16, axis=0, buffer="y", shape=(16)]'


def text_of(text: str) -> str:
    return text.replace("BOUND", f"bound{B}").replace("LONG", f"bound{LONG}")


def test_proven_checks_go() -> None:
    before = """
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    p: bool = gt i 0:i32
    if p
      j: i32 = sub i 1:i32
      k: i32 = BOUND j
      a: f32 = load x k
      store y a i
  return y
"""
    after = before.replace("      k: i32 = BOUND j\n", "").replace("load x k", "load x j")
    check(PROVE, text_of(before), after)


def test_a_check_behind_a_shorter_one_of_the_same_index_is_its_result() -> None:
    """Not the bare index: an access of that could move in front of the check that is left."""
    before = """
program p(x: ref[f32,8], y: ref[f32,16], n: ref[i32])
  range_for i in 0:i32 : 4:i32
    a: i32 = load n
    k: i32 = BOUND a
    v: f32 = load x k
    m: i32 = LONG a
    store y v m
  return y
"""
    after = before.replace("    m: i32 = LONG a\n", "").replace("store y v m", "store y v k")
    check(PROVE, text_of(before), text_of(after))


KEPT = {
    "it may be the length": "    a: i32 = add i 1:i32\n    k: i32 = BOUND a\n    store x 1.0:f32 k\n",
    "it may be negative": "    a: i32 = sub i 1:i32\n    k: i32 = BOUND a\n    store x 1.0:f32 k\n",
    "nothing is known": "    a: i32 = load n\n    k: i32 = BOUND a\n    store x 1.0:f32 k\n",
    "a longer check in front": (
        "    a: i32 = load n\n    m: i32 = LONG a\n    k: i32 = BOUND a\n    store y 1.0:f32 m\n    store x 1.0:f32 k\n"
    ),
    "a check in the other branch": (
        "    a: i32 = load n\n    p: bool = gt i 3:i32\n    if p\n      k: i32 = BOUND a\n      store x 1.0:f32 k\n"
        "    else\n      m: i32 = BOUND a\n      store x 2.0:f32 m\n"
    ),
    "a check in a branch before": (
        "    a: i32 = load n\n    p: bool = gt i 3:i32\n    if p\n      k: i32 = BOUND a\n      store x 1.0:f32 k\n"
        "    m: i32 = BOUND a\n    store x 2.0:f32 m\n"
    ),
    "a check in a loop that may not run": (
        "    a: i32 = load n\n    for j in 0:i32 : a : 1:i32\n      k: i32 = BOUND a\n      store x 1.0:f32 k\n"
        "    m: i32 = BOUND a\n    store x 2.0:f32 m\n"
    ),
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_what_is_not_proven_stays(body: str) -> None:
    header = "program p(x: ref[f32,8], y: ref[f32,16], n: ref[i32])\n  range_for i in 0:i32 : 8:i32\n"
    unchanged(PROVE, text_of(header + body + "  return x\n"))


def test_a_program_without_checks_is_not_touched() -> None:
    body = "    a: i32 = add i 7:i32\n    store x a i\n"
    unchanged(PROVE, f"program p(x: ref[i32,8])\n  range_for i in 0:i32 : 8:i32\n{body}  return x\n")


# Accesses stay behind their checks. Each program has a check and an access that it protects; the order of the two, and
# the loops and branches around them, are the same after the pass, or the access got a proof of its own.


LOOPS = """
program p(x: ref[f32,8], y: ref[f32,16], n: ref[i32], m: ref[i32])
  range_for i in 0:i32 : 4:i32
    head
      a: i32 = load n
      s: i32 = load m
    for j in 0:i32 : s : 1:i32
      k: i32 = BOUND a
      v: f32 = load x k
      t: i32 = LONG a
      w: f32 = load y t
      z: f32 = add v w
      store y z t
  return y
"""


def everywhere(program: Program, args: list[np.ndarray]) -> None:
    """The program gives the same results, or one of the errors, after every stage of the pipeline."""
    want = outcome(program, args)
    stages: list[tuple[str, Program]] = []
    optimise(program, Options(verify=True), (lambda name, p: stages.append((name, p)),), each_pass=True)
    for name, stage in stages:
        got = outcome(stage, args)
        assert got == want, f"{name}: {got}, not {want}\n{print_program(stage)}"


def outcome(program: Program, args: list[np.ndarray]) -> object:
    try:
        return [x.tolist() for x in evaluate(program, args)]
    except (BoundsError, CheckError) as error:
        return type(error)


@pytest.mark.parametrize("index", [0, 7, 8, 15, 16, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_no_stage_reads_in_front_of_a_check(index: int, rounds: int) -> None:
    """The interpreter refuses an access out of range that no check stopped (not a BoundsError)."""
    args = [np.ones(8, np.float32), np.ones(16, np.float32), np.int32(index), np.int32(rounds)]
    everywhere(parsed(text_of(LOOPS)), [np.asarray(a) for a in args])


def test_a_loop_does_not_carry_a_place_whose_index_it_checks() -> None:
    """Also when the same element is used by an index that a branch proves, and which is known before the loop."""
    text = """
program p(x: ref[f32,8], n: ref[i32], m: ref[i32])
  range_for i in 0:i32 : 1:i32
    a: i32 = load n
    s: i32 = load m
    for j in 0:i32 : s : 1:i32
      k: i32 = BOUND a
      v: f32 = load x k
      w: f32 = add v 1.0:f32
      store x w k
      p: bool = ge a 0:i32
      q: bool = lt a 8:i32
      r: bool = and p q
      if r
        store x 2.0:f32 a
  return x
"""
    unchanged(ScalarReplacement(), text_of(text))
    for index in (3, 8, -1, 2**31 - 1):
        everywhere(
            parsed(text_of(text)), [np.ones(8, np.float32), np.asarray(np.int32(index)), np.asarray(np.int32(3))]
        )


VARYING = """
program p(x: ref[f32,8], n: ref[i32], z: ref[i32,4], y: ref[f32,4])
  range_for i in 0:i32 : 4:i32
    head
      a: i32 = load n
    for j in 0:i32 : 4:i32 : 1:i32
      b: i32 = load z j
      p: bool = lt b 5:i32
      q: bool = ge a 0:i32
      r: bool = lt a 8:i32
      s: bool = and p q
      t: bool = and s r
      check[message="no"] t
      v: f32 = load x a
      store y v i
  return y
"""


def test_a_load_that_a_check_protects_does_not_leave_the_loop_without_it() -> None:
    """The condition says that `a` is in range; it is checked in every iteration, the load is the same in all."""
    moved = LoopInvariant()(parsed(VARYING))
    (loop,) = [e for e in moved.tasks[0].body.eqns if e.blocks]
    assert [e.primitive.name for e in loop.blocks[0].eqns] == ["load", "lt", "and", "and", "check", "load", "store"]
    for index, fine in ((3, 4), (3, 5), (8, 4), (-1, 5), (2**31 - 1, 4)):
        z = np.array([fine, 1, 1, 1], np.int32)
        args = [np.ones(8, np.float32), np.asarray(np.int32(index)), z, np.ones(4, np.float32)]
        everywhere(parsed(VARYING), args)


def test_a_load_that_a_check_protects_does_not_move_to_the_head_without_it() -> None:
    text = VARYING.replace("    for j in 0:i32 : 4:i32 : 1:i32\n", "").replace("load z j", "load z i")
    text = text.replace("\n      ", "\n    ").replace("\n    a: i32", "\n      a: i32")
    moved = ConstantExtraction()(parsed(text))
    assert [e.primitive.name for e in moved.tasks[0].head] == ["load", "ge", "lt"]
    always = text.replace("load x a", "load x 3:i32")
    assert [e.primitive.name for e in ConstantExtraction()(parsed(always)).tasks[0].head] == [
        "load",
        "ge",
        "lt",
        "load",
    ]


def test_checks_move_out_of_loops_that_run_only() -> None:
    text = """
program p(x: ref[f32,8], n: ref[i32], y: ref[f32,4])
  range_for i in 0:i32 : 4:i32
    a: i32 = load n
    for j in 0:i32 : COUNT : 1:i32
      k: i32 = BOUND a
      v: f32 = load x k
      store y v i
  return y
"""
    text = text_of(text)
    moved = LoopInvariant()(parsed(text.replace("COUNT", "3:i32")))
    assert [e.primitive.name for e in moved.tasks[0].body.eqns] == ["load", "bound", "load", "for"]
    unchanged(LoopInvariant(), text.replace("COUNT", "a"))
    unchanged(LoopInvariant(), text.replace("COUNT", "0:i32"))


def test_checks_stay_under_their_branch_and_in_the_body_of_a_while() -> None:
    text = """
program p(x: ref[f32,8], n: ref[i32], y: ref[f32,4])
  range_for i in 0:i32 : 4:i32
    head
      a: i32 = load n
    p: bool = gt i 2:i32
    for j in 0:i32 : 3:i32 : 1:i32
      if p
        k: i32 = BOUND a
        v: f32 = load x k
        store y v i
    e: i32 = while carry c = 0:i32
      q: bool = lt c i
      test q
      l: i32 = BOUND a
      w: f32 = load x l
      store y w i
      d: i32 = add c 1:i32
      yield d
  return y
"""
    unchanged(LoopInvariant(), text_of(text))
    unchanged(ConstantExtraction(), text_of(text))
    unchanged(Predicate(), text_of(text))


def test_a_check_of_a_range_that_may_be_empty_stays_in_the_body() -> None:
    text = """
program p(x: ref[f32,8], n: ref[i32], y: ref[f32,4])
  range_for i in 0:i32 : a
    head
      a: i32 = load n
    k: i32 = BOUND a
    v: f32 = load x k
    store y v i
  return y
"""
    unchanged(ConstantExtraction(), text_of(text))


ONCE = """
program p(x: ref[i32,8], n: ref[i32,6], y: ref[i32,6])
  range_for i in 0:i32 : 6:i32
BODY
  return y
"""
NOT_EXECUTED = {
    "branch": """
    a: i32 = load n i
    p: bool = lt a 100:i32
    if p
      k: i32 = BOUND a
      v: i32 = load x k
      store y v i
""",
    "branch on the other condition": """
    a: i32 = load n i
    p: bool = ge a 100:i32
    if p
      store y 1:i32 i
    else
      k: i32 = BOUND a
      v: i32 = load x k
      store y v i
""",
    "value of a branch": """
    a: i32 = load n i
    p: bool = lt a 100:i32
    q: i32 = if p
      k: i32 = BOUND a
      v: i32 = load x k
      yield v
    else
      yield 5:i32
    store y q i
""",
    "loop that does not run": """
    a: i32 = load n i
    p: bool = lt a 100:i32
    c: i32 = convert[dtype=i32] p
    s: i32 = for j in 0:i32 : c : 1:i32 carry t = 0:i32
      k: i32 = BOUND a
      v: i32 = load x k
      u: i32 = add t v
      yield u
    store y s i
""",
    "loop of constant bounds that does not run": """
    a: i32 = load n i
    for j in 3:i32 : 3:i32 : 1:i32
      k: i32 = BOUND a
      v: i32 = load x k
      store y v i
""",
    "while": """
    a: i32 = load n i
    s: i32 = while carry t = a
      p: bool = lt t 8:i32
      test p
      k: i32 = BOUND t
      v: i32 = load x k
      u: i32 = add t v
      w: i32 = add u 1:i32
      yield w
    store y s i
""",
    "loop that was left": """
    a: i32 = load n i
    s: i32, g: bool = while carry t = 0:i32, go = true
      p: bool = lt t 4:i32
      q: bool = and p go
      test q
      b: i32 = add a t
      r: bool = lt b 8:i32
      if r
        k: i32 = BOUND b
        v: i32 = load x k
        store y v i
      u: i32 = add t 1:i32
      yield u, r
""",
    "two loops": """
    a: i32 = load n i
    p: bool = lt a 100:i32
    c: i32 = select p 2:i32 0:i32
    for j in 0:i32 : 3:i32 : 1:i32
      for l in 0:i32 : c : 1:i32
        k: i32 = BOUND a
        v: i32 = load x k
        store y v i
""",
    "the index of a loop that may be empty": """
    a: i32 = load n i
    p: bool = lt a 100:i32
    c: i32 = select p 8:i32 -5:i32
    for j in a : c : 1:i32
      k: i32 = BOUND j
      v: i32 = load x k
      store y v i
""",
    "a check": """
    a: i32 = load n i
    p: bool = lt a 100:i32
    if p
      q: bool = lt a 8:i32
      check[message="no"] q
      store y a i
""",
}


@pytest.mark.parametrize("body", NOT_EXECUTED.values(), ids=NOT_EXECUTED.keys())
def test_no_stage_reports_what_is_not_executed(body: str) -> None:
    program = parsed(text_of(ONCE.replace("BODY", body.strip("\n"))))
    good = np.array([0, 7, 100, 2**31 - 1, 3, 1000], np.int32)
    x = np.arange(8, dtype=np.int32)
    assert isinstance(outcome(program, [x, good, x[:6]]), list)
    everywhere(program, [x, good, x[:6]])
    bad = good.copy()
    bad[4] = 99 if "100" in body else 8
    everywhere(program, [x, bad, x[:6]])


def test_dead_code_keeps_a_check_whose_access_nobody_needs() -> None:
    text = """
program p(x: ref[f32,8], n: ref[i32], y: ref[f32,4])
  range_for i in 0:i32 : 4:i32
    a: i32 = load n
    k: i32 = BOUND a
    v: f32 = load x k
    store y 1.0:f32 i
  return y
"""
    program = parsed(text_of(text))
    final = optimise(program, Options())
    assert [e.primitive.name for e in final.all_eqns].count("bound") == 1
    args = [np.ones(8, np.float32), np.asarray(np.int32(8)), np.ones(4, np.float32)]
    with pytest.raises(QdError, match="index 8 is out of bounds"):
        evaluate(final, args)


def test_fused_tasks_keep_both_checks() -> None:
    text = """
program p(x: ref[f32,8], n: ref[i32,8], m: ref[i32,8])
  buffer t: ref[f32,8]
  buffer y: ref[f32,8]
  range_for i in 0:i32 : 8:i32
    a: i32 = load n i
    k: i32 = BOUND a
    v: f32 = load x k
    store t v i
  range_for i in 0:i32 : 8:i32
    a: i32 = load m i
    k: i32 = BOUND a
    v: f32 = load x k
    w: f32 = load t i
    z: f32 = add v w
    store y z i
  return y
"""
    program = parsed(text_of(text))
    final = optimise(program, Options())
    assert len(final.tasks) == 1
    assert [e.primitive.name for e in final.all_eqns].count("bound") == 2
    x, fine = np.arange(8, dtype=np.float32), np.arange(8, dtype=np.int32)
    for first, second in ((8, 0), (0, 8), (-1, 9), (0, 0)):
        n, m = fine.copy(), fine.copy()
        n[3], m[5] = first, second
        everywhere(program, [x, n, m])


def test_equal_programs_with_other_messages_are_not_equal() -> None:
    """The text of a check is part of the program: two that differ in it must not share an artifact."""
    check_of = 'check[message="A"]'
    body = f"    p: bool = lt i 3:i32\n    {check_of} p\n    store y 1.0:f32 i\n"
    text = f"program p(y: ref[f32,4])\n  range_for i in 0:i32 : 4:i32\n{body}  return y\n"
    assert not programs_equal(parsed(text), parsed(text.replace('"A"', '"B"')))


def test_no_check_moves_in_front_of_a_condition_of_the_user() -> None:
    """Behind a `check` that fails nothing is executed: the error is that of the condition."""
    text = text_of("""
program p(x: ref[f32,8], n: ref[i32], z: ref[i32,4], y: ref[f32,4])
  range_for i in 0:i32 : 4:i32
    head
      a: i32 = load n
    b: i32 = load z i
    p: bool = lt b 5:i32
    check[message="no"] p
    k: i32 = BOUND a
    v: f32 = load x k
    for j in 0:i32 : 4:i32 : 1:i32
      c: i32 = load z j
      q: bool = lt c 6:i32
      check[message="never"] q
      l: i32 = LONG a
      m: i32 = bound[size=3, axis=0, buffer="y", shape=(3)] j
      store y v m
  return y
""")
    unchanged(ConstantExtraction(), text)
    unchanged(LoopInvariant(), text)
    unchanged(HoistBounds(), text)
    z = np.array([1, 9, 1, 1], np.int32)
    args = [np.ones(8, np.float32), np.asarray(np.int32(99)), z, np.ones(4, np.float32)]
    assert outcome(parsed(text), args) is BoundsError
    args[2] = z[::-1].copy() + 4
    assert outcome(parsed(text), args) is CheckError
    everywhere(parsed(text), args)


def test_checks_in_the_head_of_a_task_over_nothing_stay() -> None:
    text = text_of("""
program p(n: ref[i32], y: ref[f32,4])
  range_for i in 3:i32 : 3:i32
    head
      a: i32 = load n
      k: i32 = BOUND a
    store y 1.0:f32 i
  return y
""")
    final = optimise(parsed(text), Options())
    assert [t.kind for t in final.tasks] == ["serial"]
    for index in (0, 8):
        everywhere(parsed(text), [np.asarray(np.int32(index)), np.ones(4, np.float32)])
    without = text.replace(f"      k: i32 = bound{B} a\n", "")
    assert not optimise(parsed(without), Options()).tasks


def test_a_step_that_is_found_to_be_zero() -> None:
    text = """\
program p(x: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    m: i32 = load n
    j: i32 = bound[size=8, axis=0, buffer="x", shape=(8)] i
    q: i32 = and m 3:i32
    s: i32 = min q 0:i32
    b: f32 = for k in m : i : s carry c = a
      d: f32 = mul c 2.0:f32
      yield d
    store x b j
  return x
"""
    program = parsed(text)
    proven = ProveBounds()(program)
    verify_program(proven)
    (loop,) = [e for e in proven.all_eqns if e.primitive.name == "for"]
    assert loop.invars[2] == literal(0, DType.i32)
    assert_same_results(program, proven)
    made = Simplify()(proven)
    assert not any(e.blocks for e in made.all_eqns)
    assert_same_results(program, made)
