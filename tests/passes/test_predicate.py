"""Predication: branches that become selects, and what keeps a branch."""

import pytest

from qdtrace.passes.predicate import Predicate
from tests.passes.harness import check, rewrites, unchanged

predicate = Predicate()
HEAD = """\
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32], z: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
"""


def test_results_loads_and_a_store_on_both_sides() -> None:
    rewrites(predicate)("""
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32], z: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
-   b: f32, c: f32, d: f32 = if p
-     e: f32 = load z i
-     f: f32 = sqrt e
-     store y f i
-     yield f, a, 2.0:f32
-   else
-     store y 1.0:f32 i
-     yield 1.0:f32, a, 2.0:f32
-   g: f32 = add b c
-   h: f32 = add g d
+   e: f32 = load z i
+   f: f32 = sqrt e
+   b: f32 = select p f 1.0:f32
+   s: f32 = select p f 1.0:f32
+   store y s i
+   g: f32 = add b a
+   h: f32 = add g 2.0:f32
    accum[op=add] y h i
  return y
""")


def test_innermost_first_in_a_loop() -> None:
    rewrites(predicate)("""
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32], z: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
    for k in 0:i32 : 8:i32 : 1:i32
-     if p
-       b: f32 = load z k
-       q: bool = lt b a
-       if q
-         store y b i
-         store y 1.0:f32 k
-       else
-         store y a i
-         store y 1.0:f32 k
-     else
-       store y 3.0:f32 i
-       store y 4.0:f32 k
+     b: f32 = load z k
+     q: bool = lt b a
+     s: f32 = select q b a
+     t: f32 = select p s 3.0:f32
+     store y t i
+     u: f32 = select p 1.0:f32 4.0:f32
+     store y u k
  return y
""")


def test_a_condition_that_lanes_share() -> None:
    text = """\
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    head
      m: i32 = load n
      p: bool = lt m 3:i32
    a: f32 = load x i
{before}    if p
{then}      store y b i
    else
      store y a i
  return y
"""
    cheap = "    b: f32 = sqrt a\n"
    check(
        predicate,
        text.format(before="", then="  " + cheap),
        text.split("    if p")[0].format(before=cheap) + "    s: f32 = select p b a\n    store y s i\n  return y\n",
    )
    unchanged(predicate, text.format(before="", then="      c: f32 = sqrt a\n      b: f32 = add c 1.0:f32\n"))


BOTH = """\
    if p
{then}    else
{other}  return y
"""
OTHER = "      store z a i\n"
STORE = "      store y {} i\n"


@pytest.mark.parametrize(
    ("then", "other"),
    [
        pytest.param(STORE.format("a"), "", id="a store on one side"),
        pytest.param("", "      accum[op=add] y a i\n", id="an accumulation"),
        pytest.param(STORE.format("a"), "      store y a 3:i32\n", id="stores to other places"),
        pytest.param(STORE.format("a"), "      store z a i\n", id="stores to other memory"),
        pytest.param(STORE.format("a") + OTHER, OTHER + STORE.format("a"), id="another order"),
        pytest.param(STORE.format("a") * 2, STORE.format("a"), id="another number of stores"),
        pytest.param("      b: f32 = load y 3:i32\n" + STORE.format("b"), STORE.format("a"), id="the task writes it"),
        pytest.param(STORE.format("a") + "      b: f32 = load y i\n", STORE.format("a"), id="a load after the store"),
        pytest.param("      b: f32 = load t i\n" + STORE.format("b"), STORE.format("a"), id="memory that may be unset"),
        pytest.param(
            "      j: i32 = add i 1:i32\n      b: f32 = load z j\n" + STORE.format("b"),
            STORE.format("a"),
            id="an index that may be out of range",
        ),
        pytest.param(
            "      m: i32 = load n\n      j: i32 = rem m 8:i32\n      k: i32 = abs j\n      l: i32 = mul k i\n"
            "      o: i32 = and l 7:i32\n      b: f32 = load z o\n" + STORE.format("b"),
            STORE.format("a"),
            id="a gather",
        ),
        pytest.param("      b: f32 = exp a\n" + STORE.format("b"), STORE.format("a"), id="a function"),
        pytest.param(
            "      b0: f32 = sqrt a\n"
            + "".join(f"      b{k + 1}: f32 = sqrt b{k}\n" for k in range(4))
            + STORE.format("b4"),
            STORE.format("a"),
            id="too much",
        ),
        pytest.param(
            "      for k in 0:i32 : 2:i32 : 1:i32\n        store z a k\n" + STORE.format("a"),
            STORE.format("a"),
            id="a loop",
        ),
    ],
)
def test_what_stays(then: str, other: str) -> None:
    text = HEAD.replace("\n", "\n  buffer t: ref[f32,8]\n", 1) + BOTH.format(then=then, other=other)
    if not other:
        text = text.replace("    else\n", "")
    unchanged(predicate, text)
