"""Random programs of many tasks as whole calls on a fake device, against the interpreter; also with failing checks."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest

from qdtrace.analysis.machine import GPU
from qdtrace.config import Options
from qdtrace.errors import QdError
from qdtrace.interpret.reference import evaluate
from qdtrace.passes.pipelines import optimise
from tests.differential.checked import checked, meaning
from tests.differential.compare import compare
from tests.differential.task_programs import random_case
from tests.gpu.fake import fake_backend
from tests.runtime.programs import uncached

OPTIONS = uncached(block_dim=4, fast_math=False)
ALONE = uncached(block_dim=4, fast_math=False, fuse_tasks="off")


@pytest.mark.parametrize("seed", range(100, 112))
def test_calls_agree_with_the_interpreter(seed: int) -> None:
    """As written, and after all passes, which turn fills into initial values; twice, as scratch is dirty then."""
    case = random_case(seed)
    wanted = evaluate(case.program, case.args)
    with jax.enable_x64(True), fake_backend() as (backend, _):
        for program in (case.program, optimise(case.program, Options(), machine=GPU)):
            call = jax.jit(backend.compile(program, OPTIONS if seed % 3 else ALONE).call)
            for _ in range(2):
                compare([np.asarray(x) for x in call(*case.args)], wanted)


@pytest.mark.parametrize("seed", range(6))
def test_failures_are_those_of_the_interpreter(seed: int) -> None:
    """Where one check can fail, its error is found after the call, and no other; the next call is right again."""
    case = random_case(seed, 3)
    made = checked(case.program, seed)
    with jax.enable_x64(True), fake_backend() as (backend, _):
        call = jax.jit(backend.compile(made.program, OPTIONS).call)
        for site in (0, *random.Random(seed).sample(range(1, made.sites + 1), min(3, made.sites)), 0):
            got = [np.asarray(x) for x in call(*case.args, np.int32(site))]
            error = backend.words.failure() if made.sites else None
            want = meaning(made.program, case.args, site)
            if isinstance(want, str):
                assert isinstance(error, QdError)
                assert str(error) == want
            else:
                assert error is None
                compare(got, want)
