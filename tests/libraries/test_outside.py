"""Lanes of JAX's libraries differentiated from outside: as under `jax.vmap`, values and derivatives.

Inputs and results without derivatives (keys, numbers of steps) are left out.
"""

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests import selection
from tests.libraries.lanes import ALL, MODULES, SAMPLE, Lane

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the libraries

NONE = re.compile(
    "Reverse-mode differentiation does not work|forward-mode autodiff .jvp. to a custom_vjp|Unexpected (co)?tangent"
    "|Cannot reverse-mode autodifferentiate|Argument .* is not a valid JAX type"  # of eqxi.noinline
)
"""What JAX says of a derivative that `jax.vmap(f)` has not."""


def programs():
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, name in MODULES.items():
            for program, lane in getattr(importlib.import_module(f"tests.libraries.{module}_lanes"), name).items():
                for way in ("vjp", "jvp"):
                    marks = [pytest.mark.slow]
                    if program in SAMPLE[module, way].split():
                        marks = []
                    elif program in ALL.get((module, way), "").split():
                        marks = [pytest.mark.full]
                    yield pytest.param(f"{module}.{program}", lane, way, id=f"{module}.{program}.{way}", marks=marks)


def has_derivative(x: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(x).dtype, jnp.inexact)


def wave(x: Any, start: float) -> Any:
    """A direction, another number for each element."""
    return jnp.cos(start + jnp.arange(jnp.size(x))).reshape(jnp.shape(x)).astype(jnp.asarray(x).dtype)


def derivative(batched: Callable[..., Any], arguments: tuple[Any, ...], way: str) -> list[Any]:
    """Returns the results with their tangents, or with cotangents of the arguments."""
    moved = [k for k, x in enumerate(arguments) if has_derivative(x)]

    def smooth(*values: Any) -> list[Any]:
        given = dict(zip(moved, values, strict=True))
        outs = batched(*(given.get(k, x) for k, x in enumerate(arguments)))
        return [x for x in jax.tree.leaves(outs) if has_derivative(x)]

    def derived(*values: Any) -> Any:
        if way == "jvp":
            return jax.jvp(smooth, values, tuple(wave(x, 1.0) for x in values))
        outs, pull = jax.vjp(smooth, *values)
        return outs, pull([wave(x, 0.0) for x in outs])

    return [np.asarray(x) for x in jax.tree.leaves(jax.jit(derived)(*(arguments[k] for k in moved)))]


@pytest.mark.parametrize(("name", "lane", "way"), [*programs()])
@pytest.mark.full
def test_as_under_vmap(name: str, lane: Lane, way: str) -> None:
    with jax.enable_x64(True):
        try:
            want = derivative(jax.vmap(lane.function), lane.arguments, way)
        except (TypeError, ValueError, RuntimeError) as error:
            if not NONE.search(str(error)):
                raise
            # nothing to compare with: JAX refuses this mode of `jax.vmap(f)` itself, in words of `NONE`
            pytest.skip(f"JAX has none: {str(error).splitlines()[0]}")
        got = derivative(qd.vmap(lane.function), lane.arguments, way)
    if not selection.takes_sample:
        jax.clear_caches()
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=lane.rtol, atol=lane.atol)
