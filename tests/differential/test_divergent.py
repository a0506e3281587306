"""Lanes that leave a loop at different times: masks, refill and the choice give what the interpreter gives."""


import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.interpret.reference import evaluate
from tests.differential.compare import compare
from tests.differential.corpus import Case
from tests.differential.divergent import divergent_programs, nested_programs, programs_in_steps, with_hint
from tests.lowering.harness import KERNELS, execute
from tests.selection import drawn

EXAMPLES = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
FEW = settings(EXAMPLES, max_examples=drawn(25))
GAINS = {"as counts say": None, "always refill": (0, 1), "never refill": (1, 0)}


@pytest.fixture(params=GAINS)
def short_looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts a step, runs two, and so on."""
    monkeypatch.setattr("lowering.simd.divergence.spread.PROBE", 1)
    monkeypatch.setattr("lowering.simd.divergence.spread.BLOCK", 2)
    gain = GAINS[request.param]
    if gain is not None:
        monkeypatch.setattr("lowering.simd.divergence.spread.GAIN", gain)


def agrees(case: Case, hint: bool | None, vectors: int | None) -> None:
    options = EmitOptions(fast_math=False, vectors=vectors)
    want = evaluate(case.program, case.args)
    compare(execute(with_hint(case.program, hint), case.args, "avx512", options, (0.6,)), want)


@pytest.mark.full
@pytest.mark.usefixtures("short_looks")
def test_what_counts_decide() -> None:
    @FEW
    @given(divergent_programs(), st.sampled_from([None, 1, 2]))
    def one(case: Case, vectors: int | None) -> None:
        agrees(case, None, vectors)

    one()


@pytest.mark.full
@pytest.mark.usefixtures("short_looks")
def test_time_steps() -> None:
    @FEW
    @given(programs_in_steps())
    def one(case: Case) -> None:
        agrees(case, None, None)

    one()


@pytest.mark.full
def test_many_time_steps_have_the_choice() -> None:
    reasons: list[str] = []

    @EXAMPLES
    @given(programs_in_steps())
    def one(case: Case) -> None:
        reasons.append(emit_task(case.program.tasks[0], Target.named("avx512")).reason)

    one()
    assert 4 * sum("nested loops as one, as trip counts spread" in reason for reason in reasons) > len(reasons)


@pytest.mark.full
@pytest.mark.parametrize("hint", [True, False])
def test_hints(hint: bool) -> None:
    @FEW
    @given(divergent_programs(), st.sampled_from([None, 1, 2]))
    def one(case: Case, vectors: int | None) -> None:
        agrees(case, hint, vectors)

    one()


@FEW
@given(divergent_programs())
def test_kernels(case: Case) -> None:
    compare(execute(case.program, case.args, KERNELS), evaluate(case.program, case.args))


def forms_agree(case: Case, target: str) -> None:
    want = evaluate(case.program, case.args)
    for vectorize in (True, False):
        options = EmitOptions(fast_math=False, vectorize=vectorize)
        compare(execute(case.program, case.args, target, options, (0.6,)), want)


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_lanes_and_one_lane_at_a_time(target: str) -> None:
    @FEW
    @given(nested_programs())
    def one(case: Case) -> None:
        forms_agree(case, target)

    one()


def test_many_nested_ones_run_one_lane_at_a_time() -> None:
    reasons: list[str] = []

    @EXAMPLES
    @given(nested_programs())
    def one(case: Case) -> None:
        reasons.append(emit_task(case.program.tasks[0], Target.named("portable")).reason)

    one()
    assert 0 < sum("one lane at a time" in reason for reason in reasons) < len(reasons)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=1000, derandomize=False)
@given(nested_programs(), st.sampled_from(["avx512", "avx2", "portable"]))
def test_many_nested(case: Case, target: str) -> None:
    forms_agree(case, target)


def test_many_have_the_choice() -> None:
    reasons: list[str] = []

    @EXAMPLES
    @given(divergent_programs())
    def one(case: Case) -> None:
        reasons.append(emit_task(case.program.tasks[0], Target.named("avx512")).reason)

    one()
    assert 4 * sum("as trip counts spread" in reason for reason in reasons) > len(reasons)


@pytest.mark.slow
@pytest.mark.usefixtures("short_looks")
@settings(EXAMPLES, max_examples=1000, derandomize=False)
@given(st.one_of(divergent_programs(), programs_in_steps()), st.sampled_from([None, True, False]))
def test_many(case: Case, hint: bool | None) -> None:
    agrees(case, hint, 1)
