"""Random functions of small arrays: the imported graph against jax.vmap, and the machine code of `qd.vmap`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import qdtrace as qd

from .functions import Function, functions, operands
from .harness import check

EXAMPLES: dict[str, Any] = {
    "deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate),
}  # fmt: skip
"""Without making failures smaller: that takes minutes here, and the functions are short."""


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@settings(max_examples=30, **EXAMPLES)
@given(functions(), st.integers(0, 3))
def test_imported(function: Function, seed: int) -> None:
    check(function, *operands(function, seed), exact=True)


@pytest.mark.slow
@settings(max_examples=1000, **EXAMPLES)
@given(functions(most=12), st.integers(0, 3))
def test_imported_long(function: Function, seed: int) -> None:
    check(function, *operands(function, seed), exact=True)


@pytest.mark.slow
@settings(max_examples=150, **EXAMPLES)
@given(functions(most=12), st.integers(0, 3))
def test_machine_code(function: Function, seed: int) -> None:
    args = operands(function, seed)
    for got, want in zip(qd.vmap(function)(*args), jax.jit(jax.vmap(function))(*args), strict=True):
        np.testing.assert_array_equal(got, want)
