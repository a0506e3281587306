"""Every pass, and the whole pipeline, leaves the results of random programs as they are, bit for bit."""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.passes.by_name import PASSES, pass_named
from qdtrace.passes.pipelines import optimise
from tests.differential.compare import compare
from tests.differential.corpus import Case, replay
from tests.differential.programs import programs
from tests.selection import drawn

EXACT = Options(fast_math=False)
ONE_WALK = ("algebraic", "peephole", "unreachable", "scalar_replacement", "store_forwarding", "dead_stores", "memory")
"""One rule may make another one apply to what was passed already; `simplify` walks again."""
EXAMPLES = settings(
    max_examples=drawn(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


def preserves(change: Callable[[Program], Program], case: Case, *, settles: bool = True) -> None:
    after = change(case.program)
    try:
        verify_program(after)
        compare(evaluate(after, case.args), evaluate(case.program, case.args))
        if settles:
            assert change(after) is after, f"changes its own result:\n{print_program(change(after))}"
    except Exception as e:
        raise AssertionError(f"after the pass:\n{print_program(after)}") from e


@cache
def cases_of_passes() -> tuple[Case, ...]:
    """Programs for all passes: drawing one takes four times as long as a pass over it and the check."""
    cases: list[Case] = []

    @EXAMPLES
    @given(programs())
    def keep(case: Case) -> None:
        cases.append(case)

    keep()
    return tuple(cases)


@pytest.mark.parametrize("name", PASSES)
def test_each_pass(name: str) -> None:
    def check(case: Case) -> None:
        preserves(pass_named(name, EXACT), case, settles=name not in ONE_WALK)

    try:
        for case in cases_of_passes():
            check(case)
    except AssertionError:
        EXAMPLES(given(programs())(check))()  # shows a smaller one, if it draws one that fails
        raise


@EXAMPLES
@given(programs())
def test_the_pipeline(case: Case) -> None:
    preserves(lambda program: optimise(program, EXACT), case, settles=False)


@EXAMPLES
@given(programs())
def test_the_pipeline_without_sharing_and_with_one_round(case: Case) -> None:
    options = Options(fast_math=False, opt_level=0, advanced_optimization=False, constant_folding=False)
    after = optimise(case.program, options)
    verify_program(after)
    compare(evaluate(after, case.args), evaluate(case.program, case.args))


@EXAMPLES
@given(programs(dtypes=tuple(map(DType, ("i32", "i64", "u32", "i8", "bool")))))
def test_fast_math_is_exact_on_integers(case: Case) -> None:
    preserves(lambda program: optimise(program, Options(fast_math=True)), case, settles=False)


@pytest.mark.full
@EXAMPLES
@given(programs())
def test_printing_does_not_depend_on_the_run(case: Case) -> None:
    assert print_program(optimise(case.program, EXACT)) == print_program(optimise(case.program, EXACT))


@pytest.mark.parametrize(("name", "case"), [pytest.param(n, c, id=n) for n, c in replay()])
def test_the_corpus(name: str, case: Case) -> None:
    for pass_name in PASSES:
        preserves(pass_named(pass_name, EXACT), case, settles=False)
    preserves(lambda program: optimise(program, EXACT), case, settles=False)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=2000, derandomize=False)
@given(programs(tasks=2, statements=10, depth=4))
def test_the_pipeline_on_many(case: Case) -> None:
    preserves(lambda program: optimise(program, EXACT), case, settles=False)
