"""Columns of grids: contraction and all passes leave the results as they are, and most temporaries are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.verify import verify_program
from qdtrace.passes.contract import Contract
from qdtrace.passes.pipelines import optimise
from tests.differential.columns import column_programs
from tests.differential.compare import compare
from tests.lowering.harness import execute

if TYPE_CHECKING:
    from tests.differential.corpus import Case

EXAMPLES = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
contract = Contract()


def preserves(case: Case) -> None:
    want = evaluate(case.program, case.args)
    after = contract(case.program)
    verify_program(after)
    assert contract(after) is after
    compare(evaluate(after, case.args), want)
    final = optimise(case.program, Options(fast_math=False))
    compare(evaluate(final, case.args), want)
    compare(execute(final, case.args, "avx512"), want)


@EXAMPLES
@given(column_programs())
def test_results(case: Case) -> None:
    preserves(case)


def test_most_temporaries_go() -> None:
    before: list[int] = []
    after: list[int] = []

    @EXAMPLES
    @given(column_programs())
    def count(case: Case) -> None:
        before.append(len(case.program.buffers))
        after.append(len(contract(case.program).buffers))

    count()
    assert 2 * sum(after) < sum(before)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=1500, derandomize=False)
@given(column_programs())
def test_results_of_many(case: Case) -> None:
    preserves(case)
