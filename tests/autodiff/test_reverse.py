"""Reverse mode of random programs against JAX's derivative of the same run, and against forward mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.machine import CPU, GPU, Machine
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.loops import policy, thinning
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.primitives import CELL
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import verify_program
from tests.autodiff.by_jax import run
from tests.autodiff.derive import derive
from tests.autodiff.machines import limited, programs_for, stacks_of
from tests.autodiff.programs import KINDS, arguments, random_program
from tests.selection import drawn


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


@pytest.mark.sample(full=9)
@pytest.mark.parametrize("seed", sample(25, 8))
@pytest.mark.full
def test_random_programs(seed):
    check(seed)


@pytest.mark.sample(full=12)
@pytest.mark.parametrize("seed", sample(15, 5, first=200))
@pytest.mark.parametrize("steps", [2, 3, 8])
@pytest.mark.full
def test_segments(seed, steps):
    check(seed, machine=limited(GPU, steps=steps))


def thin(monkeypatch, kept_bits, radix_bits):
    """Small stacks, once `stack_bytes` are none: every loop runs states in between again."""
    monkeypatch.setattr(policy, "LEAST_BITS", kept_bits)
    monkeypatch.setattr(thinning, "RADIX_BITS", radix_bits)


@pytest.mark.full
@pytest.mark.sample(12, full=12)
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


@pytest.mark.sample(full=3)
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "smooth"])
def test_each_construct(kind):
    for seed in range(drawn(3)):
        check(seed, (kind, "smooth"))


BESIDE = """
program p(x: ref[f32,8], w: ref[f32,8], n: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = load w i
    c: f32, d: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry s = a, t = b
      u: f32 = OPERATION
      v: f32 = mul s 0.5:f32
      yield v, u
    store n d i
    store y c i
  return y, n
"""


OPERATIONS = ("sin t", "mul t t", "max t 0.1:f32", "floor t", "select true t 2.0:f32", "fma t t t")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_computed_beside_the_tangents_is_not_kept(operation):
    """Nothing but tangents asks for operands: a value that no derivative reads was kept for each iteration."""
    program = parse_program(BESIDE.replace("OPERATION", operation))
    derived = derive(program, [], [True, False], [True, False, False, False])
    verify_program(derived)
    assert not any(e.primitive is CELL for e in derived.all_eqns)
    x, w, zero, bar = (np.linspace(a, 1, 8, dtype=np.float32) for a in (0.1, 0.2, 1.0, 0.5))
    (got,) = evaluate(derived, [x, w, zero * 0, zero * 0, bar])
    np.testing.assert_array_equal(got, bar * np.float32(0.5**9))


def test_what_a_tangent_is_multiplied_by_is_kept():
    """The same loop, whose other value is a factor: here it is kept."""
    program = parse_program(BESIDE.replace("OPERATION", "sin t").replace("mul s 0.5:f32", "mul s t"))
    derived = derive(program, [], [True, False], [True, False, False, False])
    x, w, bar = (np.linspace(a, 1, 8, dtype=np.float32) for a in (0.1, 0.2, 0.5))
    (got,) = evaluate(derived, [x, w, np.zeros(8, np.float32), np.zeros(8, np.float32), bar])
    want = bar
    for _ in range(9):
        want, w = want * w, np.sin(w)
    np.testing.assert_allclose(got, want, rtol=1e-6)
