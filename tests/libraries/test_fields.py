"""Packages of a field as lanes, unchanged: orbits, filters, samplers, contacts, quantum systems, games.

Values and derivatives are those of `jax.vmap`, in single and in double precision. A package that is not installed (the
extra `fields`), or that this release of jax breaks, is skipped with the reason.
"""

import importlib
import warnings
from typing import Any

import jax
import numpy as np
import pytest

import qdtrace as qd
from tests.libraries.lanes import Lane, plain
from tests.libraries.test_outside import NONE, derivative

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages

MODULES = (
    "astrojax", "jaxoplanet", "dynamax", "volax", "blackjax", "mjx", "qpax", "dynamiqs", "ripple", "gymnax", "pgx",
)  # fmt: skip


def programs():
    for module in MODULES:
        with jax.enable_x64(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = getattr(importlib.import_module(f"tests.libraries.{module}_lanes"), module.upper())
            except Exception as error:  # whatever a package raises with a jax that it does not know
                reason = f"{type(error).__name__}: {error}"
                yield pytest.param(None, "", 0, id=module, marks=pytest.mark.skip(reason=reason))
                continue
        for program, lane in found.items():
            for way in ("value", "vjp", "jvp"):
                for bits in (32, 64):
                    marks = [] if not lane.slow and (way, bits) == ("value", 64) else [pytest.mark.slow]
                    yield pytest.param(lane, way, bits, id=f"{module}.{program}.{way}.{bits}", marks=marks)


def run(batched: Any, lane: Lane, way: str) -> list[np.ndarray]:
    if way == "value":
        return plain(jax.jit(batched)(*lane.arguments))
    return derivative(batched, lane.arguments, way)


@pytest.mark.parametrize(("lane", "way", "bits"), [*programs()])
def test_as_under_vmap(lane: Lane, way: str, bits: int) -> None:
    with jax.enable_x64(bits == 64):
        try:
            want = run(jax.vmap(lane.function), lane, way)
        except (TypeError, ValueError) as error:
            if way == "value" or not NONE.search(f"{error}"):
                raise
            pytest.skip(f"JAX has none: {str(error).splitlines()[0]}")
        got = run(qd.vmap(lane.function), lane, way)
    jax.clear_caches()
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        if w.dtype.kind not in "fc":
            np.testing.assert_array_equal(g, w)
            continue
        rtol = lane.rtol if bits == 64 else lane.single
        largest = np.max(np.abs(w[np.isfinite(w)]), initial=1.0)  # sums that cancel have the error of their terms
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * largest)
