"""Accesses that leave their memory: interpreter, every pass and every CPU target end with the same error, else with
the same results, and touch nothing outside."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lowering.llvm.options import EmitOptions
from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.passes.pipelines import optimise
from tests.differential.checked import Checked, Outcome, checked, meaning, outcome
from tests.differential.compare import compare
from tests.differential.corpus import Case
from tests.differential.programs import programs
from tests.differential.task_programs import random_case
from tests.lowering.harness import Kernel, run_kernels, runnable
from tests.selection import drawn

EXACT = Options(fast_math=False)
TARGETS = ("avx512", "avx2", "portable", "scalar")
CUTS = ((), (0.37, 0.6))
MOST_SITES = 6
EXAMPLES = settings(
    max_examples=drawn(25),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


class Wanted:
    """A program with checks, the values of `site` that are tried, and what they give."""

    def __init__(self, case: Case, seed: int) -> None:
        self.made: Checked = checked(case.program, seed)
        self.args = case.args
        sites = range(1, self.made.sites + 1)
        some = random.Random(seed).sample(sites, min(MOST_SITES, len(sites)))
        self.of = {site: meaning(self.made.program, case.args, site) for site in (0, *some)}
        agree(self.of[0], evaluate(case.program, case.args), "no site")

    def stages(self) -> None:
        """Every stage of the pipeline means the same."""
        seen = []
        optimise(self.made.program, EXACT, (lambda name, p: seen.append((name, p)),), each_pass=True)
        for name, program in seen:
            for site, want in self.of.items():
                try:
                    agree(meaning(program, self.args, site), want, f"{name}, site {site}")
                except Exception as error:
                    raise AssertionError(f"{name}, site {site}:\n{print_program(program)}") from error

    def machine_code(self, target: str, vectors: int | None = None, *, optimised: bool = True) -> None:
        """So does machine code, in one piece and in chunks."""
        program = optimise(self.made.program, EXACT) if optimised else self.made.program
        options = EmitOptions(fast_math=False, vectors=vectors)
        kernels = [Kernel(t, runnable(target), options) for t in program.tasks]
        for site, want in self.of.items():
            args = [*self.args, np.asarray(np.int32(site))]
            for cuts in CUTS:
                got = outcome(lambda a=args, c=cuts: run_kernels(program, kernels, a, c))
                agree(got, want, f"{target}, site {site}, {cuts}")


def agree(got: Outcome, want: Outcome, where: str) -> None:
    """The same error, or the same results."""
    if isinstance(got, str) or isinstance(want, str):
        text = [x if isinstance(x, str) else "results" for x in (got, want)]
        assert text[0] == text[1], where
    else:
        compare(got, want)


def wanted(seed: int) -> Wanted:
    return Wanted(random_case(seed, 4), seed)


@pytest.mark.full
def test_half_of_the_sites_fail_and_half_are_not_reached() -> None:
    found = [w for seed in range(40) for w in list(wanted(seed).of.values())[1:]]
    failed = [w for w in found if isinstance(w, str)]
    assert len(found) > 120
    assert 0.3 * len(found) < len(failed) < 0.9 * len(found)
    assert any(w.startswith("check failed: check") for w in failed)
    assert any(w.startswith("index -") for w in failed)
    assert any(w.startswith(f"index {2**31 - 1} ") for w in failed)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_stages_of_task_programs(first: int) -> None:
    for seed in range(first, first + drawn(20)):
        wanted(seed).stages()


@EXAMPLES
@given(programs(), st.integers(0, 1000))
@pytest.mark.full
def test_stages_of_programs_with_control_flow(case: Case, seed: int) -> None:
    Wanted(case, seed).stages()


@pytest.mark.parametrize("target", TARGETS)
def test_machine_code_of_task_programs(target: str) -> None:
    for seed in range(drawn(5)):
        wanted(seed).machine_code(target)


@pytest.mark.full
@pytest.mark.parametrize(("target", "examples"), [("avx512", 12), ("avx2", 5), ("scalar", 5)])
def test_machine_code_of_programs_with_control_flow(target: str, examples: int) -> None:
    @settings(EXAMPLES, max_examples=drawn(examples))
    @given(programs(), st.integers(0, 1000), st.sampled_from([None, 1, 2, 4]), st.booleans())
    def one(case: Case, seed: int, vectors: int | None, optimised: bool) -> None:
        Wanted(case, seed).machine_code(target, vectors, optimised=optimised)

    one()


@pytest.mark.parametrize("target", ["avx512", "scalar"])
@pytest.mark.full
def test_machine_code_in_the_shortest_parts(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a function that is left by a failed check tells its caller."""
    monkeypatch.setattr("lowering.llvm.parts.PART", 1)
    monkeypatch.setattr("lowering.llvm.parts.WHOLE", 0)
    for seed in range(5, 5 + drawn(3)):
        wanted(seed).machine_code(target)

    @settings(EXAMPLES, max_examples=drawn(8))
    @given(programs(), st.integers(0, 1000), st.sampled_from([None, 1, 2]))
    def one(case: Case, seed: int, vectors: int | None) -> None:
        Wanted(case, seed).machine_code(target, vectors, optimised=False)

    one()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5000, 500))
def test_stages_of_many_task_programs(first: int) -> None:
    for seed in range(first, first + 500):
        wanted(seed).stages()


@pytest.mark.slow
@settings(EXAMPLES, max_examples=1500, derandomize=False)
@given(programs(tasks=2, statements=10, depth=4), st.integers(0, 10**6))
def test_stages_of_many_programs_with_control_flow(case: Case, seed: int) -> None:
    Wanted(case, seed).stages()


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_machine_code_of_many(target: str) -> None:
    for seed in range(5000, 5250):
        wanted(seed).machine_code(target, optimised=bool(seed % 2))

    @settings(EXAMPLES, max_examples=300, derandomize=False)
    @given(programs(tasks=2, statements=10, depth=4), st.integers(0, 10**6), st.sampled_from([None, 1, 2, 4]))
    def one(case: Case, seed: int, vectors: int | None) -> None:
        Wanted(case, seed).machine_code(target, vectors)

    one()
