"""XLA as the oracle of tests: its optimisation takes most of their time and changes no meaning."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import jax
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


@contextlib.contextmanager
def unoptimised() -> Generator[None]:
    """Has XLA compile without optimisation."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def wide_oracle() -> Generator[None]:
    """XLA without optimisation, and 64 bits."""
    with unoptimised(), jax.enable_x64(True):
        yield
