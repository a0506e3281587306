"""Functions of the maths library that are not inlined are compiled once for all tasks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.llvm.maths import definitions, library
from qdtrace.ir.types import DType
from qdtrace.stats import stats


def test_what_is_not_inlined_is_declared() -> None:
    cos = library.function_for("cos", DType.f32, 16)
    text = f"{definitions.collect([cos])}define float @f() {{\n  ret float 0.0\n}}\n"
    rest, called = definitions.without_calls(text)
    assert called == ("qdm.cos_by_quarters.f32x16",)
    assert "define internal <16 x float> @qdm.cos.f32x16(" in rest
    assert "declare <16 x float> @qdm.cos_by_quarters.f32x16(" in rest
    assert "llvm.fshl" not in rest  # only the slow path shifts words
    assert "define float @f()" in rest


def test_a_module_that_calls_nothing_stays() -> None:
    text = definitions.collect([library.function_for("exp", DType.f32, 8)])
    assert definitions.without_calls(text) == (text, ())


def test_a_module_of_one_function_exports_it_alone() -> None:
    text = library.module_of("qdm.reduce_huge.f32x16")
    exported = [line for line in text.splitlines() if line.startswith("define ") and "internal" not in line]
    assert len(exported) == 1
    assert "@qdm.reduce_huge.f32x16(" in exported[0]


def test_other_symbols_have_no_module() -> None:
    with pytest.raises(KeyError):
        library.module_of("qd_run")


@pytest.mark.full
def test_tasks_share_slow_paths() -> None:
    def run(x: Any) -> Any:
        a, b = qd.empty(x.shape), qd.empty(x.shape)
        for i in qd.range(x.shape[0]):
            a[i] = jnp.sin(x[i]) * 0.37
        for i in qd.range(x.shape[0]):
            b[i] = jnp.sin(x[x.shape[0] - 1 - i]) - 0.73
        return a, b

    x = np.concatenate([np.linspace(-10, 10, 37), [1e6, -3e7, 1e20, 3e38]]).astype(np.float32)
    options = {"fuse_tasks": "off", "offline_cache": False}
    jax.block_until_ready(qd.jit(run, options=options)(jnp.asarray(x[:7])))
    before = stats()
    a, b = qd.jit(run, options=options)(jnp.asarray(x))
    assert stats().compiled - before.compiled == 2  # the task that reads backwards, and the handler
    wanted = np.sin(x.astype(np.float64))
    np.testing.assert_allclose(a, wanted * 0.37, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b, wanted[::-1] - 0.73, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_double_precision_functions_are_called() -> None:
    @qd.jit
    def run(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = jnp.tan(x[i]) + jnp.cbrt(x[i]) * jax.lax.erf(x[i])
        return x

    with jax.enable_x64(True):
        x = jnp.asarray(np.concatenate([np.linspace(-3, 3, 50), [1e9, -1e15]]))
        wanted = jnp.tan(x) + jnp.cbrt(x) * jax.lax.erf(x)
        np.testing.assert_allclose(run(x), wanted, rtol=1e-12, atol=1e-12)
