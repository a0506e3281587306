"""Unrolling: which loops become copies of their bodies, and which stay."""

import textwrap

import pytest

from qdtrace.analysis.machine import CPU
from qdtrace.passes.mem2reg import Mem2Reg
from qdtrace.passes.simplify import Simplify
from qdtrace.passes.unroll import Unroll
from tests.passes.harness import assert_same_results, parsed, rewrites, unchanged

HEAD = "program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])\n  range_for i in 0:i32 : 8:i32\n"


def primitives(program) -> list[str]:
    return [e.primitive.name for e in program.all_eqns]


def test_copies_with_carries() -> None:
    rewrites(Unroll())("""
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
-   s: f32, t: f32 = for k in 3:i32 : 0:i32 : -2:i32 carry c = 0.0:f32, d = 1.0:f32
-     a: f32 = load x k
-     b: f32 = add c a
-     yield d, b
-   u: f32 = sub s t
+   a: f32 = load x 3:i32
+   b: f32 = add 0.0:f32 a
+   a_1: f32 = load x 1:i32
+   b_1: f32 = add 1.0:f32 a_1
+   u: f32 = sub b b_1
    store y u i
  return y
""")


def test_innermost_first_with_branches_inside() -> None:
    rewrites(Unroll())("""
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    m: i32 = load n
    p: bool = lt m i
-   for j in 0:i32 : 2:i32 : 1:i32
-     if p
-       s: f32 = for k in 0:i32 : 2:i32 : 1:i32 carry c = a
-         d: f32 = mul c c
-         yield d
-       store y s j
+   if p
+     d: f32 = mul a a
+     d_1: f32 = mul d d
+     store y d_1 0:i32
+   if p
+     d_2: f32 = mul a a
+     d_3: f32 = mul d_2 d_2
+     store y d_3 1:i32
  return y
""")


def test_inside_of_loops_that_stay_and_their_conditions() -> None:
    rewrites(Unroll())("""
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    a: f32 = while carry c = 0.0:f32
-     s: f32 = for k in 0:i32 : 2:i32 : 1:i32 carry t = c
-       l: f32 = load x k
-       m: f32 = add t l
-       yield m
-     q: bool = lt s -100.0:f32
+     l: f32 = load x 0:i32
+     m: f32 = add c l
+     l_1: f32 = load x 1:i32
+     m_1: f32 = add m l_1
+     q: bool = lt m_1 -100.0:f32
      test q
-     r: f32 = for k in 0:i32 : 1:i32 : 1:i32 carry t = c
-       u: f32 = add t 1.0:f32
-       yield u
-     yield r
+     u: f32 = add c 1.0:f32
+     yield u
    store y a i
  return y
""")


def test_bounds_that_become_constant() -> None:
    rewrites(Unroll())("""
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
-   for j in 0:i32 : 2:i32 : 1:i32
-     for k in j : 2:i32 : 1:i32
-       accum[op=add] y 1.0:f32 k
+   accum[op=add] y 1.0:f32 0:i32
+   accum[op=add] y 1.0:f32 1:i32
+   accum[op=add] y 1.0:f32 1:i32
  return y
""")


LONG = """\
    v: cell[f32,20] = cell[dtype=f32, shape=(20)]
    for k in 0:i32 : 20:i32 : 1:i32
      a: f32 = convert[dtype=f32] k
      store v a k
    s: f32 = for k in 0:i32 : {trips} : 1:i32 carry c = 0.0:f32
      q: i32 = sub 19:i32 k
      b: f32 = load v {index}
      d: f32 = add c b
      yield d
    store y s i
  return y
"""


def test_private_arrays_are_taken_apart() -> None:
    program = parsed(HEAD + LONG.format(trips="20:i32", index="q"))
    made = Unroll()(program)
    assert "for" not in primitives(made)
    promoted = Mem2Reg()(Simplify()(made))
    assert "cell" not in primitives(promoted)
    assert_same_results(program, promoted)


def test_long_loops_over_arrays_that_stay() -> None:
    unchanged(Unroll(), HEAD + LONG.format(trips="20:i32", index="i"))  # the index stays a value
    unchanged(Unroll(), HEAD + LONG.format(trips="i", index="q"))  # a loop that stays holds the index
    unchanged(Unroll(), (HEAD + LONG).replace("20", "40").format(trips="40:i32", index="q"))  # too many iterations
    kept = LONG.replace("1:i32\n", "1:i32 [unroll=false]\n", 1)
    assert "unroll" in kept
    unchanged(Unroll(), HEAD + kept.format(trips="20:i32", index="q"))  # one of them is to stay


def loop(bounds: str, *lines: str, params: str = "", carry: str = "") -> str:
    body = "".join(f"      {line}\n" for line in lines)
    return f"{HEAD}    m: i32 = load n\n    for k in {bounds}{params}{carry}\n{body}  return y\n"


STORE = "store y 1.0:f32 k"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(loop("0:i32 : m : 1:i32", STORE), id="bounds that are no constants"),
        pytest.param(loop("0:i32 : 8:i32 : m", STORE), id="a step that is no constant"),
        pytest.param(loop("0:i32 : 9:i32 : 1:i32", STORE), id="too many iterations"),
        pytest.param(loop("0:i32 : 8:i32 : 1:i32", *["accum[op=add] y 1.0:f32 k"] * 6), id="too much code"),
        pytest.param(loop("0:i32 : 2:i32 : 1:i32", STORE, params=" [unroll=false]"), id="the user says no"),
        pytest.param(loop("0:i32 : 2:i32 : 1:i32", STORE, params=" [unroll=1]"), id="the user says one"),
        pytest.param(loop("0:i32 : 8:i32 : 1:i32", STORE, params=" [unroll=4]"), id="a factor is LLVM's"),
        pytest.param(loop("0:i32 : 0:i32 : 1:i32", STORE), id="no iteration"),
        pytest.param(
            loop("0:i32 : 2:i32 : 1:i32", "for j in 0:i32 : m : 1:i32", "  store y 1.0:f32 j"), id="keeps a loop"
        ),
        pytest.param(
            loop("0:i32 : 2:i32 : 1:i32", "v: cell[f32,4] = cell[dtype=f32, shape=(4)]", "store v 1.0:f32 i"),
            id="a private array for each copy",
        ),
    ],
)
def test_what_stays(text: str) -> None:
    unchanged(Unroll(), text)


@pytest.mark.parametrize("param", ["true", "8", "100"])
def test_the_user_may_ask(param: str) -> None:
    body = ["accum[op=add] y 1.0:f32 k"] * 6
    program = parsed(loop("0:i32 : 8:i32 : 1:i32", *body, params=f" [unroll={param}]"))
    made = Unroll()(program)
    assert primitives(made).count("accum") == 48
    assert_same_results(program, made)
    more = [f"accum[op=add] y 1.0:f32 {k % 8}:i32" for k in range(100)]
    unchanged(Unroll(), loop("0:i32 : 8:i32 : 1:i32", *more, params=f" [unroll={param}]"))


def test_tasks_have_a_limit() -> None:
    body = ["accum[op=add] y 1.0:f32 k"] * 5
    text = loop("0:i32 : 8:i32 : 1:i32", *body)
    line = text.index("    for"), text.index("  return")
    program = parsed(text[: line[0]] + text[slice(*line)] * 100 + text[line[1] :])
    made = Unroll()(program)
    names = primitives(made)
    assert 0 < names.count("for") < 100
    assert 6 * names.count("accum") <= CPU.task_cost
    assert Unroll()(made) is made


def copies(n: int) -> str:
    """Text of a task that copies an array of n x n elements, and reads the copy at constant places."""
    return f"""\
program p(x: ref[f32,{n}x{n}], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: cell[f32,{n}x{n}] = cell[dtype=f32, shape=({n}, {n})]
    for j in 0:i32 : {n}:i32 : 1:i32
      for k in 0:i32 : {n}:i32 : 1:i32
        v: f32 = load x j k
        w: f32 = mul v v
        u: f32 = mul w v
        t: f32 = add w u
        store a t j k
    s: f32 = load a 1:i32 2:i32
    store y s i
  return y
"""


def test_a_nest_that_is_too_large_leaves_its_array_alone() -> None:
    """The loops inside would be copied in vain: the array stays, as the loop around does."""
    loops = primitives(Unroll()(parsed(copies(10)))).count("for")
    assert loops == 0
    unchanged(Unroll(), copies(16))


def board(n: int, steps: str = "") -> str:
    """Text of a task whose loops alone meet an array of n x n elements, in so many steps."""
    nests = f"""\
for j in 0:i32 : {n}:i32 : 1:i32
  for k in 0:i32 : {n}:i32 : 1:i32
    v: f32 = load x j k
    store a v j k
for m in 0:i32 : {n}:i32 : 1:i32
  for p in 0:i32 : {n}:i32 : 1:i32
    s: f32 = load a m p
    r: f32 = load y i
    q: f32 = add r s
    store y q i
"""
    head = f"""\
program p(x: ref[f32,{n}x{n}], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: cell[f32,{n}x{n}] = cell[dtype=f32, shape=({n}, {n})]
"""
    around, deeper = (f"    for t in {steps}\n", "      ") if steps else ("", "    ")
    return head + around + textwrap.indent(nests, deeper) + "  return y\n"


def test_boards_that_loops_alone_meet_once_stay() -> None:
    unchanged(Unroll(), board(10))
    assert "for" not in primitives(Unroll()(parsed(board(5))))
    stepped = Unroll()(parsed(board(10, "0:i32 : 100:i32 : 1:i32")))
    assert primitives(stepped).count("for") == 1


def test_arrays_that_a_factorisation_sums_over_stay() -> None:
    """Such a loop subtracts products, as often as the loop around says."""
    head, _ = copies(10).split("    s: f32")
    text = f"""\
{head}\
    b: cell[f32,10x10] = cell[dtype=f32, shape=(10, 10)]
    for m in 0:i32 : 10:i32 : 1:i32
      for n in 0:i32 : 10:i32 : 1:i32
        h: f32 = load a m n
        store b h n m
    z: f32 = for r in 0:i32 : 10:i32 : 1:i32 carry c = 0.0:f32
      s: f32 = for q in 0:i32 : r : 1:i32 carry d = c
        e: f32 = load b r q
        f: f32 = mul e e
        g: f32 = sub d f
        yield g
      yield s
    store y z i
  return y
"""
    unchanged(Unroll(), text)
