"""Promotion of cells to carried values: which carries are made, which are not, and what stays memory."""

from qdtrace.passes.mem2reg import Mem2Reg
from tests.passes.harness import assert_same_results, keeps, parsed, rewrites, unchanged

promote = Mem2Reg()


def test_straight_line() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   c: cell[f32] = cell[dtype=f32, shape=()]
-   store c 1.0:f32
    a: f32 = load x i
-   accum[op=add] c a
-   accum[op=min] c 2.0:f32
-   b: f32 = load c
-   store x b i
+   b: f32 = add 1.0:f32 a
+   c: f32 = min b 2.0:f32
+   store x c i
  return x
""")


def test_accumulation_in_a_loop_is_carried() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   c: cell[f32] = cell[dtype=f32, shape=()]
-   store c 0.0:f32
-   for k in 0:i32 : i : 1:i32
+   t: f32 = for k in 0:i32 : i : 1:i32 carry c = 0.0:f32
      a: f32 = load x k
-     accum[op=add] c a
-   s: f32 = load c
-   store y s i
+     b: f32 = add c a
+     yield b
+   store y t i
  return y
""")


def test_a_cell_stored_before_it_is_read_in_each_iteration_is_not_carried() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   t: cell[f32] = cell[dtype=f32, shape=()]
    for k in 0:i32 : i : 1:i32
      a: f32 = load x k
-     store t a
-     b: f32 = load t
-     store y b i
+     store y a i
  return y
""")


def test_a_cell_read_after_the_loop_only_is_carried_and_undefined_is_zero() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   t: cell[f32] = cell[dtype=f32, shape=()]
-   for k in 0:i32 : 4:i32 : 1:i32
+   b: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry t = 0.0:f32
      a: f32 = load x k
-     store t a
-   b: f32 = load t
+     yield a
    store y b i
  return y
""")


def test_branches_give_results_only_where_they_are_read() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   c: cell[f32] = cell[dtype=f32, shape=()]
-   dead: cell[f32] = cell[dtype=f32, shape=()]
    a: f32 = load x i
-   store c a
    p: bool = lt a 0.0:f32
-   if p
-     store c 0.0:f32
-     store dead 1.0:f32
-   b: f32 = load c
+   b: f32 = if p
+     yield 0.0:f32
+   else
+     yield a
    store x b i
  return x
""")


def test_while_condition_reads_the_carry() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   c: cell[f32] = cell[dtype=f32, shape=()]
-   n: cell[i32] = cell[dtype=i32, shape=()]
-   store c 100.0:f32
-   store n 0:i32
-   while
-     a: f32 = load c
-     p: bool = gt a 1.0:f32
+   e: f32, m: i32 = while carry c = 100.0:f32, n = 0:i32
+     p: bool = gt c 1.0:f32
      test p
-     b: f32 = load c
-     h: f32 = mul b 0.5:f32
-     store c h
-     accum[op=add] n 1:i32
-   m: i32 = load n
+     h: f32 = mul c 0.5:f32
+     q: i32 = add n 1:i32
+     yield h, q
    f: f32 = convert[dtype=f32] m
    store x f i
  return x
""")


def test_existing_carries_and_results_keep_their_place() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   c: cell[i32] = cell[dtype=i32, shape=()]
-   store c 0:i32
-   a: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry s = 0.0:f32
+   a: f32, n: i32 = for k in 0:i32 : 4:i32 : 1:i32 carry s = 0.0:f32, c = 0:i32
      b: f32 = load x k
      t: f32 = add s b
-     accum[op=add] c 2:i32
-     yield t
-   n: i32 = load c
+     d: i32 = add c 2:i32
+     yield t, d
    f: f32 = convert[dtype=f32] n
    g: f32 = add f a
    store x g i
  return x
""")


def test_nested_loops_and_branches() -> None:
    program = parsed(NESTED)
    got = promote(program)
    names = [e.primitive.name for e in got.all_eqns]
    assert "cell" not in names
    assert_same_results(program, got)


NESTED = """
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    c: cell[f32] = cell[dtype=f32, shape=()]
    stop: cell[bool] = cell[dtype=bool, shape=()]
    store c 0.0:f32
    for k in 0:i32 : 4:i32 : 1:i32
      store stop false
      w: f32 = for m in 0:i32 : k : 1:i32 carry s = 0.0:f32
        done: bool = load stop
        r: f32 = if done
          yield s
        else
          a: f32 = load x m
          t: f32 = add s a
          accum[op=add] c t
          big: bool = gt t 1.0:f32
          store stop big
          yield t
        yield r
      accum[op=add] c w
    d: f32 = load c
    store y d i
  return y
"""


def test_private_arrays_with_constant_indices_are_promoted() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   v: cell[f32,2x2] = cell[dtype=f32, shape=(2, 2)]
    a: f32 = load x i
-   store v a 1:i32 0:i32
-   store v 3.0:f32 0:i32 1:i32
-   b: f32 = load v 1:i32 0:i32
-   c: f32 = load v 0:i32 1:i32
-   d: f32 = add b c
+   d: f32 = add a 3.0:f32
    store x d i
  return x
""")


def test_a_computed_index_keeps_the_array() -> None:
    keeps(promote)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    v: cell[f32,8] = cell[dtype=f32, shape=(8)]
    store v 1.0:f32 0:i32
    store v 2.0:f32 i
    b: f32 = load v i
    store x b i
  return x
""")


def test_an_index_out_of_range_keeps_the_array() -> None:
    keeps(promote)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    v: cell[f32,8] = cell[dtype=f32, shape=(8)]
    store v 1.0:f32 8:i32
  return x
""")


def test_a_large_array_stays() -> None:
    keeps(promote)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    v: cell[f32,257] = cell[dtype=f32, shape=(257)]
    store v 1.0:f32 0:i32
  return x
""")


def test_atomics_keep_the_cell() -> None:
    keeps(promote)("""
program p(x: ref[i32,8])
  range_for i in 0:i32 : 8:i32
    v: cell[i32] = cell[dtype=i32, shape=()]
    store v 1:i32
    old: i32 = atomic[op=add] v 2:i32
    store x old i
  return x
""")


def test_a_store_in_a_condition_keeps_the_cell_but_not_one_made_in_it() -> None:
    rewrites(promote)("""
program p(x: ref[i32,8])
  range_for i in 0:i32 : 8:i32
    v: cell[i32] = cell[dtype=i32, shape=()]
    store v 0:i32
    while
-     w: cell[i32] = cell[dtype=i32, shape=()]
      a: i32 = load v
-     store w a
      accum[op=add] v 1:i32
-     b: i32 = load w
-     c: bool = lt b 4:i32
+     c: bool = lt a 4:i32
      test c
      accum[op=add] v 0:i32
    d: i32 = load v
    store x d i
  return x
""")


def test_sums_of_truth_values() -> None:
    rewrites(promote)("""
program p(x: ref[bool,8])
  range_for i in 0:i32 : 8:i32
-   v: cell[bool] = cell[dtype=bool, shape=()]
    a: bool = load x i
-   store v a
-   accum[op=add] v true
-   accum[op=mul] v a
-   accum[op=min] v a
-   accum[op=max] v a
-   b: bool = load v
-   store x b i
+   b: bool = or a true
+   c: bool = and b a
+   d: bool = and c a
+   e: bool = or d a
+   store x e i
  return x
""")


def test_nothing_to_promote() -> None:
    unchanged(promote, "program p(x: ref[f32,8])\n  range_for i in 0:i32 : 8:i32\n    store x 1.0:f32 i\n  return x\n")


def test_a_cell_that_an_inner_loop_surely_stores_is_not_carried_around_it() -> None:
    rewrites(promote)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   t: cell[f32] = cell[dtype=f32, shape=()]
    for k in 0:i32 : i : 1:i32
-     for j in 0:i32 : 3:i32 : 1:i32
+     t: f32 = for j in 0:i32 : 3:i32 : 1:i32 carry c = 0.0:f32
        a: f32 = load x j
-       store t a
-     b: f32 = load t
-     store y b i
+       yield a
+     store y t i
  return y
""")
