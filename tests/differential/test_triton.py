"""Random programs as Triton source in its interpreter: what the reference gives. What is refused is interpreted."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.passes.pipelines import optimise
from tests.differential.columns import column_programs
from tests.differential.compare import Tolerance, compare
from tests.differential.corpus import Case, replay
from tests.differential.programs import programs
from tests.differential.task_programs import task_programs

pytest.importorskip("triton", reason="needs the package triton")

from lowering.triton.compile import compile_kernels
from lowering.triton.emit import emit_triton
from lowering.triton.refusals import refusal
from tests.lowering.triton_interpreter import ZEROS, Run

FUNCTIONS = Tolerance(ulps=5, signed_zeros=False)
KINDS = {
    "programs": (programs(), ZEROS, 30),
    "functions": (programs(functions=True, tasks=1), FUNCTIONS, 15),
    "tasks": (task_programs(), ZEROS, 20),
    "columns": (column_programs(), ZEROS, 15),
}


def check(kind: str, factor: int, *, optimised: bool) -> None:
    """Runs random programs of a kind; some of their tasks must be made."""
    strategy, tolerance, examples = KINDS[kind]
    run = Run()

    @settings(
        max_examples=factor * examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    @given(strategy)
    def one(case: Case) -> None:
        program = optimise(case.program, Options(fast_math=False)) if optimised else case.program
        compare(run.results(program, case.args), evaluate(program, case.args), tolerance)

    one()
    assert run.made >= examples // 2


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.full
def test_as_drawn(kind: str) -> None:
    check(kind, 1, optimised=False)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["programs", "tasks"])
def test_after_the_pipeline(kind: str) -> None:
    check(kind, 1, optimised=True)


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in replay()])
def test_corpus(case: Case) -> None:
    compare(Run().results(case.program, case.args), evaluate(case.program, case.args), ZEROS)


@pytest.mark.full
@settings(
    max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)
@given(programs())
def test_what_is_accepted_compiles(case: Case) -> None:
    for task in optimise(case.program, Options(fast_math=False)).tasks:
        if refusal(task) is None:
            compile_kernels(emit_triton(task), "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many(kind: str) -> None:
    check(kind, 40, optimised=False)
