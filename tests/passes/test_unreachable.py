"""Unreachable code: branches and loops decided by constants."""

from qdtrace.passes.unreachable import Unreachable
from tests.passes.harness import check, keeps, rewrites

unreachable = Unreachable()
HEAD = "program p(x: ref[f32,8])\n  range_for i in 0:i32 : 8:i32\n"


def test_if_constant() -> None:
    check(
        unreachable,
        HEAD
        + """\
    if false
      store x 1.0:f32 i
    b: f32 = if true
      a: f32 = load x i
      yield a
    else
      yield 0.0:f32
    store x b i
  return x
""",
        HEAD + "    a: f32 = load x i\n    store x a i\n  return x\n",
    )


def test_for_never() -> None:
    check(
        unreachable,
        HEAD
        + """\
    a: f32 = load x i
    b: f32 = for k in 4:i32 : 4:i32 : 1:i32 carry s = a
      yield 0.0:f32
    c: f32 = for k in 0:i32 : 4:i32 : -1:i32 carry s = b
      yield 0.0:f32
    d: f32 = for k in i : i : 2:i32 carry s = c
      yield 0.0:f32
    e: f32 = for k in i : 8:i32 : 0:i32 carry s = d
      yield 0.0:f32
    store x e i
  return x
""",
        HEAD + "    a: f32 = load x i\n    store x a i\n  return x\n",
    )


def test_for_once() -> None:
    check(
        unreachable,
        HEAD
        + """\
    a: f32 = load x i
    b: f32 = for k in 3:i32 : 5:i32 : 2:i32 carry s = a
      t: f32 = load x k
      u: f32 = add s t
      yield u
    store x b i
  return x
""",
        HEAD + "    a: f32 = load x i\n    t: f32 = load x 3:i32\n    u: f32 = add a t\n    store x u i\n  return x\n",
    )


def test_while_never() -> None:
    check(
        unreachable,
        HEAD
        + """\
    a: f32 = load x i
    b: f32 = while carry s = a
      test false
      u: f32 = add s 1.0:f32
      yield u
    store x b i
  return x
""",
        HEAD + "    a: f32 = load x i\n    store x a i\n  return x\n",
    )


def test_the_condition_is_known_inside_its_branches() -> None:
    rewrites(unreachable)("""
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 1.0:f32
    q: bool = gt a 0.0:f32
    n: bool = not q
    c: bool = or p n
    if c
-     if c
-       store x 1.0:f32 i
+     store x 1.0:f32 i
    else
-     if p
-       store x 2.0:f32 i
-     if q
-       store x 3.0:f32 i
+     store x 3.0:f32 i
    if p
      store x 4.0:f32 i
  return x
""")


def test_empty_tasks_go() -> None:
    check(
        unreachable,
        "program p(x: ref[f32,8])\n  range_for i in 8:i32 : 8:i32\n    store x 1.0:f32 i\n  return x\n",
        "program p(x: ref[f32,8])\n  return x\n",
    )


def test_what_may_run_stays() -> None:
    keeps(unreachable)("""
program p(x: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    m: i32 = load n
    a: f32 = for k in 0:i32 : m : 1:i32 carry s = 0.0:f32
      t: f32 = add s 1.0:f32
      yield t
    b: f32 = for k in 0:i32 : 2:i32 : 1:i32 carry s = a
      t: f32 = add s 1.0:f32
      yield t
    p: bool = lt a 1.0:f32
    if p
      store x b i
    while
      q: f32 = load x i
      r: bool = lt q 0.0:f32
      test r
      store x 1.0:f32 i
  return x
""")
