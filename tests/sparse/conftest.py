"""Symmetric blocks are added as a whole, and as a half and its transpose, as processors and GPUs do."""

import jax.numpy as jnp
import pytest

from qdtrace.sparse import blocks, values


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.full), True], ids=["whole", "half"])
def _additions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocks, values):
        monkeypatch.setattr(module, "adds_half", lambda: jnp.bool_(request.param))
    monkeypatch.setattr(values, "adds_by_rows", lambda: request.param)
