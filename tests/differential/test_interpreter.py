"""Random programs under the interpreter: the text form, the verifier, orders of iterations and the race detector."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import verify_program
from tests.differential.compare import compare
from tests.differential.corpus import Case, replay
from tests.differential.programs import programs
from tests.ir.equal import programs_equal
from tests.selection import drawn

QUICK = settings(
    max_examples=drawn(60), deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


def check_text(case: Case) -> None:
    """Verified, and the same after a round trip through text."""
    verify_program(case.program)
    text = print_program(case.program)
    again = parse_program(text)
    assert programs_equal(again, case.program)
    assert print_program(again) == text


def check_orders(case: Case) -> None:
    """One result in any order of iterations, and no race."""
    want = evaluate(case.program, case.args, check_races=True)
    compare(evaluate(case.program, case.args, order="backward", check_races=True), want)
    compare(evaluate(case.program, case.args, order="shuffled", seed=case.seed), want)


@pytest.mark.full
@QUICK
@given(programs())
def test_text(case):
    check_text(case)


@pytest.mark.full
@QUICK
@given(programs())
def test_orders(case):
    check_orders(case)


@QUICK
@given(programs(functions=True, tasks=1))
def test_functions(case):
    check_text(case)
    check_orders(case)


@pytest.mark.slow
@settings(QUICK, max_examples=3000)
@given(programs())
def test_many(case):
    check_text(case)
    check_orders(case)


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in replay()])
def test_corpus(case):
    check_text(case)
    check_orders(case)


def test_cases_are_named_by_kind_and_seed():
    for _, case in replay():
        again = Case(case.program, case.args, case.kind, case.seed)
        assert repr(again).startswith(f"\n# inputs: {case.kind} {case.seed}\nprogram ")
        assert all(isinstance(a, np.ndarray) for a in case.args)
