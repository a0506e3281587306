"""Rules of equations with blocks: carries and branches that only pass values on."""

from qdtrace.passes import peephole, unreachable
from qdtrace.passes.base import TaskPass
from qdtrace.passes.dead_code import DeadCode
from qdtrace.passes.rewrite import RewriteOptions, Rewriter
from qdtrace.rules.table import RuleSet
from tests.passes.harness import check, rewrites, unchanged

RULES = {r.name: r for r in (*peephole.RULES, *unreachable.TABLE.rules) if r.stage != "scalar"}
HEAD = "program p(x: ref[f32,8], y: ref[f32,8])\n  range_for i in 0:i32 : 8:i32\n    a: f32 = load x i\n"


class Alone(TaskPass):
    """One rule, then dead code."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "rule", name)

    def __call__(self, program):
        options = RewriteOptions(RuleSet.of([RULES[self.rule]], fast_math=False))
        tasks = tuple(Rewriter(options).rebuild_task(t) for t in program.tasks)
        if all(a is b for a, b in zip(tasks, program.tasks, strict=True)):
            return program
        return DeadCode()(type(program)(program.name, program.params, program.buffers, tasks, program.results))


def test_the_list_of_rules() -> None:
    assert set(RULES) == {
        "carry_unchanged", "if_not", "if_same_result", "if_to_select",
        "if_constant", "for_never", "for_once", "while_never", "while_counts", "carry_counts",
    }  # fmt: skip


def test_carry_unchanged() -> None:
    rewrites(Alone("carry_unchanged"))("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
-   b: f32, c: f32, d: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry p = a, q = 2.0:f32, r = 0.0:f32
-     s: f32 = add p q
+   d: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry r = 0.0:f32
+     s: f32 = add a 2.0:f32
      t: f32 = add r s
-     yield p, 2.0:f32, t
-   e: f32 = add b c
+     yield t
+   e: f32 = add a 2.0:f32
    f: f32 = add e d
    store y f i
  return y
""")


def test_carry_unchanged_of_a_while() -> None:
    rewrites(Alone("carry_unchanged"))("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
-   b: f32, c: f32 = while carry p = a, q = 2.0:f32
-     t: bool = lt p q
+   b: f32 = while carry p = a
+     t: bool = lt p 2.0:f32
      test t
-     u: f32 = add p q
-     yield u, q
-   f: f32 = add b c
+     u: f32 = add p 2.0:f32
+     yield u
+   f: f32 = add b 2.0:f32
    store y f i
  return y
""")


def test_a_carry_that_goes_shows_that_another_one_never_changes() -> None:
    rewrites(Alone("carry_unchanged"))("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
-   b: f32, c: f32, d: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry p = a, q = a, r = 0.0:f32
-     s: f32 = add r p
-     yield q, q, s
+   d: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry r = 0.0:f32
+     s: f32 = add r a
+     yield s
    store y d i
-   store x b i
+   store x a i
  return x, y
""")


def test_carries_that_change_stay() -> None:
    unchanged(
        Alone("carry_unchanged"),
        HEAD
        + """\
    b: f32, c: f32, d: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry p = a, q = 2.0:f32, r = 0.0:f32
      yield q, p, -0.0:f32
    e: f32 = add b c
    f: f32 = add e d
    store y f i
  return y
""",
    )


def test_if_not() -> None:
    rewrites(Alone("if_not"))("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
-   q: bool = not p
-   if q
+   if p
+     store y 1.0:f32 i
+   else
      store y a i
-   else
-     store y 1.0:f32 i
  return y
""")


def test_if_same_result() -> None:
    rewrites(Alone("if_same_result"))("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
-   b: f32, c: f32, d: f32 = if p
+   c: f32 = if p
      s: f32 = exp a
-     yield a, s, 1.0:f32
+     yield s
    else
-     yield a, a, 1.0:f32
-   e: f32 = add b c
-   f: f32 = add e d
+     yield a
+   e: f32 = add a c
+   f: f32 = add e 1.0:f32
    store y f i
  return y
""")


def test_if_to_select() -> None:
    rewrites(Alone("if_to_select"))("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
-   b: f32, c: f32 = if p
-     s: f32 = mul a a
-     t: f32 = add s 1.0:f32
-     yield t, s
-   else
-     u: f32 = neg a
-     yield u, 1.0:f32
+   s: f32 = mul a a
+   t: f32 = add s 1.0:f32
+   u: f32 = neg a
+   b: f32 = select p t u
+   c: f32 = select p s 1.0:f32
    d: f32 = add b c
    store y d i
  return y
""")


def test_costly_branches_loads_and_effects_are_not_computed_always() -> None:
    unchanged(
        Alone("if_to_select"),
        HEAD
        + """\
    p: bool = lt a 0.0:f32
    b: f32 = if p
      s: f32 = exp a
      yield s
    else
      yield a
    c: f32 = if p
      u: f32 = load x 0:i32
      yield u
    else
      yield a
    d: f32 = if p
      store y b i
      yield c
    else
      yield a
    e: f32 = if p
      s1: f32 = add a a
      s2: f32 = add s1 s1
      s3: f32 = add s2 s2
      s4: f32 = add s3 s3
      yield s4
    else
      t1: f32 = mul a a
      t2: f32 = mul t1 t1
      t3: f32 = mul t2 t2
      yield t3
    if p
      store y d i
    else
      store y e i
  return y
""",
    )


def test_rules_about_constants_have_their_own_tests() -> None:
    check(
        Alone("if_constant"),
        HEAD + "    if true\n      store y a i\n  return y\n",
        HEAD + "    store y a i\n  return y\n",
    )
    loop = "    for k in 0:i32 : {stop}:i32 : 1:i32\n      accum[op=add] y a k\n  return y\n"
    check(Alone("for_never"), HEAD + loop.format(stop=0), "program p(x: ref[f32,8], y: ref[f32,8])\n  return y\n")
    check(Alone("for_once"), HEAD + loop.format(stop=1), HEAD + "    accum[op=add] y a 0:i32\n  return y\n")
    unchanged(Alone("for_never"), HEAD + loop.format(stop=1))
    unchanged(Alone("for_once"), HEAD + loop.format(stop=2))
    test = "    b: f32 = while carry p = a\n      test {test}\n      yield 1.0:f32\n    store y b i\n  return y\n"
    check(Alone("while_never"), HEAD + test.format(test="false"), HEAD + "    store y a i\n  return y\n")
    unchanged(Alone("while_never"), HEAD + test.format(test="true"))
