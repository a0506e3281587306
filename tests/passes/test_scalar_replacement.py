"""Places of loops in registers: what is carried, how it is guarded, and what stays in memory."""

import numpy as np
import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.combining import identity
from qdtrace.ir.syntax import literal_text
from qdtrace.ir.types import DType
from qdtrace.passes.scalar_replacement import PLACES, ScalarReplacement
from tests.ir.equal import programs_equal
from tests.passes.harness import arguments, assert_same_results, check, parsed, unchanged

exact = ScalarReplacement()
fast = ScalarReplacement(fast_math=True)
REFS = "b: ref[f32,8], x: ref[f32,8], y: ref[f32,8], e: ref[i32,8], r: ref[f32,8x4], total: ref[f32], n: ref[i32]"


def task(body: str, *, kind: str = "range_for i in 0:i32 : 8:i32", buffer: str = "", refs: str = REFS) -> str:
    """A program of one task over `b`, `x`, `y`; the body is given at indentation 0."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return f"program p({refs})\n{buffer}  {kind}\n{lines}  return b, x, y, r, total\n"


SUM = """
{before}for k in 0:i32 : {stop} : 1:i32
  a: f32 = load r i k
  accum[op=add] {place}
{after}"""
M = "m: i32 = load n\n"


def test_an_accumulation_becomes_a_carried_sum() -> None:
    after = """
s: f32 = load b i
t: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry c = s
  a: f32 = load r i k
  d: f32 = add c a
  yield d
store b t i
"""
    check(exact, task(SUM.format(before="", stop="4:i32", place="b a i", after="")), task(after))


def test_a_loop_that_may_not_run_carries_what_is_surely_there() -> None:
    after = """
m: i32 = load n
s: f32 = load b i
t: f32 = for k in 0:i32 : m : 1:i32 carry c = s
  a: f32 = load r i k
  d: f32 = add c a
  yield d
store b t i
"""
    check(exact, task(SUM.format(before=M, stop="m", place="b a i", after="")), task(after))


def test_the_order_of_a_sum_stays() -> None:
    program = parsed(task(SUM.format(before="", stop="4:i32", place="b a i", after="")))
    args = arguments(program)
    args[0][:] = 1e8
    args[4][:] = [[1.0, 3.0, -1e8, 7.0]] * 8
    for got, want in zip(evaluate(exact(program), args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(got, want)


GUARDED = """
m: i32 = load n
j: i32 = load e i
for k in 0:i32 : {stop} : {step}
  v: f32 = load b j
  w: f32 = mul v 0.5:f32
  store b w j
"""
GUARDED_AFTER = """
m: i32 = load n
j: i32 = load e i
p: bool = {test} 0:i32 m
s: f32 = if p
  l: f32 = load b j
  yield l
else
  yield 0.0:f32
t: f32 = for k in 0:i32 : m : {step} carry c = s
  w: f32 = mul c 0.5:f32
  yield w
if p
  store b t j
"""
ONE = "range_for i in 0:i32 : 1:i32"


@pytest.mark.parametrize(("step", "test"), [("1:i32", "lt"), ("-2:i32", "gt")])
def test_an_element_that_may_be_touched_never_is_guarded(step: str, test: str) -> None:
    before = GUARDED.format(stop="m", step=step)
    check(exact, task(before, kind=ONE), task(GUARDED_AFTER.format(step=step, test=test), kind=ONE))


def test_a_guard_needs_the_direction_of_the_loop() -> None:
    text = GUARDED.format(stop="m", step="q").replace("j: i32", "q: i32 = max m 1:i32\nj: i32")
    unchanged(exact, task(text, kind=ONE))


def test_no_guard_where_the_loop_surely_runs() -> None:
    got = exact(parsed(task(GUARDED.format(stop="4:i32", step="1:i32"), kind=ONE)))
    assert [e.primitive.name for e in got.tasks[0].body.eqns] == ["load", "load", "load", "for", "store"]


def test_no_guard_where_the_iteration_touched_the_element_before() -> None:
    text = GUARDED.format(stop="m", step="1:i32").replace("for k", "store b 1.0:f32 j\nfor k")
    got = exact(parsed(task(text, kind=ONE)))
    assert [e.primitive.name for e in got.tasks[0].body.eqns] == ["load", "load", "store", "load", "for", "store"]
    assert_same_results(parsed(task(text, kind=ONE)), got)


def test_a_load_before_is_no_leave_to_store() -> None:
    text = GUARDED.format(stop="m", step="1:i32").replace("for k", "z: f32 = load b j\nstore y z i\nfor k")
    got = exact(parsed(task(text, kind=ONE)))
    assert [e.primitive.name for e in got.tasks[0].body.eqns].count("if") == 2


def test_a_store_that_every_iteration_makes_needs_no_load() -> None:
    before = "for k in 0:i32 : 4:i32 : 1:i32\n  a: f32 = load r i k\n  store t a i\n  v: f32 = load t i\n  store y v k"
    after = """
q: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry c = 0.0:f32
  a: f32 = load r i k
  store y a k
  yield a
store t q i
"""
    buffer = "  buffer t: ref[f32,8]\n"
    check(exact, task(before, kind=ONE, buffer=buffer), task(after, kind=ONE, buffer=buffer))


CONDITIONAL = """
for k in 0:i32 : 4:i32 : 1:i32
  a: f32 = load r i k
  p: bool = gt a 0.0:f32
  if p
    accum[op=add] {place}
"""


def test_an_access_under_a_condition_where_nobody_else_goes() -> None:
    after = """
s: f32 = load b i
t: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry c = s
  a: f32 = load r i k
  p: bool = gt a 0.0:f32
  q: f32 = if p
    d: f32 = add c a
    yield d
  else
    yield c
  yield q
store b t i
"""
    check(exact, task(CONDITIONAL.format(place="b a i")), task(after))


@pytest.mark.parametrize("place", ["b a j", "b a l", "t a i"])
def test_an_access_under_a_condition_that_may_be_out_of_range_shared_or_unset(place: str) -> None:
    text = "j: i32 = load e i\nl: i32 = add i 1:i32\n" + CONDITIONAL.format(place=place).lstrip()
    text = text + "v: f32 = load r i 0:i32\nstore t v i"
    unchanged(exact, task(text, buffer="  buffer t: ref[f32,8]\n"))


@pytest.mark.parametrize(
    "first", ["  range_for k in 0:i32 : 8:i32\n    store t 0.0:f32 k\n", "initial", "in this task"]
)
def test_a_buffer_that_is_set_before(first: str) -> None:
    buffer = "  buffer t: ref[f32,8]\n"
    if first == "initial":
        buffer, first = "  buffer t: ref[f32,8] = 0.0:f32\n", ""
    body = CONDITIONAL.format(place="t a i").strip() + "\nv: f32 = load t i\nstore b v i"
    if first == "in this task":
        body, first = "store t 0.0:f32 i\n" + body, ""
    program = parsed(task(body, buffer=buffer + first))
    got = exact(program)
    assert got is not program
    assert_same_results(program, got)


def test_a_buffer_that_is_set_in_part() -> None:
    first = "  range_for k in 0:i32 : 7:i32\n    store t 0.0:f32 k\n"
    unchanged(exact, task(CONDITIONAL.format(place="t a i"), buffer="  buffer t: ref[f32,8]\n" + first))


def test_a_while_whose_condition_reads() -> None:
    before = """
while
  v: f32 = load b i
  p: bool = gt v 0.125:f32
  test p
  w: f32 = load b i
  z: f32 = mul w 0.5:f32
  store b z i
"""
    after = """
s: f32 = load b i
t: f32 = while carry c = s
  p: bool = gt c 0.125:f32
  test p
  z: f32 = mul c 0.5:f32
  yield z
store b t i
"""
    check(exact, task(before), task(after))


def test_a_while_that_may_leave_the_element_alone() -> None:
    """Another iteration may store to it then."""
    unchanged(exact, task("""
j: i32 = load e i
while
  v: f32 = load b j
  p: bool = gt v 0.5:f32
  test p
  store b 0.5:f32 j
""", kind=ONE))


def test_a_condition_that_writes() -> None:
    unchanged(exact, task("""
while
  v: f32 = load b i
  z: f32 = mul v 0.5:f32
  store b z i
  p: bool = gt v 0.125:f32
  test p
"""))


def test_an_index_that_changes() -> None:
    text = "for k in 0:i32 : 4:i32 : 1:i32\n  a: f32 = load r i k\n  store r 2.0:f32 i k\n  store x a k"
    unchanged(exact, task(text, kind=ONE))


@pytest.mark.parametrize(
    "other",
    ["v: f32 = load r i k", "j: i32 = load e k\n  v: f32 = load r i j", "store r 1.0:f32 i k\n  v: f32 = neg a"],
)
def test_another_access_that_may_be_of_the_element(other: str) -> None:
    unchanged(exact, task(f"""
for k in 0:i32 : 4:i32 : 1:i32
  a: f32 = load r i 2:i32
  {other}
  w: f32 = add a v
  store r w i 2:i32
"""))


def test_other_elements_of_the_row() -> None:
    before = """
for k in 2:i32 : 4:i32 : 1:i32
  a: f32 = load r i k
  accum[op=add] r a i 0:i32
  accum[op=mul] r a i 1:i32
"""
    after = """
s: f32 = load r i 0:i32
t: f32 = load r i 1:i32
u: f32, v: f32 = for k in 2:i32 : 4:i32 : 1:i32 carry c = s, d = t
  a: f32 = load r i k
  f: f32 = add c a
  g: f32 = mul d a
  yield f, g
store r u i 0:i32
store r v i 1:i32
"""
    check(exact, task(before), task(after))


def test_equal_forms_are_one_element() -> None:
    before = """
j: i32 = add i 1:i32
l: i32 = sub j 1:i32
for k in 0:i32 : 4:i32 : 1:i32
  v: f32 = load b l
  w: f32 = mul v 0.5:f32
  store b w i
"""
    check(exact, task(before), task("""
j: i32 = add i 1:i32
l: i32 = sub j 1:i32
s: f32 = load b l
t: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry c = s
  w: f32 = mul c 0.5:f32
  yield w
store b t l
"""))


def test_an_index_computed_inside_has_no_value_before_the_loop() -> None:
    unchanged(exact, task("for k in 0:i32 : 4:i32 : 1:i32\n  j: i32 = add i 0:i32\n  accum[op=add] b 1.0:f32 j"))


def test_an_inner_loop_where_the_outer_one_changes_the_index() -> None:
    before = """
for k in 0:i32 : 4:i32 : 1:i32
  for l in 0:i32 : 3:i32 : 1:i32
    accum[op=add] r 1.0:f32 i k
"""
    after = """
for k in 0:i32 : 4:i32 : 1:i32
  s: f32 = load r i k
  t: f32 = for l in 0:i32 : 3:i32 : 1:i32 carry c = s
    d: f32 = add c 1.0:f32
    yield d
  store r t i k
"""
    check(exact, task(before), task(after))


def test_both_loops() -> None:
    before = """
for k in 0:i32 : 4:i32 : 1:i32
  for l in 0:i32 : k : 1:i32
    accum[op=add] b 1.0:f32 i
"""
    got = exact(parsed(task(before)))
    assert [e.primitive.name for e in got.tasks[0].body.eqns] == ["load", "for", "store"]
    assert_same_results(parsed(task(before)), got)


@pytest.mark.parametrize("op", ["add", "max", "exchange"])
def test_atomics_stay(op: str) -> None:
    unchanged(exact, task(
        f"for k in 0:i32 : 4:i32 : 1:i32\n  o: f32 = atomic[op={op}] b 1.0:f32 i\n  accum[op=add] b o i"))


SHARED = SUM.format(before="j: i32 = load e i\n", stop="4:i32", place="b a j", after="")


def test_a_sum_that_other_iterations_share() -> None:
    after = """
j: i32 = load e i
t: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry c = -0.0:f32
  a: f32 = load r i k
  d: f32 = add c a
  yield d
accum[op=add] b t j
"""
    got = fast(parsed(task(SHARED)))
    assert fast(got) is got
    assert programs_equal(got, parsed(task(after)))
    unchanged(exact, task(SHARED))


@pytest.mark.parametrize("op", ["min", "max"])
def test_minima_and_maxima_are_exact(op: str) -> None:
    program = parsed(task(SHARED.replace("op=add", f"op={op}")))
    got = exact(program)
    assert got is not program
    assert_same_results(program, got)


@pytest.mark.parametrize("dtype", ["i32", "u8", "bool"])
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
def test_integers_are_exact(dtype: str, op: str) -> None:
    text = f"""
program p(b: ref[{dtype},8], r: ref[{dtype},8x4], e: ref[i32,8])
  range_for i in 0:i32 : 8:i32
    j: i32 = load e i
    for k in 0:i32 : 4:i32 : 1:i32
      a: {dtype} = load r i k
      accum[op={op}] b a j
  return b
"""
    program = parsed(text)
    got = exact(program)
    assert [e.primitive.name for e in got.tasks[0].body.eqns] == ["load", "for", "accum"]
    assert_same_results(program, got)


def test_accumulations_of_two_operations_stay() -> None:
    text = SHARED + "  accum[op=max] b a j\n"
    unchanged(fast, task(text, kind=ONE))


def test_a_shared_sum_is_guarded() -> None:
    text = SUM.format(before=M + "j: i32 = load e i\n", stop="m", place="b a j", after="")
    program = parsed(task(text))
    got = fast(program)
    assert [e.primitive.name for e in got.tasks[0].body.eqns] == ["load", "load", "lt", "for", "if"]
    args = arguments(program)
    args[-1] = np.array(0, np.int32)
    args[3][:] = 1000  # out of range, and never used
    assert_same_results(program, got, args)


def test_a_shared_sum_under_a_condition() -> None:
    """One place for all iterations is summed; elsewhere an atomic update of nothing would be added."""
    program = parsed(task(CONDITIONAL.format(place="total a")))
    got = fast(program)
    assert [e.primitive.name for e in got.tasks[0].body.eqns] == ["for", "accum"]
    text = "j: i32 = rem i 3:i32\n" + CONDITIONAL.format(place="b a j").lstrip()
    unchanged(fast, task(text))


def test_loads_alone_are_another_matter() -> None:
    unchanged(exact, task("for k in 0:i32 : 4:i32 : 1:i32\n  v: f32 = load b i\n  store r v i k"))


def test_private_arrays() -> None:
    before = """
c: cell[f32,4] = cell[dtype=f32, shape=(4)]
j: i32 = load e 0:i32
store c 0.0:f32 j
for k in 0:i32 : 4:i32 : 1:i32
  accum[op=add] c 1.0:f32 j
v: f32 = load c j
store b v 0:i32
"""
    program = parsed(task(before, kind="serial"))
    got = exact(program)
    assert "accum" not in [e.primitive.name for e in got.tasks[0].body.eqns[4].blocks[0].eqns]
    assert_same_results(program, got)


def test_many_places_stay() -> None:
    stores = "\n".join(f"  accum[op=add] w 1.0:f32 {k}:i32" for k in range(PLACES + 1))
    unchanged(exact, task(f"for k in 0:i32 : 2:i32 : 1:i32\n{stores}", kind="serial", refs=REFS + ", w: ref[f32,99]"))


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
def test_the_neutral_value_changes_nothing(dtype: DType, op: str) -> None:
    values = ["0", "1"] if dtype is DType.bool else ["0", "1", "2", "100"]
    values = [*values, "-0", "inf", "nan", "-inf", "-1.5"] if dtype.is_float else values
    args = [np.array([float(v) for v in values]).astype(dtype.numpy)]
    before = f"program p(x: ref[{dtype.value},{len(values)}])\n  serial\n"
    after = before
    text = identity(op, dtype)
    for k in range(len(values)):
        after += f"    accum[op={op}] x {literal_text(text)} {k}:i32\n"
        before += f"    a{k}: {dtype.value} = load x {k}:i32\n"
    assert_same_results(parsed(before + "  return x\n"), parsed(after + "  return x\n"), args)
