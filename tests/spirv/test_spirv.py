"""SPIR-V of tasks: what LLVM writes, what Khronos' validator says of it, and what pocl computes by it."""


from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.simt.emit import emit_kernels
from lowering.spirv.backend import SpirvBackend, device
from lowering.spirv.generate import assembly, with_spaces
from qdtrace.config import current
from qdtrace.errors import BackendError
from qdtrace.interpret.reference import evaluate
from tests.spirv.tools import has_validator, run, translator, validated

pytestmark = pytest.mark.cpu
X = np.linspace(0.1, 3, 70, dtype=np.float32)
K = (np.arange(70, dtype=np.int32) * 7) % 16
TABLE = np.linspace(0, 1, 16, dtype=np.float32)


def total(x):
    s = qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        s[()] += x[i]
    return s


def histogram(k):
    h = qd.zeros(16, jnp.int32)
    for i in qd.range(k.shape[0]):
        h[k[i]] += 1
    return h


RUN = {
    "while": (qd.vmap(lambda x: jax.lax.while_loop(lambda s: s > 0.1, lambda s: s * 0.5, x)), X),
    "functions": (qd.vmap(lambda x: jnp.sin(x) * jnp.exp(-x) + jnp.log(x) + jnp.tanh(x) + x**1.7), X),
    "branches": (qd.vmap(lambda x: jax.lax.cond(x > 1, jnp.cos, lambda x: x * x, x)), X),
    "scan": (qd.vmap(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 1.1, c), x, None, length=7)[1].sum()), X),
    "integers": (qd.vmap(lambda k: (k * 3 + 1) // 2 % 5 ^ 7), K),
    "look-up": (qd.vmap(lambda k: jnp.asarray(TABLE)[k]), K),
    "random numbers": (qd.vmap(lambda k: jax.random.uniform(jax.random.key(k))), K),
    "rounding": (qd.vmap(lambda x: jnp.round(x * 3) + jnp.floor(x) + (x * 5).astype(jnp.int32)), X),
    "a sum": (total, X),
}
VALID = {**RUN, "histogram": (histogram, K)}


def optimised(f, x):
    (program,) = qd.jit(f).lower(x, target="gfx942").programs
    return program.optimised_for(device().machine)


def texts(f, x) -> list[str]:
    backend = SpirvBackend()
    return backend.texts(optimised(f, x), current(), "spirv")


@pytest.mark.full
def test_a_kernel_has_an_entry_point_and_generic_pointers_are_those_of_spirv() -> None:
    (text,) = texts(*RUN["while"])
    assert "OpEntryPoint Kernel" in text
    assert "OpMemoryModel Physical64 OpenCL" in text
    given = with_spaces(
        "%a = alloca i8, addrspace(5)\n%b = addrspacecast ptr addrspace(1) %r to ptr\nstore i8 0, ptr %b"
    )
    assert given == (
        "%a = alloca i8\n%b = addrspacecast ptr addrspace(1) %r to ptr addrspace(4)\nstore i8 0, ptr addrspace(4) %b"
    )


def test_what_llvm_does_not_know_is_refused_by_its_words() -> None:
    def scattered(k):
        s = qd.zeros(100_000, jnp.float32)
        for i in qd.range(k.shape[0]):
            s[k[i]] += 0.5
        return s

    with pytest.raises(BackendError, match="LLVM makes no SPIR-V of this task") as caught:
        texts(scattered, K)
    assert "SPV_EXT_shader_atomic_float_add" in str(caught.value)


def test_nothing_runs_by_it() -> None:
    with pytest.raises(BackendError, match="XLA has no devices that run SPIR-V"):
        SpirvBackend().words  # noqa: B018


@pytest.mark.skipif(not has_validator(), reason="needs spirv-as and spirv-val")
@pytest.mark.parametrize("name", VALID)
def test_the_validator_takes_it(name: str, tmp_path: Path) -> None:
    for text in texts(*VALID[name]):
        validated(text, tmp_path)


@pytest.mark.skipif(translator() is None or not has_validator(), reason="needs llvm-spirv and the validator")
@pytest.mark.parametrize("name", RUN)
def test_pocl_computes_what_the_interpreter_does(name: str) -> None:
    pytest.importorskip("pyopencl")
    f, x = RUN[name]
    program = optimised(f, x)
    args = [np.array(x)]
    for got, want in zip(run(program, [a.copy() for a in args]), evaluate(program, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)  # f32 functions; sums of 70 numbers


@pytest.mark.full
def test_a_module_of_each_kernel_has_its_own_definitions() -> None:
    (task,) = optimised(*RUN["a sum"]).tasks
    made, refusal = assembly(emit_kernels(task, device()).text)
    assert made.count("OpEntryPoint") > 0, refusal
