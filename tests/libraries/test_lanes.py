"""JAX's libraries under `qd.vmap`, unchanged: the same values as under `jax.vmap`, in double precision."""

import importlib
import warnings

import jax
import numpy as np
import pytest

import qdtrace as qd
from tests.libraries.lanes import LONG, MODULES, SAMPLE, Lane, plain

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the libraries


def programs():
    # The programs hold arrays made when their module is imported.
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAXopt says that it is not maintained
        for module, name in MODULES.items():
            for program, lane in getattr(importlib.import_module(f"tests.libraries.{module}_lanes"), name).items():
                derived = {p for way in ("vjp", "jvp") for p in SAMPLE[module, way].split()}
                is_full = program in derived or f"{module}.{program}" in LONG
                marks = [pytest.mark.slow] if lane.slow else [pytest.mark.full] if is_full else []
                yield pytest.param(lane, id=f"{module}.{program}", marks=marks)


@pytest.mark.parametrize("lane", [*programs()])
def test_as_under_vmap(lane: Lane) -> None:
    with jax.enable_x64(True):
        want = plain(jax.jit(jax.vmap(lane.function))(*lane.arguments))
        got = plain(qd.vmap(lane.function)(*lane.arguments))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=lane.rtol, atol=lane.atol)
