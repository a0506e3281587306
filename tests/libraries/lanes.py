"""The programs of this folder: functions of one element, with arguments for a few lanes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LANES = 5
MODULES = {
    "equinox": "EQUINOX",
    "lineax": "LINEAX",
    "optimistix": "OPTIMISTIX",
    "diffrax": "DIFFRAX",
    "others": "OTHERS",
}
SAMPLE = {
    ("equinox", "vjp"): "mlp_gradient loop_checkpointed loop_bounded loop_buffers_bounded no_error",
    ("equinox", "jvp"): "loop_lax",
    ("lineax", "vjp"): "lu cg",
    ("lineax", "jvp"): "svd",
    ("optimistix", "vjp"): "newton bisection",
    ("optimistix", "jvp"): "gauss_newton fixed_point",
    ("diffrax", "vjp"): "direct_adjoint",
    ("diffrax", "jvp"): "forward_mode interpolation",
    ("others", "vjp"): "fixed_rule jaxopt_bisection jaxopt_fixed_point interpax_linear",
    ("others", "jvp"): "sampled",
}
"""Derivatives in `make test`, by library and way: each kind of loop, of solver and of adjoint in a case that does not
take long. Their values are compared with them, so `test_lanes` leaves them to `make test-all`."""
ALL = {
    ("lineax", "vjp"): "qr cholesky tridiagonal",
    ("lineax", "jvp"): "bicgstab",
    ("diffrax", "vjp"): "saved_at_steps backsolve steady_state",
    ("others", "vjp"): "odeint",
    ("others", "jvp"): "interpax_cubic",
}
"""Derivatives in `make test-all` on top."""
LONG = {
    "diffrax.checkpointed_gradient",
    "diffrax.implicit_kvaerno3",
    "diffrax.sde_euler",
    "equinox.loop_checkpointed_gradient",
    "lineax.gmres",
}
"""Values that `make test-all` compares: their loop, solver or adjoint stands in a case above, or in tests/autodiff."""


@dataclass(frozen=True)
class Lane:
    """A function of one element, one array of lanes for each of its arguments, and how near results must be."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    rtol: float
    atol: float
    slow: bool
    single: float
    """How near results in single precision must be, beside the largest."""


class Lanes(dict[str, Lane]):
    """Programs by name."""

    def __call__(
        self, *arguments: Any, rtol: float = 1e-9, atol: float = 1e-11, slow: bool = True, single: float = 1e-4
    ) -> Any:
        """Adds the decorated function."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            name = function.__name__
            assert name not in self, name
            self[name] = Lane(function, arguments, rtol, atol, slow, single)
            return function

        return add


def spread(low: float, high: float) -> np.ndarray:
    """A value for each lane."""
    return np.linspace(low, high, LANES)


def uniform(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> np.ndarray:
    """An array for each lane."""
    return np.random.default_rng(seed).uniform(low, high, (LANES, *shape))


def keys(seed: int = 0) -> np.ndarray:
    """Words of a key for each lane."""
    return np.random.default_rng(seed).integers(0, 2**32, (LANES, 2), np.uint32)


def plain(tree: Any) -> list[np.ndarray]:
    """Leaves as NumPy arrays; keys as words."""
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(tree)
    ]
