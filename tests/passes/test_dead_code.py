"""Dead code: everything that no result depends on goes, and nothing else."""

from qdtrace.passes.dead_code import DeadCode
from tests.passes.harness import check, keeps, rewrites, unchanged

dce = DeadCode()


def test_unread_values_go() -> None:
    rewrites(dce)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   head
-     n: f32 = exp 1.0:f32
-   a: f32 = load x i
-   b: f32 = mul a a
    c: f32 = load y i
    store x c i
  return x
""")


def test_initial_values_go_with_their_buffers() -> None:
    text = """
program p(x: ref[f32,8])
  buffer read: ref[f32,8] = 1.0:f32
  buffer unread: ref[f32,8] = 2.0:f32
  buffer returned: ref[f32,8] = 3.0:f32
  range_for i in 0:i32 : 8:i32
    a: f32 = load read i
    store x a i
    store unread a i
  return x, returned
"""
    dead = ("  buffer unread: ref[f32,8] = 2.0:f32\n", "    store unread a i\n")
    check(dce, text, text.replace(dead[0], "").replace(dead[1], ""))


def test_carries_that_only_feed_themselves_go() -> None:
    rewrites(dce)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   a: f32, b: f32, c: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry p = 0.0:f32, q = 0.0:f32, r = 1.0:f32
+   a: f32, c: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry p = 0.0:f32, r = 1.0:f32
      s: f32 = add p r
-     t: f32 = add q 1.0:f32
      u: f32 = mul r 2.0:f32
-     yield s, t, u
+     yield s, u
    store x a i
  return x
""")


def test_carries_of_a_while_that_its_condition_needs_stay() -> None:
    rewrites(dce)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
-   a: f32, b: i32, c: f32 = while carry p = 0.0:f32, q = 0:i32, r = 1.0:f32
+   a: f32, b: i32 = while carry p = 0.0:f32, q = 0:i32
      t: bool = lt q 4:i32
      test t
      s: f32 = add p 1.0:f32
      n: i32 = add q 1:i32
-     yield s, n, r
+     yield s, n
    store x a i
  return x
""")


def test_loops_and_branches_without_effect_go() -> None:
    rewrites(dce)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
-   z: f32 = while carry p = a
-     t: bool = gt p 1.0:f32
-     test t
-     s: f32 = mul p 0.5:f32
-     yield s
    q: bool = gt a 0.0:f32
-   r: f32, u: f32 = if q
-     v: f32 = exp a
-     yield v, 1.0:f32
+   u: f32 = if q
+     yield 1.0:f32
    else
-     yield a, 2.0:f32
+     yield 2.0:f32
    store x u i
  return x
""")


def test_stores_nobody_reads_go_with_their_cells_buffers_and_tasks() -> None:
    rewrites(dce)("""
program p(x: ref[f32,8], y: ref[f32,8])
- buffer t: ref[f32,8]
- buffer u: ref[f32,8]
  range_for i in 0:i32 : 8:i32
-   store t 1.0:f32 i
- range_for i in 0:i32 : 8:i32
-   c: cell[f32] = cell[dtype=f32, shape=()]
-   a: f32 = load x i
-   store c a
-   store y a i
    store x 2.0:f32 i
  return x
""")


def test_buffers_that_only_feed_one_another_go() -> None:
    rewrites(dce)("""
program p(x: ref[f32,8])
- buffer t: ref[f32,8]
- buffer u: ref[f32,8]
- range_for i in 0:i32 : 8:i32
-   store t 1.0:f32 i
- range_for i in 0:i32 : 8:i32
-   a: f32 = load t i
-   store u a i
  return x
""")


def test_a_buffer_read_by_a_later_task_stays() -> None:
    keeps(dce)("""
program p(x: ref[f32,8])
  buffer t: ref[f32,8]
  range_for i in 0:i32 : 8:i32
    store t 1.0:f32 i
  range_for i in 0:i32 : 8:i32
    a: f32 = load t i
    store x a i
  return x
""")


def test_effects_keep_what_decides_whether_they_run() -> None:
    keeps(dce)("""
program p(x: ref[f32,8], n: ref[i32])
  range_for i in lo : hi
    head
      hi: i32 = load n
      lo: i32 = sub hi 2:i32
    a: f32 = load x i
    q: bool = gt a 0.0:f32
    if q
      for k in 0:i32 : hi : 1:i32
        accum[op=add] x a k
  return x
""")


def test_an_atomic_whose_old_value_is_unread_is_an_accumulation() -> None:
    rewrites(dce)("""
program p(x: ref[f32], y: ref[i32,8])
  serial
-   a: f32 = atomic[op=add] x 1.0:f32
-   b: i32 = atomic[op=max] y 3:i32 0:i32
+   accum[op=add] x 1.0:f32
+   accum[op=max] y 3:i32 0:i32
    c: i32 = atomic[op=or] y 4:i32 1:i32
    d: i32 = atomic[op=exchange] y 5:i32 2:i32
  return x, y
""")


def test_an_atomic_that_only_counts_for_itself_goes() -> None:
    rewrites(dce)("""
program p(x: ref[f32], y: ref[i32])
  serial
-   a: i32 = atomic[op=add] y 1:i32
    store x 1.0:f32
  return x
""")


def test_parameters_stay() -> None:
    unchanged(dce, "program p(x: ref[f32], y: ref[i32])\n  return x\n")
