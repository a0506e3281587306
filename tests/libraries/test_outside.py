"""Derivatives of lanes of JAX's libraries from outside: those of `qd.vmap(f)` are those of `jax.vmap(f)`.

Inputs and results without derivatives (keys, numbers of steps) are left out.
"""

from __future__ import annotations

import importlib
import re
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.libraries.test_lanes import MODULES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.libraries.lanes import Lane

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the libraries

SAMPLE = {
    ("equinox", "vjp"): "mlp_gradient loop_checkpointed loop_bounded loop_buffers_bounded no_error",
    ("equinox", "jvp"): "loop_lax",
    ("lineax", "vjp"): "lu qr cholesky cg tridiagonal",
    ("lineax", "jvp"): "svd bicgstab",
    ("optimistix", "vjp"): "newton bisection",
    ("optimistix", "jvp"): "gauss_newton fixed_point",
    ("diffrax", "vjp"): "saved_at_steps direct_adjoint backsolve steady_state",
    ("diffrax", "jvp"): "forward_mode interpolation",
    ("others", "vjp"): "fixed_rule jaxopt_bisection jaxopt_fixed_point interpax_linear odeint",
    ("others", "jvp"): "sampled interpax_cubic",
}
"""Part of the default run: each library, kind of loop, solver and adjoint in a case that does not take long."""

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
                    marks = [] if program in SAMPLE[module, way].split() else [pytest.mark.slow]
                    yield pytest.param(f"{module}.{program}", lane, way, id=f"{module}.{program}.{way}", marks=marks)


def has_derivative(x: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(x).dtype, jnp.inexact)


def wave(x: Any, start: float) -> Any:
    """A direction, another number for each element."""
    return jnp.cos(start + jnp.arange(jnp.size(x))).reshape(jnp.shape(x)).astype(jnp.asarray(x).dtype)


def derivative(batched: Callable[..., Any], arguments: tuple[Any, ...], way: str) -> list[Any]:
    """Tangents of the results, or cotangents of the arguments."""
    moved = [k for k, x in enumerate(arguments) if has_derivative(x)]

    def smooth(*values: Any) -> list[Any]:
        given = dict(zip(moved, values, strict=True))
        outs = batched(*(given.get(k, x) for k, x in enumerate(arguments)))
        return [x for x in jax.tree.leaves(outs) if has_derivative(x)]

    def derived(*values: Any) -> Any:
        if way == "jvp":
            return jax.jvp(smooth, values, tuple(wave(x, 1.0) for x in values))[1]
        outs, pull = jax.vjp(smooth, *values)
        return pull([wave(x, 0.0) for x in outs])

    return [np.asarray(x) for x in jax.jit(derived)(*(arguments[k] for k in moved))]


@pytest.mark.parametrize(("name", "lane", "way"), [*programs()])
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
    jax.clear_caches()
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=lane.rtol, atol=lane.atol)
