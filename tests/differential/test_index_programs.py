"""Elements that random integers name, in vectors and in kernels: as written, and after all passes."""

import pytest

from qdtrace.config import Options
from qdtrace.passes.pipelines import optimise
from tests.differential.index_programs import index_case
from tests.lowering.harness import agrees

LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 300)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [*range(8), *LONG])
def test_indices_from_anywhere(seed: int) -> None:
    case = index_case(seed)
    for program in (case.program, optimise(case.program, Options())):
        agrees(program, case.args, ("avx2",), cuts=(0.4,))
