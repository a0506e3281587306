"""Forward mode of random programs against JAX's derivative of the same run."""

import jax
import numpy as np
import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.verify import verify_program
from tests.autodiff.by_jax import run
from tests.autodiff.forward import forward
from tests.autodiff.programs import KINDS, arguments, random_program


def check(seed: int, kinds=KINDS) -> None:
    program, args = random_program(seed, kinds), arguments(seed)
    verify_program(program)
    floats = [k for k, a in enumerate(args) if a.dtype == np.float64]
    rng = np.random.default_rng(seed + 1)
    directions = [rng.normal(size=args[k].shape) for k in floats]

    def of_floats(*values):
        full = list(args)
        for k, v in zip(floats, values, strict=True):
            full[k] = v
        return run(program, full)

    with jax.enable_x64(True):
        primals, want = jax.jvp(of_floats, [args[k] for k in floats], directions)
    for ours, theirs in zip(evaluate(program, args), primals, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    derived, tangents = forward(program, [program.params[k] for k in floats])
    verify_program(derived)
    got = evaluate(derived, [*args, *directions])
    active = [k for k, v in enumerate(program.results) if v in tangents]
    for k, ours in zip(active, got, strict=True):
        np.testing.assert_allclose(ours, want[k], rtol=1e-9, atol=1e-10)
    for k, theirs in enumerate(want):
        assert k in active or not np.asarray(theirs).any()


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(10))
def test_random_programs(seed):
    check(seed)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "smooth"])
def test_each_construct(kind):
    for seed in range(3):
        check(seed, (kind, "smooth"))
