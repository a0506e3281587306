"""Quiet loops vector after vector: one block an iteration, the same results by any number of vectors."""

import re

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from tests.lowering.harness import Kernel, agrees, run_kernels, runnable

N = 83


def orbit(kind: str, *, most: str = "40", further: str = "", step: str = "add kx a") -> Program:
    """Points that move until they are far, or have made some steps; each lane keeps its number of steps."""
    return parse_program(f"""program p(x: ref[{kind},{N}], y: ref[{kind},{N}], z: ref[i32,{N}], w: ref[{kind},{N}])
  range_for i in 0:i32 : {N}:i32 {{refill=false}}
    a: {kind} = load x i
    b: {kind} = load y i
    u_1: {kind}, v_1: {kind}, k_1: i32 = while carry u = 0.0:{kind}, v = 0.0:{kind}, k = 0:i32
      uu: {kind} = mul u u
      vv: {kind} = mul v v
      r: {kind} = add uu vv
      near: bool = lt r 4.0:{kind}
      few: bool = lt k {most}:i32
      on: bool = and near few
      test on
      xx: {kind} = mul u u
      yy: {kind} = mul v v
      kx: {kind} = sub xx yy
{further}      p: {kind} = {step}
      two: {kind} = mul u 2.0:{kind}
      uv: {kind} = mul two v
      q: {kind} = add uv b
      m: i32 = add k 1:i32
      yield p, q, m
    store z k_1 i
    store w v_1 i
  return z, w
""")


def text(program: Program, target: str, vectors: int, **options: bool) -> str:
    return emit_task(program.tasks[0], Target.named(target), EmitOptions(vectors=vectors, **options)).text


def loop(found: str) -> list[str]:
    """The lines of the first loop's block behind its phis."""
    block = re.search(r"^while\d+:\n(.*?)^  br ", found, re.MULTILINE | re.DOTALL)
    assert block is not None
    return [line for line in block[1].splitlines() if " phi " not in line]


def points(kind: type[np.floating]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    one, two = rng.uniform(-1, 0.5, N).astype(kind), rng.uniform(-0.7, 0.7, N).astype(kind)
    return [one, two, np.zeros(N, np.int32), np.zeros(N, kind)]


@pytest.mark.parametrize("vectors", [2, 3, 4])
@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_an_iteration_is_one_block_vector_after_vector(target: str, vectors: int) -> None:
    lines = loop(text(orbit("f32"), target, vectors))
    reads = [k for k, line in enumerate(lines) if "call void asm" in line]
    assert len(reads) == vectors
    compares = [k for k, line in enumerate(lines) if "fcmp olt" in line]
    edges = [-1, *reads]
    assert all(a < k < b for a, k, b in zip(edges, compares, reads, strict=False))
    assert sum("@llvm.fma" in line for line in lines) == 3 * vectors


def test_one_vector_and_other_processors_keep_the_order() -> None:
    assert "asm" not in text(orbit("f32"), "avx2", 1)
    assert "asm" not in text(orbit("f32"), "neon", 2)
    assert "asm" not in text(orbit("f64"), "avx2", 2)  # masks of four lanes


def test_products_stay_apart_without_fast_math() -> None:
    assert "@llvm.fma" not in text(orbit("f32"), "avx2", 3, fast_math=False)


BRANCH = """\
      far: bool = gt kx 0.25:{kind}
      c: {kind} = if far
        e: {kind} = mul kx 0.5:{kind}
        yield e
      else
        yield kx
"""
LOOPS = {
    "plain": {},
    "no steps": {"most": "0"},
    "one step": {"most": "1"},
    "eight steps": {"most": "8"},
    "nine steps": {"most": "9"},
    "values that the next ones are not made of": {"step": "neg a"},
    "a branch": {"further": BRANCH, "step": "add c a"},
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_results(kind: str, name: str) -> None:
    settings = {k: v.format(kind=kind) for k, v in LOOPS[name].items()}
    args = points(np.float32 if kind == "f32" else np.float64)
    agrees(orbit(kind, **settings), args, ["avx512", "avx2"], vectors=(1, 2, 3, 4))


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_results_with_fused_products(target: str) -> None:
    program, args = orbit("f32"), points(np.float32)
    found = []
    for vectors in (1, 2, 4):
        kernels = [Kernel(t, runnable(target), EmitOptions(vectors=vectors)) for t in program.tasks]
        found.append(run_kernels(program, kernels, args, ()))
    for got in found:
        far = np.abs(got[0] - evaluate(program, args)[0])
        assert (far > 0).mean() < 0.1  # a product that is not rounded leads a few lanes elsewhere
