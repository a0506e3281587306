"""The stencils of the benchmark at small sizes: values and adjoints are JAX's, and they gather."""

import re
from functools import partial

import jax
import numpy as np
import pytest

import qdtrace as qd
from benchmarks.stencils import Work, adjoint, works

WORKS = {work.name: work for work in works(1 / 16)}


CASES = [
    pytest.param(work, id=name, marks=pytest.mark.slow if "lattice" in name else ())  # JAX compiles long
    for name, work in WORKS.items()
]


@pytest.mark.full
@pytest.mark.parametrize("work", CASES)
def test_a_work(work: Work) -> None:
    want = jax.jit(work.theirs)(work.x)
    scale = float(abs(want).max())
    np.testing.assert_allclose(jax.jit(work.ours)(work.x), want, rtol=1e-5, atol=1e-5 * scale)
    want, got = (jax.jit(partial(adjoint, f))(work.x, want / scale) for f in (work.theirs, work.ours))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(abs(want).max()))


@pytest.mark.full
def test_adjoints_write_only_memory_of_their_own() -> None:
    """They accumulate nowhere, and clear no adjoint of what the value stored, which XLA would copy for it."""
    for work in WORKS.values():
        bar = jax.eval_shape(work.theirs, work.x)
        graph = qd.jit(partial(adjoint, work.ours)).lower(work.x, bar).graph()
        assert "accum" not in graph, work.name
        params = re.findall(r"(\w+): ref", graph.splitlines()[0])
        assert params
        assert not {*params} & {*re.findall(r"^ +store (\w+) ", graph, re.MULTILINE)}, work.name
