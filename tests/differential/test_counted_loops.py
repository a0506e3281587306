"""Loops that count, drawn at random: after all passes, in vectors and in kernels they do what was written."""

import pytest

from qdtrace.config import Options
from qdtrace.passes.pipelines import optimise
from tests.differential.counted_loops import counted_case
from tests.lowering.harness import agrees
from tests.passes.harness import assert_same_results

EXACT = Options(fast_math=False)
LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 400)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [*range(8), *LONG])
def test_after_all_passes(seed: int) -> None:
    case = counted_case(seed)
    made = optimise(case.program, EXACT)
    assert_same_results(case.program, made, case.args)
    agrees(made, case.args, ("avx2",), cuts=(0.4,))


@pytest.mark.full
def test_what_is_drawn() -> None:
    """Loops that become a `for`, loops that stay, and both of them with other loops inside."""
    found = set()
    for seed in range(60):
        made = optimise(counted_case(seed).program, EXACT)
        found.add(tuple(sorted(e.primitive.name for e in made.all_eqns if e.primitive.loops)))
    assert found >= {("for",), ("while",), ("for", "for"), ("for", "while")}
