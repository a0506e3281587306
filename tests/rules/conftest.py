"""The oracle of these tests is XLA: its optimisation takes most of their time and changes no meaning."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def unoptimised_oracle():
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.enable_x64(True):
        yield
    jax.config.update("jax_disable_most_optimizations", before)
