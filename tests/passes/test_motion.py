"""Loop-invariant motion and constant extraction: what moves, and what may not."""

from __future__ import annotations

from qdtrace.passes.constant_extraction import ConstantExtraction
from qdtrace.passes.loop_invariant import LoopInvariant
from tests.passes.harness import check, unchanged

licm = LoopInvariant()
extract = ConstantExtraction()


def test_pure_equations_leave_every_loop_they_do_not_depend_on() -> None:
    check(
        licm,
        """
program p(x: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    s: f32 = load x i
    m: i32 = load n
    for k in 0:i32 : m : 1:i32
      for j in 0:i32 : k : 1:i32
        a: f32 = mul s s
        b: i32 = add k 1:i32
        c: f32 = convert[dtype=f32] b
        p: bool = gt c a
        if p
          d: f32 = exp a
          e: f32 = mul c 2.0:f32
          f: f32 = add d e
          accum[op=add] x f j
  return x
""",
        """
program p(x: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    s: f32 = load x i
    m: i32 = load n
    a: f32 = mul s s
    d: f32 = exp a
    for k in 0:i32 : m : 1:i32
      b: i32 = add k 1:i32
      c: f32 = convert[dtype=f32] b
      p: bool = gt c a
      e: f32 = mul c 2.0:f32
      f: f32 = add d e
      for j in 0:i32 : k : 1:i32
        if p
          accum[op=add] x f j
  return x
""",
    )


def test_out_of_while_and_its_condition() -> None:
    check(
        licm,
        """
program p(x: ref[f32,8], lim: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = while carry s = 0.0:f32
      l: f32 = load lim i
      c: bool = lt s l
      test c
      d: f32 = abs a
      e: f32 = add d 1.0:f32
      f: f32 = add s e
      yield f
    store x b i
  return x
""",
        """
program p(x: ref[f32,8], lim: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    l: f32 = load lim i
    d: f32 = abs a
    e: f32 = add d 1.0:f32
    b: f32 = while carry s = 0.0:f32
      c: bool = lt s l
      test c
      f: f32 = add s e
      yield f
    store x b i
  return x
""",
    )


def test_loads_move_where_they_surely_run_or_cannot_fail() -> None:
    check(
        licm,
        """
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    m: i32 = load n
    for k in 0:i32 : 4:i32 : 1:i32
      a: f32 = load x i
      accum[op=add] y a k
    for k in 0:i32 : m : 1:i32
      b: f32 = load x 3:i32
      accum[op=add] y b k
  return y
""",
        """
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    m: i32 = load n
    a: f32 = load x i
    for k in 0:i32 : 4:i32 : 1:i32
      accum[op=add] y a k
    b: f32 = load x 3:i32
    for k in 0:i32 : m : 1:i32
      accum[op=add] y b k
  return y
""",
    )


def test_loads_in_the_range_of_the_loops_cannot_fail() -> None:
    check(
        licm,
        """
program p(x: ref[f32,16], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    j: i32 = mul i 2:i32
    l: i32 = add j 1:i32
    o: i32 = add j 2:i32
    while
      a: f32 = load y i
      b: bool = lt a 2.0:f32
      test b
      c: f32 = load x l
      e: f32 = abs c
      f: f32 = add e 1.0:f32
      accum[op=add] y f i
      p: bool = lt f 0.0:f32
      if p
        d: f32 = load x o
        accum[op=add] y d i
  return y
""",
        """
program p(x: ref[f32,16], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    j: i32 = mul i 2:i32
    l: i32 = add j 1:i32
    o: i32 = add j 2:i32
    c: f32 = load x l
    e: f32 = abs c
    f: f32 = add e 1.0:f32
    p: bool = lt f 0.0:f32
    while
      a: f32 = load y i
      b: bool = lt a 2.0:f32
      test b
      accum[op=add] y f i
      if p
        d: f32 = load x o
        accum[op=add] y d i
  return y
""",
    )


def test_loads_that_may_not_run_or_may_change_stay() -> None:
    unchanged(
        licm,
        """
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  buffer t: ref[f32,8]
  range_for i in 0:i32 : 8:i32
    store t 1.0:f32 i
    j: i32 = add i 1:i32
    v: cell[f32,2] = cell[dtype=f32, shape=(2)]
    m: i32 = load n
    for k in 0:i32 : m : 1:i32
      a: f32 = load x j
      accum[op=add] y a k
    for k in 0:i32 : 4:i32 : 1:i32
      p: bool = lt k i
      if p
        b: f32 = load x j
        c: f32 = load v 0:i32
        d: f32 = load t 0:i32
        e: f32 = add b c
        f: f32 = add d e
        accum[op=add] y f k
      store v 2.0:f32 1:i32
    for k in 0:i32 : 4:i32 : 1:i32
      g: f32 = load x 0:i32
      accum[op=add] x g k
    while
      h: f32 = load y i
      q: bool = lt h 9.0:f32
      test q
      r: f32 = load x j
      accum[op=add] y 4.0:f32 i
      accum[op=add] y r i
  return y, x
""",
    )


def test_extraction_to_the_head() -> None:
    check(
        extract,
        """
program p(x: ref[f32,8], dt: ref[f32], k: ref[i32])
  range_for i in 0:i32 : n
    head
      n: i32 = load k
    a: f32 = load dt
    b: f32 = mul a a
    m: f32 = convert[dtype=f32] n
    c: f32 = load x i
    p: bool = lt c m
    if p
      e: f32 = exp b
      d: f32 = mul e c
      store x d i
  return x
""",
        """
program p(x: ref[f32,8], dt: ref[f32], k: ref[i32])
  range_for i in 0:i32 : n
    head
      n: i32 = load k
      a: f32 = load dt
      b: f32 = mul a a
      m: f32 = convert[dtype=f32] n
      e: f32 = exp b
    c: f32 = load x i
    p: bool = lt c m
    if p
      d: f32 = mul e c
      store x d i
  return x
""",
    )


def test_extraction_of_a_load_that_surely_runs() -> None:
    text = """
program p(x: ref[f32,8], y: ref[f32,8], k: ref[i32])
  range_for i in 0:i32 : {stop}
    head
      n: i32 = load k
{head}{body}    store x a i
  return x
"""
    load = "    a: f32 = load y n\n"
    check(
        extract,
        text.format(stop="8:i32", head="", body=load),
        text.format(stop="8:i32", head="  " + load, body=""),
    )
    unchanged(extract, text.format(stop="n", head="", body=load))


def test_what_the_task_writes_is_not_extracted() -> None:
    unchanged(
        extract,
        """
program p(x: ref[f32,8], s: ref[f32], k: ref[i32])
  range_for i in 0:i32 : n
    head
      n: i32 = load k
    a: f32 = load s
    c: f32 = mul a a
    accum[op=add] s c
    store x 1.0:f32 i
  return x, s
""",
    )


def test_a_private_array_and_a_buffer_are_not_read_early() -> None:
    unchanged(
        extract,
        """
program p(x: ref[f32,8])
  buffer t: ref[f32]
  range_for i in 0:i32 : 4:i32
    store t 1.0:f32
  range_for i in 0:i32 : 8:i32
    v: cell[f32,2] = cell[dtype=f32, shape=(2)]
    store v 1.0:f32 0:i32
    p: bool = lt i 4:i32
    if p
      a: f32 = load t
      b: f32 = load v 0:i32
      c: f32 = add a b
      store x c i
  return x
""",
    )


def test_a_serial_task_has_nothing_to_share() -> None:
    unchanged(extract, "program p(x: ref[f32])\n  serial\n    a: f32 = exp 1.0:f32\n    store x a\n  return x\n")
