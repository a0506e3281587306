"""Loops with rare blocks: which run twice, and how their steps find out that they have to."""

import pytest

from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import verify_program
from qdtrace.passes.rare_behind import RareBehind
from tests.passes.harness import assert_same_results, check, parsed, unchanged

HEAD = """program p(x: ref[f32,8], n: ref[i32,8], limit: ref[f32], y: ref[f32,8], told: ref[i32])
  range_for i in 0:i32 : 8:i32
    head
      v: f32 = load limit
    a: f32 = load x i
    m: i32 = load n i
"""
TAIL = """    store y s i
  return y, told
"""
TELL = """if p
  t: i32 = load told
  r: bool = lt t 100:i32
  if[rare=true] r
    accum[op=add] told k
"""
LOOP = """s: f32 = for k in 0:i32 : m : 1:i32 carry c = a
  d: f32 = mul c 1.5:f32
"""


def indented(text, by):
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


def program(condition, loop=LOOP, tell=TELL, more=""):
    return HEAD + indented(loop + indented(condition + "\n" + tell + more + "yield d\n", 2), 4) + TAIL


def moved(before):
    """What becomes of a program; its results are the same."""
    first = parsed(before)
    made = RareBehind()(first)
    verify_program(made)
    assert_same_results(first, made)
    assert RareBehind()(made) is made
    return print_program(made)


def test_the_largest_value_tells_whether_one_is_above_a_limit():
    loop = """    s: f32, e: f32 = for k in 0:i32 : m : 1:i32 carry c = a, f = -inf:f32
      d: f32 = mul c 1.5:f32
      p: bool = gt d v
      g: bool = gt d f
      h: f32 = select g d f
      yield d, h
    q: bool = gt e v
    if[rare=true] q
      z: f32 = for k_1 in 0:i32 : m : 1:i32 carry c_1 = a
        d_1: f32 = mul c_1 1.5:f32
        p_1: bool = gt d_1 v
        if p_1
          t: i32 = load told
          r: bool = lt t 100:i32
          if[rare=true] r
            accum[op=add] told k_1
        yield d_1
"""
    check(RareBehind(), program("p: bool = gt d v"), HEAD + loop + TAIL)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("p: bool = lt v d", "= select"),
        ("p: bool = le d 0.25:f32", "carry c = a, seen = inf:f32"),
        ("p: bool = ge m k", "= min seen k"),
        ("p: bool = gt k 3:i32", "carry c = a, seen = -2147483648:i32"),
        ("p: bool = ne d d", "= ne seen_1 seen_1"),
        ("o: bool = is_finite d\np: bool = not o", "= is_finite seen_1"),
        ("o: bool = is_finite d\nu: bool = gt d v\nq: bool = not o\np: bool = or q u", "seen_2"),
        ("o: bool = gt d v\nu: bool = gt v 0.0:f32\nw: bool = lt a v\np: bool = and o w", "= and"),
        ("p: bool = eq d v", "seen = false"),
        ("o: bool = gt d v\nu: bool = lt c 3.0:f32\np: bool = and o u", "seen = false"),
        ("p: bool = gt a v", "if[rare=true] p"),
    ],
)
def test_how_a_condition_is_found_out(condition, found):
    is_fixed = condition == "p: bool = gt a v"  # the same in all steps
    text = moved(program("", loop=f"{condition}\n{LOOP}") if is_fixed else program(condition))
    assert found in text
    assert text.count("for k") == 2


def test_nested_loops_run_twice_as_a_whole():
    inner = f"""u: f32 = for j in 0:i32 : 3:i32 : 1:i32 carry b = d
  g: f32 = add b 0.5:f32
  p: bool = gt g v
{indented(TELL, 2)}  yield g
o: bool = gt u 7.0:f32
w: f32 = if o
  l: bool = lt u 9.0:f32
  if l
{indented(TELL.partition(chr(10))[2], 2)}  yield 1.0:f32
else
  yield 2.0:f32
"""
    text = moved(program(inner, tell=""))
    assert text.count("for k") == 2
    assert text.count("for j") == 2
    assert text.count("if[rare=true]") == 3


def test_of_a_loop_that_stores_the_inner_one_runs_twice():
    inner = f"""accum[op=add] y 1.0:f32 i
u: f32 = for j in 0:i32 : 3:i32 : 1:i32 carry b = d
  g: f32 = add b 0.5:f32
  p: bool = gt g v
{indented(TELL, 2)}  yield g
"""
    text = moved(program(inner, tell=""))
    assert text.count("for k") == 1
    assert text.count("for j") == 2


def test_memory_of_the_loop_itself_may_be_stored_to_twice():
    cell = "w: cell[f32,2] = cell[dtype=f32, shape=(2)]\nstore w d 0:i32\nl: f32 = load w 0:i32\np: bool = gt l v"
    assert moved(program(cell)).count("for k") == 2


def test_a_while_and_the_other_side_of_a_branch():
    loop = f"""b: i32, s: f32 = while carry k = 0:i32, c = a
  o: bool = lt k m
  test o
  d: f32 = mul c 1.5:f32
  h: i32 = add k 1:i32
  p: bool = gt d v
  if p
  else
{indented(TELL.partition(chr(10))[2], 2)}  yield h, d
"""
    text = moved(HEAD + indented(loop, 4) + TAIL)
    assert text.count("= while") == 2
    assert "not p" in text


@pytest.mark.parametrize(
    "before",
    [
        program("p: bool = gt d v", more="store y d i\n"),
        program("p: bool = gt d v", more="accum[op=add] y d i\n"),
        program("", tell=TELL.partition("\n")[2].replace("\n  ", "\n").lstrip()),
        program("p: bool = gt d v", more="q: i32 = load told\nl: i32 = add q 1:i32\n"),
        program("p: bool = gt d v", tell="if p\n  store y v i\n"),
    ],
    ids=["store", "accumulation", "each step", "memory that is read", "nothing rare"],
)
def test_what_stays(before):
    unchanged(RareBehind(), before)


def test_what_only_a_branch_needs_is_computed_there():
    body = """    b: f32 = sin a
    c: f32 = mul b b
    d: i32 = load n i
    e: f32 = load y i
    p: bool = gt a v
{}    if p
{}      t: i32 = load told
      r: bool = lt t 100:i32
      if[rare=true] r
        k: i32 = convert[dtype=i32] c
        l: i32 = add k d
        f: i32 = convert[dtype=i32] e
        g: i32 = add l f
        accum[op=add] told g
    store y a i
  return y, told
"""
    head = HEAD.replace("    m: i32 = load n i\n", "")
    first = "    b: f32 = sin a\n    c: f32 = mul b b\n    d: i32 = load n i\n"
    before = head + body.format("", "")
    after = head + body.format("", indented(first.replace("    ", ""), 6)).replace(first, "", 1)
    check(RareBehind(), before, after)
