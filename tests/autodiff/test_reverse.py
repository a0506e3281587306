"""Reverse mode of random programs against JAX's derivative of the same run, and against forward mode."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import qdtrace.autodiff.reverse as reverse_module
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.reverse import reverse
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import verify_program
from tests.autodiff.by_jax import run
from tests.autodiff.programs import KINDS, arguments, random_program


def check(seed: int, kinds=KINDS) -> None:
    program, args = random_program(seed, kinds), arguments(seed)
    floats = [k for k, a in enumerate(args) if a.dtype == np.float64]
    rng = np.random.default_rng(seed + 1)

    def of_floats(*values):
        full = list(args)
        for k, v in zip(floats, values, strict=True):
            full[k] = v
        return run(program, full)

    inputs = [program.params[k] for k in floats]
    active = active_variables(program, inputs)
    results = [v for v in program.results if v in active]
    with jax.enable_x64(True):
        primals, pull = jax.vjp(of_floats, *[args[k] for k in floats])
        given = [rng.normal(size=p.shape) * (v in active) for v, p in zip(program.results, primals, strict=True)]
        want = pull([jax.numpy.asarray(g) for g in given])
    derived = reverse(program, inputs, results)
    verify_program(derived)
    ours = [g for v, g in zip(program.results, given, strict=True) if v in active]
    got = evaluate(derived, [*args, *ours], check_races=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-8, atol=1e-9, err_msg=print_program(program))


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed):
    check(seed)


@pytest.mark.parametrize("seed", range(100, 115))
def test_small_stacks(seed, monkeypatch):
    """Every loop thins its stack, and runs states in between again."""
    for name, size in {"EVERY_STATE_UP_TO": 0, "KEPT": 3, "BETWEEN": 2}.items():
        monkeypatch.setattr(reverse_module, name, size)
    check(seed)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "smooth"])
def test_each_construct(kind):
    for seed in range(3):
        check(seed, (kind, "smooth"))
