"""Every scalar rule alone: what it makes, what it leaves, and that results stay the same on special values."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.passes import peephole
from qdtrace.passes.dead_code import DeadCode
from qdtrace.passes.rewrite import RewriteOptions, Rewriter
from qdtrace.rules.families import ALGEBRAIC
from qdtrace.rules.table import Rule, RuleSet
from tests.ir.equal import programs_equal
from tests.passes.expressions import expression_program
from tests.passes.harness import assert_same_bits
from tests.passes.rule_cases import CASES, Case

RULES = {r.name: r for r in (*ALGEBRAIC, *peephole.RULES) if r.stage == "scalar"}
LISTED = [(name, case) for name, cases in CASES.items() for case in cases]


def special_values(dtype: DType) -> np.ndarray:
    """Zeros, ones, halves, extremes, the smallest, infinities and NaN."""
    if dtype is DType.bool:
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        values = {0, 1, 2, 3, 7, 8, 100, info.max, info.max - 1, info.min, info.min + 1, -1, -3}
        return np.array(sorted(v for v in values if info.min <= v <= info.max), dtype.numpy)
    info = ml_dtypes.finfo(dtype.numpy)
    finite = [
        0.0,
        1.0,
        0.5,
        1.5,
        2.0,
        3.0,
        7.25,
        100.5,
        float(info.max),
        float(info.tiny),
        float(info.smallest_subnormal),
        1e-3,
    ]
    values = np.array([*finite, np.inf, np.nan], np.float64)
    with np.errstate(over="ignore"):
        return np.concatenate([values, -values]).astype(dtype.numpy)


def crossed(inputs: dict[str, str]) -> list[np.ndarray]:
    """Every combination of special values of the inputs, one array for each."""
    rows = list(itertools.product(*(special_values(DType(d)) for d in inputs.values())))
    return [
        np.array(column, DType(d).numpy) for column, d in zip(zip(*rows, strict=True), inputs.values(), strict=True)
    ]


def applied(rule: Rule, case: Case):
    inputs, before, _ = case
    columns = crossed(inputs)
    program = expression_program(inputs, before, len(columns[0]))
    verify_program(program)
    walk = Rewriter(RewriteOptions(RuleSet.of([rule], fast_math=True)))
    (task,) = program.tasks
    return columns, program, walk, task, walk.rebuild_task(task)


def test_every_rule_has_a_success_and_a_refusal() -> None:
    assert set(CASES) == set(RULES)
    for name, cases in CASES.items():
        assert any(after is not None for *_, after in cases), name
        assert any(after is None for *_, after in cases) or name == "abs_unsigned", name


@pytest.mark.parametrize(("name", "case"), LISTED, ids=[f"{n}-{c[1]}" for n, c in LISTED])
def test_rule(name: str, case: Case) -> None:
    inputs, _, after = case
    columns, program, walk, task, got = applied(RULES[name], case)
    if after is None:
        assert got is task
        assert not walk.fired
        return
    assert walk.fired[name] >= 1
    result = program.results[0].dtype.value
    wanted = DeadCode()(expression_program(inputs, after, len(columns[0]), result))
    rewritten = type(program)(program.name, program.params, (), (got,), program.results)
    verify_program(rewritten)
    cleaned = DeadCode()(rewritten)
    assert programs_equal(cleaned, wanted), f"got\n{print_program(cleaned)}wanted\n{print_program(wanted)}"
    args = [*columns, np.zeros(len(columns[0]), program.results[0].dtype.numpy)]
    (x,), (y,) = evaluate(program, args), evaluate(rewritten, args)
    if RULES[name].exact:
        assert_same_bits(x, y)
    else:
        # two roundings in place of one or the other way round: two units of the last place, of the larger operand
        # where terms cancel; the smallest normal number bounds what is lost below it
        info = ml_dtypes.finfo(x.dtype)
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        np.testing.assert_array_equal(np.isinf(x), np.isinf(y))
        zero = (x == 0) & (y == 0)
        np.testing.assert_array_equal(np.signbit(x[zero]), np.signbit(y[zero]))
        finite = np.isfinite(x)
        scale = np.maximum(np.abs(x), 10)[finite] if "add" in name else np.abs(x)[finite]
        error = np.abs(x[finite].astype(np.float64) - y[finite].astype(np.float64))
        assert (error <= 4 * float(info.eps) * scale + 2 * float(info.tiny)).all()
