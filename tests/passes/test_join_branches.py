"""Neighbouring branches on one condition, and what keeps them apart."""

import pytest

from qdtrace.passes.join_branches import JoinBranches
from tests.passes.harness import check, rewrites, unchanged

join = JoinBranches()
HEAD = "program p(x: ref[f32,8], y: ref[f32,8])\n  range_for i in 0:i32 : 8:i32\n    a: f32 = load x i\n"
HEAD += "    p: bool = lt a 0.0:f32\n    q: bool = lt a 1.0:f32\n"


def test_when_and_otherwise() -> None:
    rewrites(join)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
    q: bool = lt a 1.0:f32
    if p
      store y a i
-   if p
    else
      store y 1.0:f32 i
  return y
""")


@pytest.mark.parametrize("first", ["p", "r"])
def test_a_condition_and_its_negation(first: str) -> None:
    second = "r" if first == "p" else "p"
    sides = ["store y a i", "store y 1.0:f32 i"]
    then, other = sides if first == "p" else sides[::-1]
    check(
        join,
        f"{HEAD}    r: bool = not p\n    if {first}\n      store y a i\n"
        f"    if {second}\n      store y 1.0:f32 i\n  return y\n",
        f"{HEAD}    r: bool = not p\n    if p\n      {then}\n    else\n      {other}\n  return y\n",
    )
    other = "    if r\n      store y a i\n    if q\n      store x a i\n"
    unchanged(join, f"{HEAD}    r: bool = not p\n{other}  return y\n")


def test_results_of_the_first_are_known_on_each_side() -> None:
    rewrites(join)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
    q: bool = lt a 1.0:f32
-   b: f32 = if p
+   d: f32 = mul a a
+   b: f32, e: f32, f: f32 = if p
      c: f32 = exp a
-     yield c
-   else
-     yield 2.0:f32
-   d: f32 = mul a a
-   e: f32, f: f32 = if p
-     g: f32 = add b d
-     yield g, b
+     g: f32 = add c d
+     h: f32 = add g c
+     store y h i
+     yield c, g, c
    else
      if q
-       store y b i
-     yield b, a
-   if p
-     h: f32 = add e f
-     store y h i
+       store y 2.0:f32 i
+     yield 2.0:f32, 2.0:f32, a
    k: f32 = add b e
    accum[op=add] y k i
  return y
""")


def test_inside_of_joined_branches_and_loops() -> None:
    rewrites(join)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
    q: bool = lt a 1.0:f32
    for k in 0:i32 : 2:i32 : 1:i32
      if p
        if q
          store y a i
-     if p
-       if q
          accum[op=add] y a i
  return y
""")


PAIR = """\
    b: f32 = if p
      store y a i
      yield a
    else
      yield 1.0:f32
{between}    if {second}
      store x b i
  return x, y
"""


@pytest.mark.parametrize(
    ("between", "second"),
    [
        pytest.param("", "q", id="another condition"),
        pytest.param("    c: f32 = mul a a\n", "q", id="another condition behind an equation"),
        pytest.param("    c: f32 = load y i\n    accum[op=add] x c i\n", "p", id="memory between"),
        pytest.param("    c: f32 = add b 1.0:f32\n    d: bool = lt c 0.0:f32\n", "p", id="a result is used between"),
        pytest.param("    if q\n      store y 3.0:f32 i\n", "p", id="another branch between"),
    ],
)
def test_what_stays_apart(between: str, second: str) -> None:
    unchanged(join, HEAD + PAIR.format(between=between, second=second))
