"""Float rules on special values: expressions of two operations, over operators and constants that rules look for.

Whatever rules make of an expression, alone or after each other, has the bits of the expression for every pair of
special values; with `fast_math` it may differ by a rounding, never in the sign of a zero, in an infinity or in NaN.
"""

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from qdtrace.ir.builder import Builder
from qdtrace.ir.program import Atom, literal
from qdtrace.ir.types import DType
from qdtrace.passes import peephole
from qdtrace.passes.rewrite import RewriteOptions, Rewriter
from qdtrace.rules.families import ALGEBRAIC
from qdtrace.rules.table import RuleSet
from tests.passes.harness import assert_same_bits
from tests.passes.special_expressions import BINARY, CONSTANTS, UNARY, Grid, Run, one_rounding, specials

SCALAR_RULES = [r for r in (*ALGEBRAIC, *peephole.RULES) if r.stage == "scalar"]
RULES = {fast: RuleSet.of(SCALAR_RULES, fast_math=fast) for fast in (False, True)}
INTEGERS_ONLY = {r.name for r in SCALAR_RULES if r.on in ("bool", "signed", "unsigned", "integer", "bits")}
"""Rules that never see a float operand."""
NOT_OF_FLOATS = {"select_of_condition", "select_of_equals", "select_bool", "select_extreme", "neg_sub"}
"""Rules of any kind that ask for bools or integers themselves."""


def inners() -> list[Any]:
    """What stands inside: a value, one operation on it, or one of two."""

    def unary(name: str, params: dict[str, Any]) -> Any:
        return lambda b, x, y: (b(name, x, **params), f"{name}{params or ''}(x)")

    def binary(name: str, k: int) -> Any:
        def make(b: Builder, x: Atom, y: Atom) -> tuple[Atom, str]:
            c = literal(CONSTANTS[k // 2], DType.f32) if k < 2 * len(CONSTANTS) else (x, y, y)[k - 2 * len(CONSTANTS)]
            pair = (x, c) if k % 2 else (c, x)
            shown = {id(x): "x", id(y): "y"}
            return b(name, *pair), f"{name}({', '.join(shown.get(id(a), str(c)) for a in pair)})"

        return make

    made = [lambda b, x, y: (x, "x")]
    made += [unary(name, params) for name, params in UNARY]
    made += [binary(name, k) for name in BINARY for k in range(2 * len(CONSTANTS) + 3)]
    made += [lambda b, x, y: (b("bitcast", b("bitcast", x, dtype=DType.u32), dtype=DType.f32), "bitcast(bitcast(x))")]
    made += [lambda b, x, y: (b("convert", b("lt", x, y), dtype=DType.f32), "convert(x < y)")]
    made += [lambda b, x, y, c=c: (b("select", literal(c, DType.bool), x, y), f"select({c})") for c in (False, True)]
    two, half = (literal(c, DType.f32) for c in (2.0, 0.5))
    made += [lambda b, x, y: (b("select", b("lt", x, y), two, half), "select(x < y, 2, 0.5)")]
    made += [lambda b, x, y: (b("convert", b("convert", x, dtype=DType.f64), dtype=DType.f32), "f32(f64(x))")]
    return made


@cache
def fired_over_all(fast_math: bool) -> Counter[str]:
    """Rules applied over all expressions, each of which is compared."""
    fired: Counter[str] = Counter()
    x, y = specials()
    for inner in inners():
        grid = Grid(x.size)
        task = grid.build(inner)
        walk = Rewriter(RewriteOptions(RULES[fast_math]))
        got = walk.rebuild_task(task)
        fired.update(walk.fired)
        inputs = dict(zip(grid.refs, (x, y), strict=True))
        with np.errstate(all="ignore"):
            before = Run(task.body.eqns, inputs)
            after = Run(got.body.eqns, inputs, before)
            for text, one, other in zip(grid.texts, before.stored, after.stored, strict=True):
                if one is other or before.value(one) is after.value(other):
                    continue
                want, result = (np.broadcast_to(a, x.shape) for a in (before.value(one), after.value(other)))
                if want.tobytes() == result.tobytes():
                    continue
                try:
                    if fast_math and one.dtype.is_float:
                        near = one_rounding(want, result, before.size(one))
                        assert near.all(), f"{want[~near][:4]} became {result[~near][:4]}"
                    else:
                        assert_same_bits(want, result)
                except AssertionError as error:
                    raise AssertionError(f"{text}: {error} by {sorted(walk.fired)}") from None
    return fired


@pytest.mark.full
@pytest.mark.parametrize("fast_math", [False, True])
def test_specials_stay_special(fast_math: bool) -> None:
    assert fired_over_all(fast_math)


def test_every_float_rule_is_tried() -> None:
    wanted = {r.name for r in SCALAR_RULES} - INTEGERS_ONLY - NOT_OF_FLOATS
    assert wanted - set(fired_over_all(True)) == set()
    assert {r.name for r in SCALAR_RULES if r.exact} & wanted - set(fired_over_all(False)) == set()
