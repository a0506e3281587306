"""Loop-invariant motion and constant extraction: what moves, and what may not."""

import pytest

from qdtrace.passes.motion import ConstantExtraction, LoopInvariant
from tests.passes.harness import check, keeps, rewrites, unchanged

licm = LoopInvariant()
extract = ConstantExtraction()


def test_pure_equations_leave_every_loop_they_do_not_depend_on() -> None:
    rewrites(licm)("""
program p(x: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    s: f32 = load x i
    m: i32 = load n
+   a: f32 = mul s s
+   d: f32 = exp a
    for k in 0:i32 : m : 1:i32
+     b: i32 = add k 1:i32
+     c: f32 = convert[dtype=f32] b
+     p: bool = gt c a
+     e: f32 = mul c 2.0:f32
+     f: f32 = add d e
      for j in 0:i32 : k : 1:i32
-       a: f32 = mul s s
-       b: i32 = add k 1:i32
-       c: f32 = convert[dtype=f32] b
-       p: bool = gt c a
        if p
-         d: f32 = exp a
-         e: f32 = mul c 2.0:f32
-         f: f32 = add d e
          accum[op=add] x f j
  return x
""")


def test_out_of_while_and_its_condition() -> None:
    rewrites(licm)("""
program p(x: ref[f32,8], lim: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
+   l: f32 = load lim i
+   d: f32 = abs a
+   e: f32 = add d 1.0:f32
    b: f32 = while carry s = 0.0:f32
-     l: f32 = load lim i
      c: bool = lt s l
      test c
-     d: f32 = abs a
-     e: f32 = add d 1.0:f32
      f: f32 = add s e
      yield f
    store x b i
  return x
""")


def test_loads_move_where_they_surely_run_or_cannot_fail() -> None:
    rewrites(licm)("""
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    m: i32 = load n
+   a: f32 = load x i
    for k in 0:i32 : 4:i32 : 1:i32
-     a: f32 = load x i
      accum[op=add] y a k
+   b: f32 = load x 3:i32
    for k in 0:i32 : m : 1:i32
-     b: f32 = load x 3:i32
      accum[op=add] y b k
  return y
""")


def test_loads_in_the_range_of_the_loops_cannot_fail() -> None:
    rewrites(licm)("""
program p(x: ref[f32,16], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    j: i32 = mul i 2:i32
    l: i32 = add j 1:i32
    o: i32 = add j 2:i32
+   c: f32 = load x l
+   e: f32 = abs c
+   f: f32 = add e 1.0:f32
+   p: bool = lt f 0.0:f32
    while
      a: f32 = load y i
      b: bool = lt a 2.0:f32
      test b
-     c: f32 = load x l
-     e: f32 = abs c
-     f: f32 = add e 1.0:f32
      accum[op=add] y f i
-     p: bool = lt f 0.0:f32
      if p
        d: f32 = load x o
        accum[op=add] y d i
  return y
""")


def test_loads_that_may_not_run_or_may_change_stay() -> None:
    keeps(licm)("""
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
""")


FILLED = """
program p(x: ref[f32,8], n: ref[i32])
  buffer t: ref[f32,8x3]
{stores}  range_for i in 0:i32 : 8:i32
    m: i32 = load n
{before}    for k in 0:i32 : m : 1:i32
{inside}      accum[op=add] x a k
  return x
"""
STORES = {
    "columns": """\
  range_for i in 0:i32 : 8:i32
    store t 1.0:f32 i 0:i32
    store t 2.0:f32 i 2:i32
    store t 1.0:f32 i 1:i32
""",
    "loop": """\
  range_for i in 0:i32 : 8:i32
    j: i32 = sub 7:i32 i
    for k in 2:i32 : -1:i32 : -1:i32
      store t 1.0:f32 j k
""",
    "flat": """\
  range_for i in 0:i32 : 24:i32
    j: i32 = div i 3:i32
    k: i32 = rem i 3:i32
    store t 1.0:f32 j k
""",
    "two tasks back": """\
  range_for k in 0:i32 : 3:i32
    for i in 0:i32 : 8:i32 : 1:i32
      store t 1.0:f32 i k
  serial
    store t 1.0:f32 0:i32 0:i32
""",
}


@pytest.mark.parametrize("name", STORES)
def test_loads_of_buffers_that_an_earlier_task_stored_in_full(name: str) -> None:
    a = "    a: f32 = load t i 1:i32\n"
    check(
        licm,
        FILLED.format(stores=STORES[name], before="", inside="  " + a),
        FILLED.format(stores=STORES[name], before=a, inside=""),
    )


@pytest.mark.parametrize(
    "stores",
    [
        pytest.param(STORES["columns"].replace("2:i32\n", "1:i32\n"), id="a column is left out"),
        pytest.param(STORES["columns"].replace(": 8:i32", ": 7:i32"), id="a row is left out"),
        pytest.param(STORES["loop"].replace("2:i32 : -1", "2:i32 : 0"), id="the loop ends early"),
        pytest.param(STORES["loop"].replace(": -1:i32\n", ": -2:i32\n"), id="the loop leaves out every other"),
        pytest.param(STORES["loop"].replace("-1:i32 : -1:i32", "i : -1:i32"), id="the loop may not run"),
        pytest.param(STORES["loop"].replace("sub 7:i32 i", "mul i i"), id="indices that are not affine"),
        pytest.param(STORES["loop"].replace("sub 7:i32 i", "rem i 4:i32"), id="only some rows"),
        pytest.param(STORES["flat"].replace("rem i 3:i32", "rem i 2:i32"), id="only some columns"),
        pytest.param(
            STORES["flat"].replace("    store", "    p: bool = gt i 2:i32\n    if p\n      store"), id="in a branch"
        ),
    ],
)
def test_loads_of_buffers_that_may_not_be_full(stores: str) -> None:
    unchanged(licm, FILLED.format(stores=stores, before="", inside="      a: f32 = load t i 1:i32\n"))


def test_a_buffer_with_an_initial_value_is_full_until_the_loop_writes_it() -> None:
    text = FILLED.replace("ref[f32,8x3]", "ref[f32,8x3] = 0.0:f32")
    a = "    a: f32 = load t i 1:i32\n"
    check(licm, text.format(stores="", before="", inside="  " + a), text.format(stores="", before=a, inside=""))
    unchanged(licm, text.format(stores="", before="", inside="  " + a + "      store t 1.0:f32 i 0:i32\n"))
    # the task itself fills it, so it was not full before
    own = "    store t 1.0:f32 i 0:i32\n    store t 1.0:f32 i 1:i32\n    store t 1.0:f32 i 2:i32\n"
    unchanged(licm, FILLED.format(stores="", before=own, inside="  " + a))


def test_extraction_of_a_load_of_a_full_buffer() -> None:
    text = """
program p(x: ref[f32,8])
  buffer t: ref[f32]
  serial
    store t 1.0:f32
  range_for i in 0:i32 : 8:i32
{head}    p: bool = lt i 4:i32
    if p
{body}      store x a i
  return x
"""
    load = "      a: f32 = load t\n"
    check(extract, text.format(head="", body=load), text.format(head="    head\n" + load, body=""))


def test_extraction_to_the_head() -> None:
    rewrites(extract)("""
program p(x: ref[f32,8], dt: ref[f32], k: ref[i32])
  range_for i in 0:i32 : n
    head
      n: i32 = load k
-   a: f32 = load dt
-   b: f32 = mul a a
-   m: f32 = convert[dtype=f32] n
+     a: f32 = load dt
+     b: f32 = mul a a
+     m: f32 = convert[dtype=f32] n
+     e: f32 = exp b
    c: f32 = load x i
    p: bool = lt c m
    if p
-     e: f32 = exp b
      d: f32 = mul e c
      store x d i
  return x
""")


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
    check(extract, text.format(stop="8:i32", head="", body=load), text.format(stop="8:i32", head="  " + load, body=""))
    unchanged(extract, text.format(stop="n", head="", body=load))


def test_what_the_task_writes_is_not_extracted() -> None:
    keeps(extract)("""
program p(x: ref[f32,8], s: ref[f32], k: ref[i32])
  range_for i in 0:i32 : n
    head
      n: i32 = load k
    a: f32 = load s
    c: f32 = mul a a
    accum[op=add] s c
    store x 1.0:f32 i
  return x, s
""")


def test_a_private_array_and_a_buffer_that_may_not_be_full_are_not_read_early() -> None:
    keeps(extract)("""
program p(x: ref[f32,8])
  buffer t: ref[f32]
  serial
    b: f32 = load x 0:i32
    q: bool = lt b 100.0:f32
    if q
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
""")


def test_a_serial_task_has_nothing_to_share() -> None:
    unchanged(extract, "program p(x: ref[f32])\n  serial\n    a: f32 = exp 1.0:f32\n    store x a\n  return x\n")


def test_the_check_of_an_index_does_not_pass_a_condition_of_the_user() -> None:
    keeps(licm)("""
program p(x: ref[f32,8], y: ref[i32,4], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    a: i32 = load n
    for j in 0:i32 : 4:i32 : 1:i32
      b: i32 = load y j
      p: bool = lt b 5:i32
      check[message="no"] p
      k: i32 = bound[size=8, axis=0, buffer="x", shape=(8)] a
      accum[op=add] x 1.0:f32 k
  return x
""")
