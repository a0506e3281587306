"""Random programs between, around and inside loops: compiled, checked by the interpreter, and as plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qdtrace as qd
from tests.api.generate import programs
from tests.api.two_modes import Callee, Plain

SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def arguments(callee: Callee, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-5, 6, shape).astype(np.int32)[()] for shape in callee.shapes]


def check(callee: Callee, seed: int, **options: object) -> None:
    args = arguments(callee, seed)
    with np.errstate(all="ignore"):
        want = callee.run([np.array(a)[()] for a in args], Plain())
    before = [np.array(a) for a in args]
    with qd.options(**options):
        got = callee.traced(*args)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == np.int32
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w))
    for a, b in zip(args, before, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=40, **SETTINGS)
@given(programs(), st.integers(0, 3))
def test_compiled(callee: Callee, seed: int) -> None:
    check(callee, seed)


@settings(max_examples=20, **SETTINGS)
@given(programs(length=4, depth=1), st.integers(0, 3))
def test_checked(callee: Callee, seed: int) -> None:
    check(callee, seed, debug=True)


@pytest.mark.slow
@settings(max_examples=1500, **SETTINGS)
@given(programs(length=9, depth=3), st.integers(0, 3))
def test_many(callee: Callee, seed: int) -> None:
    check(callee, seed)
