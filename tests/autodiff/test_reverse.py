"""Reverse mode of random programs against JAX's derivative of the same run, and against forward mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.machine import CPU, GPU, Machine
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.loops import policy, thinning
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import verify_program
from tests.autodiff.by_jax import run
from tests.autodiff.derive import derive
from tests.autodiff.machines import limited, programs_for, stacks_of
from tests.autodiff.programs import KINDS, arguments, random_program


def sample(count, usual, first=0):
    """Seeds, of which the first ones run by default."""
    return [pytest.param(first + k, marks=[pytest.mark.slow] * (k >= usual)) for k in range(count)]


def check(seed: int, kinds=KINDS, machine: Machine = CPU) -> None:
    program, args = random_program(seed, kinds), arguments(seed)
    floats = [k for k, a in enumerate(args) if a.dtype == np.float64]
    rng = np.random.default_rng(seed + 1)

    def of_floats(*values):
        full = list(args)
        for k, v in zip(floats, values, strict=True):
            full[k] = v
        return run(program, full)

    active = active_variables(program, [program.params[k] for k in floats])
    with jax.enable_x64(True):
        primals, pull = jax.vjp(of_floats, *[args[k] for k in floats])
        given = [rng.normal(size=p.shape) * (v in active) for v, p in zip(program.results, primals, strict=True)]
        want = pull([jax.numpy.asarray(g) for g in given])
    wrt, out = [k in floats for k in range(len(args))], [v in active for v in program.results]
    derived = derive(program, [], out, wrt, stacks=stacks_of(machine))
    verify_program(derived)
    ours = [g for v, g in zip(program.results, given, strict=True) if v in active]
    got = evaluate(derived, [*args, *ours], check_races=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-8, atol=1e-9, err_msg=print_program(program))


@pytest.mark.parametrize("seed", sample(25, 12))
def test_random_programs(seed):
    check(seed)


@pytest.mark.parametrize("seed", sample(15, 5, first=200))
@pytest.mark.parametrize("steps", [2, 3, 8])
def test_segments(seed, steps):
    check(seed, machine=limited(GPU, steps=steps))


def thin(monkeypatch, kept_bits, radix_bits):
    """Small stacks, once `stack_bytes` are none: every loop runs states in between again."""
    monkeypatch.setattr(policy, "LEAST_BITS", kept_bits)
    monkeypatch.setattr(thinning, "RADIX_BITS", radix_bits)


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("seed", sample(15, 6, first=100))
def test_small_stacks(seed, steps, monkeypatch):
    thin(monkeypatch, 1 + seed % 2, 1 + seed % 3)
    check(seed, machine=limited(GPU, steps=steps, stack_bytes=0, open_stack_bytes=0))


@pytest.mark.parametrize("steps", [1, 2, 8])
@pytest.mark.parametrize(("kept_bits", "radix_bits"), [(1, 1), (2, 1), (1, 2), (2, 3), (5, 4)])
def test_every_number_of_iterations(kept_bits, radix_bits, steps, monkeypatch):
    """Element n runs n times; lanes of a vector leave their loop one after the other."""
    thin(monkeypatch, kept_bits, radix_bits)
    n = 300
    counts = np.random.default_rng(0).permutation(n).astype(np.int32)
    length = jnp.asarray(counts)

    def f(x):
        y = qd.empty(x.shape, x.dtype)
        for i in qd.range(n):
            state, k = qd.local(x[i]), qd.local(0)
            for _ in qd.while_(lambda: k.value < length[i]):  # noqa: B023
                state.value = state.value + 0.05 * jnp.sin(state.value)
                k.value = k.value + 1
            y[i] = state.value
        return y

    x = np.linspace(0.1, 2.0, n, dtype=np.float32)
    with programs_for(limited(CPU, steps=steps, stack_bytes=0, open_stack_bytes=0)):
        got = jax.grad(lambda x: qd.jit(f)(x).sum())(x)
    want = np.ones(n)
    for i, count in enumerate(counts):
        value = float(x[i])
        for _ in range(count):
            want[i] *= 1 + 0.05 * np.cos(value)
            value += 0.05 * np.sin(value)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-7)  # errors of up to 300 factors


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "smooth"])
def test_each_construct(kind):
    for seed in range(3):
        check(seed, (kind, "smooth"))
