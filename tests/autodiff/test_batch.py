"""A batched program against a loop over the batch."""

import numpy as np
import pytest

from qdtrace.batching.batch import batch
from qdtrace.errors import InterpreterError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.verify import verify_program
from tests.autodiff.programs import arguments, random_program
from tests.differential.task_programs import random_case

SIZE = 3


def check(program, args, seed) -> None:
    rng = np.random.default_rng(seed)
    # indices stay, so that iterations meet no others
    mask = [a.dtype.kind == "f" and bool(rng.integers(3)) for a in args]
    each = []
    for _ in range(SIZE):
        perm = [rng.permutation(a.reshape(-1)).reshape(a.shape) for a in args]
        each.append([p if m else a for p, m, a in zip(perm, mask, args, strict=True)])
    try:
        wanted = [evaluate(program, one, check_races=True) for one in each]
    except InterpreterError:
        # the program was drawn to be right on `args`: shuffled bounds or indices may race or leave a buffer
        pytest.skip("not valid on these arguments")
    stacked = [np.stack([e[k] for e in each]) if m else args[k] for k, m in enumerate(mask)]
    made = batch(program, mask, SIZE)
    verify_program(made)
    got = evaluate(made, stacked, check_races=True)
    for b, want in enumerate(wanted):
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g[b], w)


@pytest.mark.parametrize("seed", range(40))
def test_programs_of_floats(seed):
    check(random_program(seed), arguments(seed), seed)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(40))
def test_programs_of_tasks(seed):
    """Dynamic bounds, serial tasks, accumulations, atomics."""
    case = random_case(seed)
    program, args = case.program, list(case.args)
    check(program, args, seed)
