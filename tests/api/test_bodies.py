"""Programs people write, compiled, against the reference interpreter."""

import jax
import numpy as np
import pytest

import qdtrace as qd
from tests.gpu.both_emitters import triton_where_it_can
from tests.importer.bodies import BODIES, CONDITIONAL

CODEGEN = ["auto", pytest.param("triton", marks=pytest.mark.gpu)]


@pytest.mark.sample(full=4)
@pytest.mark.parametrize("codegen", CODEGEN)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", [*BODIES, *CONDITIONAL])
def test_body(name: str, dtype: type, codegen: str) -> None:
    fn, args = {**BODIES, **CONDITIONAL}[name]
    with jax.enable_x64(dtype is np.float64), triton_where_it_can():
        given = [a.astype(dtype) if a.dtype.kind == "f" else a for a in args]
        got, want = (
            jax.tree.leaves(qd.block_until_ready(qd.jit(lambda *xs: fn(qd, *xs), options=options)(*given)))
            for options in ({"codegen": codegen}, {"debug": True})
        )
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        # rounding in another order, amplified by conditions and by loops: four roundings at most on x86-64
        scale = 32 * np.finfo(g.dtype).eps if g.dtype.kind == "f" else 0
        np.testing.assert_allclose(g, w, rtol=scale, atol=scale)
