"""The programs of this folder: functions of one element, with arguments for a few lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

LANES = 5


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
