"""Random programs on every kind of CPU target: bit for bit what the interpreter gives (without fast_math)."""

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lowering.llvm.options import EmitOptions
from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.passes.pipelines import optimise
from tests.differential.compare import EXACT, Tolerance, compare
from tests.differential.corpus import Case, replay
from tests.differential.dtype_programs import dtype_case
from tests.differential.programs import programs
from tests.lowering.harness import execute
from tests.runtime.programs import compiled
from tests.selection import drawn

CUTS = ((), (0.37, 0.6))
# the maths library promises 4 ulp, the interpreter rounds once
FUNCTIONS = Tolerance(ulps=5)


def agrees(case: Case, target: str, vectors: int | None, cuts: tuple[float, ...], tolerance: Tolerance) -> None:
    options = EmitOptions(fast_math=False, vectors=vectors)
    compare(execute(case.program, case.args, target, options, cuts), evaluate(case.program, case.args), tolerance)


def check(target: str, examples: int, tolerance: Tolerance = EXACT, **shape: object) -> None:
    """Runs the emitter on random programs."""

    @settings(
        max_examples=drawn(examples),
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    @given(programs(**shape), st.sampled_from([None, 1, 2, 4]), st.sampled_from(CUTS))
    def one(case: Case, vectors: int | None, cuts: tuple[float, ...]) -> None:
        agrees(case, target, vectors, cuts, tolerance)

    one()


@pytest.mark.parametrize(("target", "examples"), [("avx512", 40), ("avx2", 15), ("portable", 15), ("scalar", 15)])
@pytest.mark.full
def test_targets(target: str, examples: int) -> None:
    check(target, examples)


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_functions(target: str) -> None:
    check(target, 10, FUNCTIONS, functions=True, tasks=1)


@pytest.mark.parametrize("target", ["avx512", "scalar"])
def test_after_the_pipeline(target: str) -> None:
    @settings(max_examples=drawn(15), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs())
    def one(case: Case) -> None:
        after = optimise(case.program, Options(fast_math=False))
        compare(execute(after, case.args, target), evaluate(case.program, case.args))

    one()


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in replay()])
def test_corpus(case: Case) -> None:
    for target in ("avx512", "avx2", "scalar"):
        agrees(case, target, None, (), EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx512", "avx2", "portable", "scalar"])
def test_many(target: str) -> None:
    check(target, 1500, statements=10, depth=4)


LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(600, 900)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [*range(500, 508), *LONG])
def test_dtypes_and_ranges_from_anywhere(seed: int) -> None:
    """Whole calls, as written and after all passes."""
    case = dtype_case(seed)
    wanted = evaluate(case.program, case.args)
    for program in (case.program, optimise(case.program, Options())):
        with jax.enable_x64(True):
            compare([np.asarray(x) for x in jax.jit(compiled(program, fast_math=False).call)(*case.args)], wanted)
