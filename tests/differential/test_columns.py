"""Columns of grids: contraction and all passes leave the results as they are, and most temporaries are gone."""


import pytest
from hypothesis import HealthCheck, Phase, given, settings

from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.verify import verify_program
from qdtrace.passes.contract import Contract
from qdtrace.passes.fills import Fills
from qdtrace.passes.first_stores import FirstStores
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.recurrences import Recurrences
from tests.differential.columns import column_programs
from tests.differential.compare import compare
from tests.differential.corpus import Case
from tests.lowering.harness import KERNELS, execute
from tests.selection import drawn

EXAMPLES = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
contract, recurrences, fills, store = Contract(), Recurrences(), Fills(), FirstStores()


def preserves(case: Case) -> None:
    want = evaluate(case.program, case.args)
    filled = fills(case.program)
    for change, before in ((fills, case.program), (contract, filled), (store, filled), (recurrences, case.program)):
        after = change(before)
        verify_program(after)
        assert change(after) is after
        compare(evaluate(after, case.args), want)
    final = optimise(case.program, Options(fast_math=False))
    compare(evaluate(final, case.args), want)
    for target in ("avx512", KERNELS):
        compare(execute(final, case.args, target), want)


@pytest.mark.full
@settings(EXAMPLES, max_examples=drawn(80))
@given(column_programs())
def test_results(case: Case) -> None:
    preserves(case)


def test_most_temporaries_and_some_loads_go() -> None:
    before: list[int] = []
    after: list[int] = []
    carried: list[bool] = []

    @EXAMPLES
    @given(column_programs())
    def count(case: Case) -> None:
        before.append(len(case.program.buffers))
        after.append(len(contract(fills(case.program)).buffers))
        carried.append(recurrences(case.program) is not case.program)

    count()
    assert 2 * sum(after) < sum(before)
    assert 20 * sum(carried) > len(carried)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=1500, derandomize=False)
@given(column_programs())
def test_results_of_many(case: Case) -> None:
    preserves(case)
