"""Constant folding and common subexpressions."""

import numpy as np
import pytest

from qdtrace.interpret.numpy_rules import RULES
from qdtrace.ir.primitives import FUNCTIONS, PRIMITIVES
from qdtrace.passes.common_subexpressions import CommonSubexpressions
from qdtrace.passes.constant_folding import ConstantFolding
from tests.passes.expressions import expression_program
from tests.passes.harness import assert_same_results, check, keeps, rewrites, unchanged

fold = ConstantFolding(fast_math=False)
cse = CommonSubexpressions()


def folded(text: str, result: str, *, fast_math: bool = False) -> object:
    """The constant that is stored; None when the expression was not folded."""
    program = expression_program({"x": result}, text, 2)
    got = ConstantFolding(fast_math)(program)
    assert_same_results(program, got)
    stored = got.tasks[0].body.eqns[-1].invars[1]
    return getattr(stored, "value", None)


@pytest.mark.parametrize(
    ("text", "result", "value"),
    [
        ("(add 2147483647:i32 1:i32)", "i32", np.int32(-2147483648)),
        ("(div -7:i32 2:i32)", "i32", np.int32(-3)),
        ("(div 7:u8 0:u8)", "u8", np.uint8(255)),
        ("(rem -7:i64 2:i64)", "i64", np.int64(-1)),
        ("(add (mul 0.1:f32 3.0:f32) 0.2:f32)", "f32", np.float32(0.1) * np.float32(3) + np.float32(0.2)),
        ("(sqrt 2.0:f64)", "f64", np.sqrt(2.0)),
        ("(convert[i8] 300.7:f32)", "i8", np.int8(127)),
        ("(bitcast[u32] 1.0:f32)", "u32", np.uint32(0x3F800000)),
        ("(lt 1.0:f32 2.0:f32)", "bool", np.bool_(True)),
        ("(select true 1:i32 2:i32)", "i32", np.int32(1)),
        ("(integer_pow[-2] 4.0:f32)", "f32", np.float32(0.0625)),
        ("(not false)", "bool", np.bool_(True)),
        ("(add 1.0:f16 0.0004:f16)", "f16", np.float16(1.0)),
    ],
)
def test_folded(text: str, result: str, value: np.generic) -> None:
    got = folded(text, result)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_that_round_wait_for_fast_math(name: str) -> None:
    operands = "0.5:f32 0.25:f32" if name in ("pow", "atan2") else "1.5:f32" if name == "acosh" else "0.5:f32"
    text = f"({name} {operands})"
    assert folded(text, "f32") is None
    assert folded(text, "f32", fast_math=True) is not None


def test_every_rounded_name_is_a_primitive() -> None:
    assert set(PRIMITIVES) >= FUNCTIONS
    assert set(RULES) >= FUNCTIONS


def test_nothing_to_fold() -> None:
    keeps(fold)("""
program p(x: ref[f32])
  serial
    a: f32 = load x
    b: f32 = add a 1.0:f32
    store x b
  return x
""")


def test_equal_values_are_shared_across_blocks() -> None:
    rewrites(cse)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a 2.0:f32
    p: bool = lt a 0.0:f32
    if p
-     c: f32 = mul 2.0:f32 a
-     d: f32 = exp c
+     d: f32 = exp b
      store y d i
    else
      e: f32 = exp b
-     f: f32 = load x i
-     g: f32 = sub f e
-     h: f32 = sub e f
+     g: f32 = sub a e
+     h: f32 = sub e a
      k: f32 = add g h
      store y k i
    m: f32 = exp b
    accum[op=add] y m i
  return y
""")


def test_parameters_and_dtypes_keep_values_apart() -> None:
    keeps(cse)("""
program p(x: ref[f32,8], y: ref[f64,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: i32 = convert[dtype=i32] a
    c: i64 = convert[dtype=i64] a
    d: i32 = bitcast[dtype=i32] a
    e: f32 = add a 0.0:f32
    f: f32 = add a -0.0:f32
    store x e i
    store x f i
    g: f64 = convert[dtype=f64] b
    h: f64 = convert[dtype=f64] c
    k: f64 = convert[dtype=f64] d
    store y g i
    accum[op=add] y h i
    accum[op=add] y k i
  return x, y
""")


LOADS = """
program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    {between}
    b: f32 = load x i
    c: f32 = add a b
    store y c i
  return y, x
"""


@pytest.mark.parametrize(
    "between",
    [
        "store x 1.0:f32 0:i32",
        "accum[op=add] x 1.0:f32 i",
        "o: f32 = atomic[op=max] x 1.0:f32 i",
        "p: bool = lt i 3:i32\n    if p\n      store x 1.0:f32 i",
        "p: bool = lt i 3:i32\n    if p\n      store y 1.0:f32 i\n    else\n      store x 1.0:f32 i",
        "for k in 0:i32 : i : 1:i32\n      accum[op=add] x 1.0:f32 i",
    ],
)
def test_a_load_is_not_shared_over_a_write(between: str) -> None:
    unchanged(cse, LOADS.format(between=between))


def test_a_load_in_a_loop_sees_what_the_iteration_before_wrote() -> None:
    keeps(cse)("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    for k in 0:i32 : 4:i32 : 1:i32
      b: f32 = load x i
      accum[op=add] y b k
      store x a i
  return y, x
""")


@pytest.mark.parametrize("between", ["store y 1.0:f32 i", "p: bool = lt i 3:i32\n    if p\n      store y 1.0:f32 i"])
def test_a_load_is_shared_over_a_write_elsewhere(between: str) -> None:
    shared = LOADS.format(between=between).replace("    b: f32 = load x i\n", "").replace("add a b", "add a a")
    check(cse, LOADS.format(between=between), shared)


def test_a_write_in_one_branch_does_not_hide_a_load_in_the_other() -> None:
    text = """
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    p: bool = lt a 0.0:f32
    if p
      store x 1.0:f32 i
    else
{load}      store y {b} i
    store y a i
  return y, x
"""
    check(cse, text.format(load="      b: f32 = load x i\n", b="b"), text.format(load="", b="a"))


def test_cells_and_atomics_are_never_shared() -> None:
    keeps(cse)("""
program p(x: ref[i32,8])
  range_for i in 0:i32 : 8:i32
    c: cell[i32] = cell[dtype=i32, shape=()]
    d: cell[i32] = cell[dtype=i32, shape=()]
    store c 1:i32
    store d 2:i32
    a: i32 = atomic[op=add] x 1:i32 i
    b: i32 = atomic[op=add] x 1:i32 i
    e: i32 = load c
    f: i32 = load d
    g: i32 = add a b
    h: i32 = add e f
    k: i32 = add g h
    store x k i
  return x
""")
