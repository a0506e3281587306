"""Settings of JAX that calls look at each time, read where JAX keeps them."""

from __future__ import annotations

import functools
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import jax

from qdtrace.analysis.machine import CPU, GPU

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qdtrace.analysis.machine import Machine


def reader(*names: str) -> Callable[[], tuple[object, ...]]:
    """Returns a function that gives the values of two or more settings, as of this thread.

    Each attribute of `jax.config` is a function of Python, which takes ten times as long as what it looks at.
    """
    holders: Mapping[str, object] = getattr(jax.config, "_value_holders", {})
    if not all(hasattr(holders.get(name), "value") for name in names):  # of another release
        return functools.partial(attrgetter(*names), jax.config)
    return functools.partial(
        attrgetter(*[f"{name}.value" for name in names]), SimpleNamespace(**{name: holders[name] for name in names})
    )


def default_machine() -> Machine:
    """Returns the machine of JAX's default device, which what is traced is made for."""
    return CPU if jax.default_backend() == "cpu" else GPU
