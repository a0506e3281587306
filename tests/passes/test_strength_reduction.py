"""Strength reduction: which divisions become shifts and masks, and proofs that they give the same."""

import pytest
import z3

from qdtrace.passes.rewrite import RewriteOptions, Rewriter
from qdtrace.passes.strength_reduction import TABLE, StrengthReduction
from qdtrace.rules.table import RuleSet
from tests.passes.expressions import expression_program
from tests.passes.harness import check, unchanged
from tests.passes.test_rules_proved import as_z3

reduce = StrengthReduction()
TEXT = """\
program p(x: ref[i32,64], y: ref[i32,64])
  range_for i in 0:i32 : 64:i32
    l: i32 = load x i
{lines}    store y r i
  return y
"""


def text(*lines: str) -> str:
    return TEXT.format(lines="".join(f"    {line}\n" for line in lines))


def test_quotient_and_remainder() -> None:
    check(
        reduce,
        text("a: i32 = mul i i", "q: i32 = div a 8:i32", "m: i32 = rem a 8:i32", "r: i32 = add q m"),
        text("a: i32 = mul i i", "q: i32 = shift_right_logical a 3:i32", "m: i32 = and a 7:i32", "r: i32 = add q m"),
    )


def test_in_loops_by_the_range_of_their_indices() -> None:
    lines = ["for k in 0:i32 : 4:i32 : 1:i32", "  a: i32 = add i k", "  {}", "  accum[op=add] y b i"]
    lines.append("r: i32 = add i i")
    check(reduce, text(*lines).format("b: i32 = rem a 16:i32"), text(*lines).format("b: i32 = and a 15:i32"))


WRAPPED = [
    "m: i32 = rem {a} {n}:i32",
    "d: bool = ne m 0:i32",
    "z: bool = lt m 0:i32",
    "c: bool = and z d",
    "s: i32 = add m {n}:i32",
    "r: i32 = select c s m",
]


def test_wrapped_neighbours() -> None:
    lines = ["a: i32 = add i -1:i32", *WRAPPED]
    dead = ["d: bool = ne a 0:i32", "z: bool = lt a 0:i32", "s: i32 = add a {n}:i32"]
    check(
        reduce,
        text(*lines).format(a="a", n=64),
        text("a: i32 = add i -1:i32", *dead, "r: i32 = and a 63:i32").format(n=64),
    )
    check(
        reduce,
        text(*lines).format(a="a", n=70),
        text("a: i32 = add i -1:i32", *dead, "r: i32 = select z s a").format(n=70),
    )


def test_the_next_neighbour_by_a_comparison() -> None:
    lines = ["for k in 0:i32 : 70:i32 : 1:i32", "  d: i32 = mul k 1:i32", "  a: i32 = add d 1:i32", "{}"]
    lines += ["  accum[op=add] y b i", "r: i32 = add i i"]
    compared = "  m: i32 = add a -70:i32\n      c: bool = ge a 70:i32\n      b: i32 = select c m a"
    check(reduce, text(*lines).format("  b: i32 = rem a 70:i32"), text(*lines).format(compared))
    unchanged(reduce, text(*lines).format("  b: i32 = rem a 35:i32"))


def test_wrapped_values_of_any_size() -> None:
    check(
        reduce,
        text(*WRAPPED).format(a="l", n=8),
        text(
            "m: i32 = rem l 8:i32",
            "d: bool = ne m 0:i32",
            "z: bool = lt m 0:i32",
            "s: i32 = add m 8:i32",
            "r: i32 = and l 7:i32",
        ),
    )


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["r: i32 = div l 8:i32"], id="a value that may be negative"),
        pytest.param(["a: i32 = add i -1:i32", "b: i32 = mul a i", "r: i32 = rem b 8:i32"], id="negative at first"),
        pytest.param(["a: i32 = mul i i", "r: i32 = div a 7:i32"], id="no power of two"),
        pytest.param(["a: i32 = mul i i", "r: i32 = div a 1:i32"], id="one"),
        pytest.param(["a: i32 = mul i i", "r: i32 = div a -8:i32"], id="a negative power"),
        pytest.param(["a: i32 = mul i i", "r: i32 = div a i"], id="a value"),
        pytest.param(["r: i32 = div i 8:i32"], id="the index of the task"),
        pytest.param(["a: i32 = add i 8:i32", "r: i32 = rem a 8:i32"], id="the index plus a constant"),
        pytest.param(
            [
                "w: i64 = convert[dtype=i64] i",
                "a: i64 = mul w w",
                "b: i64 = div a 8:i64",
                "r: i32 = convert[dtype=i32] b",
            ],
            id="64 bits",
        ),
    ],
)
def test_what_stays(lines: list[str]) -> None:
    unchanged(reduce, text(*lines))


CORRECTED = "(select (and (lt m 0:i8) (ne m 0:i8)) (add m C) m)"
TEMPLATES = [
    "(div (and x 127:i8) C)",
    "(rem (and x 127:i8) C)",
    "(rem (max x y) C)",
    "(rem (and x 15:i8) C)",
    "(div (max (and y 3:i8) x) C)",
    "(rem (sub (and x 3:i8) (and y 3:i8)) C)",
    f"m=(rem x C); {CORRECTED}",
    f"m=(sub (and x 7:i8) 5:i8); {CORRECTED}",
]


def test_each_rule_is_proved() -> None:
    fired: set[str] = set()
    symbols = [z3.BitVec("x", 8), z3.BitVec("y", 8)]
    for template in TEMPLATES:
        for c in (0, 1, 2, 3, 7, 8, 9, 15, 64, 127, -1, -8, -128):
            program = expression_program({"x": "i8", "y": "i8"}, template.replace("C)", f"{c}:i8)"), 4)
            walk = Rewriter(RewriteOptions(RuleSet.of(TABLE.rules, fast_math=False)))
            (task,) = program.tasks
            got = walk.rebuild_task(task)
            fired |= set(walk.fired)
            solver = z3.Solver()
            inputs = {id(ref): s for ref, s in zip(program.params, symbols, strict=False)}
            solver.add(as_z3(task.body, inputs) != as_z3(got.body, inputs))
            assert solver.check() == z3.unsat, f"{template} by {c}: {solver.model()}"
    assert fired == {rule.name for rule in TABLE.rules}
