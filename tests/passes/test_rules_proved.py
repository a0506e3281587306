"""Integer rules proved by z3 at 8 bits: whatever the rules make of a template equals the template for all operands."""

from collections import Counter
from functools import cache

import pytest
import z3

from qdtrace.ir.program import Block, Literal, Var
from qdtrace.ir.types import DType
from qdtrace.passes import peephole
from qdtrace.passes.rewrite import RewriteOptions, Rewriter
from qdtrace.rules.families import ALGEBRAIC
from qdtrace.rules.table import RuleSet
from tests.passes.expressions import expression_program
from tests.passes.solver import meaning

RULES = RuleSet.of((*ALGEBRAIC, *peephole.RULES), fast_math=False)
INTEGER_RULES = {
    r.name
    for r in (*ALGEBRAIC, *peephole.RULES)
    if r.stage == "scalar" and r.on != "float" and r.name not in ("bitcast_bitcast", "integer_pow_even")
}
CONSTANTS = {"i8": (0, 1, -1, 2, 7, 8, 127, -128), "u8": (0, 1, 2, 7, 8, 128, 254, 255)}
PAIRS = {
    "i8": ((3, 4), (-1, 1), (127, 127), (-128, -1), (7, 0)),
    "u8": ((3, 4), (255, 1), (200, 100), (8, 128), (7, 0)),
}

# T is the dtype, C and D are constants, x y z operands of dtype T, c d of bool.
PLAIN = """
(sub x x)  (add x (neg y))  (add (neg x) y)  (sub x (neg y))  (add (sub x y) y)  (add y (sub x y))
(sub (add x y) y)  (sub (add x y) x)  (sub x (sub x y))  (sub x (add x y))  (sub x (add y x))  (sub (sub x y) x)
(neg (sub x y))  (neg (neg x))  (abs x)  (abs (abs x))  (abs (neg x))  a=(abs x);(mul a a)  a=(neg x);(mul a a)
(and x x)  (or x x)  (xor x x)  (and x (not x))  (or (not x) x)  (xor x (not x))  (and x (or x y))  (or (and y x) x)
(and x (and x y))  (or (or y x) x)  (not (not x))  (min x x)  (max x x)  (population_count (convert[T] c))
(integer_pow[0] x)  (integer_pow[1] x)  (integer_pow[2] x)  (integer_pow[5] x)  (integer_pow[-1] x)  (integer_pow[-3] x)
(convert[T] x)  (convert[i8] (convert[i16] x))  (convert[u8] (convert[i32] x))  (convert[i16] (convert[i64] x))
(convert[bool] (convert[i16] x))  (convert[i8] (convert[u16] (convert[i32] x)))  (convert[u16] (convert[i32] x))
(lt x x)  (le x x)  (eq x x)  (eq c c)  (not (lt x y))  (not (le x y))  (not (eq x y))  (not (gt x y))  (not (ge x y))
(not (ne x y))  (eq c true)  (eq c false)  (ne c true)  (ne c false)  (xor c true)  (and c (not c))  (or c false)
(select true x y)  (select false x y)  (select c x x)  (select (not c) x y)  (select c c d)  (select c d c)
(select c true d)  (select c false d)  (select c d true)  (select c d false)
(select c (select c x y) z)  (select c x (select c y z))  (select (lt x y) x y)  (select (le x y) x y)
(select (eq x y) x y)  (select (ne x y) x y)  (select (eq x y) y x)  (select (ne x y) y x)
(select (gt x y) x y)  (select (ge x y) x y)  (select (lt x y) y x)  (select (le x y) y x)  (select (gt x y) y x)
(not (and c d))  (eq (sub x y) 0:T)  (ne (neg x) 0:T)  (lt (convert[i32] x) 300:i32)  (eq (convert[T] c) 2:T)
(ne (sign (and x 7:T)) 1:T)  (eq 1:T (sign (and x 7:T)))  (ne (sign x) 1:T)  (lt (sign (or (and x 7:T) 1:T)) 1:T)
(and (eq x 0:T) (ne (rem x y) 0:T))  (and (ne (rem x 7:T) 0:T) (eq 0:T x))  (and (eq y 0:T) (ne (rem x y) 0:T))
(eq x (max x y))  (eq (max y x) x)  (eq x (min x y))  (eq (min x y) y)
(mul (convert[i16] x) (convert[i16] y))  (lt (mul (convert[i32] x) (convert[i32] y)) 70000:i32)
"""
ONE = """
(add C x)  (add x C)  (sub x C)  (sub C x)  (mul x C)  (div x C)  (rem x C)  (rem C x)  (min x C)  (max x C)
(and x C)  (or x C)  (xor x C)  (shift_left x C)  (shift_right_logical x C)  (shift_right_arithmetic x C)
(shift_left C x)  (lt x C)  (le x C)  (gt C x)  (ge x C)  (mul (neg x) C)  (lt (div x 3:T) C)  (gt (rem x 5:T) C)
(le (shift_right_logical x 2:T) C)  (lt (abs x) C)  (ge (population_count x) C)  (ne (select c 1:T 0:T) C)
(lt (convert[T] c) C)  (eq (xor (and x 7:T) (and y 3:T)) C)  (lt (or (and x 7:T) (and y 3:T)) C)
(ge (shift_left (and x 3:T) 2:T) C)  (le (shift_right_arithmetic x 2:T) C)
(lt (shift_right_arithmetic (and x 31:T) 2:T) C)  (lt (shift_right_logical (and x 31:T) (and y 1:T)) C)
(lt (max (neg (and x 7:T)) y) C)
(le (rem (and x 7:T) 5:T) C)  (lt (sub (and x 7:T) (and y 3:T)) C)  (gt (select c (and x 7:T) (and y 3:T)) C)
"""
TWO = """
(add (add x C) D)  (add (sub C x) D)  (sub C (add x D))  (sub C (sub D x))  (mul (mul x C) D)  (div (div x C) D)
(min (min x C) D)  (max (max x C) D)  (and (and x C) D)  (or (or x C) D)  (xor (xor x C) D)
(shift_left (shift_left x C) D)  (shift_right_logical (shift_right_logical x C) D)
(shift_right_arithmetic (shift_right_arithmetic x C) D)  (eq (add x C) D)  (ne (add x C) D)  (lt (min x C) D)
(gt (rem x C) D)  (lt (div x C) D)  (eq (select c C D) D)  (lt (mul (and x 7:T) C) D)  (le (add (and x 7:T) C) D)
"""


def templates(text: str) -> list[str]:
    return [t.strip() for line in text.split("\n") for t in line.split("  ") if t.strip()]


def instances(dtype: str) -> list[str]:
    made = [t.replace("T", dtype) for t in templates(PLAIN)]
    for t in templates(ONE):
        made += [t.replace("C", f"{k}:{dtype}").replace("T", dtype) for k in CONSTANTS[dtype]]
    for t in templates(TWO):
        pairs = PAIRS[dtype]
        made += [t.replace("C", f"{k}:{dtype}").replace("D", f"{m}:{dtype}").replace("T", dtype) for k, m in pairs]
    return made


def bits_of(dtype: DType) -> int:
    return 8 if dtype is DType.bool else dtype.bits


def as_z3(block: Block, inputs: dict[int, z3.BitVecRef]):
    """The value stored by a task of `expression_program`; bool is a bit-vector of 8 bits that is 0 or 1."""
    env: dict[Var, z3.BitVecRef] = {}

    def value(atom):
        return z3.BitVecVal(int(atom.value), bits_of(atom.dtype)) if isinstance(atom, Literal) else env[atom]

    for eqn in block.eqns:
        if eqn.primitive.name == "load":
            env[eqn.outvar] = inputs[id(eqn.invars[0])]
        elif eqn.primitive.name == "store":
            return value(eqn.invars[1])
        else:
            operands = [value(a) for a in eqn.invars]
            env[eqn.outvar] = meaning(eqn.primitive.name, operands, eqn.invars[0].dtype, eqn.outvar.dtype, eqn.params)
    raise AssertionError("nothing is stored")


@cache
def fired_over_all(dtype: str) -> Counter[str]:
    """Rules applied over all instances, each of which is proved."""
    fired: Counter[str] = Counter()
    inputs = {"x": dtype, "y": dtype, "z": dtype, "c": "bool", "d": "bool"}
    symbols = [z3.BitVec(name, 8) for name in inputs]
    booleans = [z3.ULE(s, 1) for s in symbols[3:]]
    for text in instances(dtype):
        program = expression_program(inputs, text, 4)
        walk = Rewriter(RewriteOptions(RULES))
        (task,) = program.tasks
        got = walk.rebuild_task(task)
        fired.update(walk.fired)
        if got is task:
            continue
        by_ref = {id(ref): s for ref, s in zip(program.params, symbols, strict=False)}
        solver = z3.Solver()
        solver.add(*booleans, as_z3(task.body, by_ref) != as_z3(got.body, by_ref))
        assert solver.check() == z3.unsat, f"{text} for {dtype}: rules {list(walk.fired)}: {solver.model()}"
    return fired


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.full
def test_templates_stay_equal(dtype: str) -> None:
    assert fired_over_all(dtype)


def test_every_integer_rule_is_proved() -> None:
    unproved = INTEGER_RULES - set(fired_over_all("i8")) - set(fired_over_all("u8"))
    assert not unproved
