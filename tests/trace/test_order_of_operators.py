"""Conditions of comparisons and bitwise operators: told of where Python reads them in another order than written.

Programs are drawn. The oracle is Python's parser alone: a condition is read otherwise than it is written if a bitwise
operation on bools stands, without parentheses, as a side of a comparison.
"""

import ast
import random
import warnings

import numpy as np
import pytest

import qdtrace as qd
from tests.written import written

X = np.linspace(-2, 2, 8).astype(np.float32)
K = np.array([1, 0, 3, 2, 5, 4, 7, 6], np.int32)
M = np.array([1, 0, 1, 1, 0, 0, 1, 0], bool)
BOOLS = ("m[i]", "n[i]", "(x[i] > 0)", "(k[i] == 3)", "True", "jnp.isfinite(x[i])")
NUMBERS = ("k[i]", "i", "1", "(k[i] + 1)", "k[i] // 2")
COMPARISONS = ("<", ">=", "==", "!=")


def drawn(draw: random.Random) -> tuple[str, bool]:
    """Returns a condition, and whether Python reads it in another order than it is written."""
    bitwise, comparison = draw.choice("&|^"), draw.choice(COMPARISONS)
    if draw.random() < 0.3:  # integers, as they are meant
        a, b, c = draw.choice(("k[i]", "i")), draw.choice(NUMBERS), draw.choice(NUMBERS)
        joined = f"{a} {bitwise} {b}"
        return draw.choice((f"{joined} {comparison} {c}", f"{c} {comparison} {joined}")), False
    held, a, b, c = draw.choice(BOOLS[:4]), draw.choice(NUMBERS[:2]), draw.choice(NUMBERS), draw.choice(BOOLS)
    match draw.randrange(5):
        case 0:
            return f"{a} {comparison} {b} {bitwise} {held}", True
        case 1:
            return f"{held} {bitwise} {a} {comparison} {b}", True
        case 2:
            return f"({a} {comparison} {b}) {bitwise} {c}", False
        case 3:
            return f"({held} {bitwise} {c}) {draw.choice(COMPARISONS[2:])} {draw.choice(BOOLS[:2])}", False
        case _:
            return f"{draw.choice(BOOLS[:2])} {draw.choice(COMPARISONS[2:])} {held} {bitwise} {c}", True


def told_of(condition: str) -> list[str]:
    """Returns what is told of a condition when it is traced."""
    f = written(f"out = qd.zeros(8, bool)\nfor i in qd.range(8):\n    out[i] = {condition}\nreturn out", "x, k, m, n")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        qd.jit(f).lower(X, K, M, ~M)
    return [str(one.message) for one in told]


def value_of(condition: str) -> np.ndarray:
    names = {"x": X, "k": K, "m": M, "n": ~M, "jnp": np}
    return np.array([eval(condition, {**names, "i": np.int32(i)}) for i in range(8)]).astype(bool)


@pytest.mark.parametrize("seed", range(20))
def test_drawn_conditions_are_told_of_where_the_order_differs(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(3):
        condition, is_odd = drawn(draw)
        told = told_of(condition)
        orders = [text for text in told if "bind tighter" in text]
        assert bool(orders) is is_odd, condition
        if is_odd:
            (one,) = orders
            _, read, fix = one.split("`")[1:6:2]
            assert ast.dump(ast.parse(read)) == ast.dump(ast.parse(condition))  # the same program, in parentheses
            np.testing.assert_array_equal(value_of(read), value_of(condition))
            assert told_of(fix) == []
