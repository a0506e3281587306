"""Random programs between, around and inside loops: compiled, checked by the interpreter, and as plain NumPy."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qdtrace as qd
from tests.api.generate import programs
from tests.api.modes import Plain
from tests.api.two_modes import Callee
from tests.selection import drawn

SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def arguments(callee: Callee, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-5, 6, shape).astype(np.int32)[()] for shape in callee.shapes]


def check(callee: Callee, seed: int, around: str = "call", **options: object) -> None:
    """Compares with NumPy: called as it is, from another jitted function, or under `jax.vmap`."""
    batches = [arguments(callee, seed), *([arguments(callee, seed + 1)] if around == "vmap" else [])]
    want = []
    with np.errstate(all="ignore"):
        for args in batches:
            want += [np.asarray(w) for w in callee.run([np.array(a)[()] for a in args], Plain())]
    before = [[np.array(a) for a in args] for args in batches]
    with qd.options(**options):
        if around == "vmap":
            stacked = jax.vmap(lambda *args: callee.traced(*args))(*map(np.stack, zip(*batches, strict=True)))
            got = [g[k] for k in range(2) for g in stacked]
        else:
            got = (jax.jit(lambda *args: callee.traced(*args)) if around == "jit" else callee.traced)(*batches[0])
    for g, w in zip(got, want, strict=True):
        assert g.dtype == np.int32
        np.testing.assert_array_equal(np.asarray(g), w)
    for args, olds in zip(batches, before, strict=True):
        for a, b in zip(args, olds, strict=True):
            np.testing.assert_array_equal(a, b)


AROUND = st.sampled_from(("call", "call", "jit", "vmap"))
OPTIONS = st.sampled_from(
    ({}, {"opt_level": 0}, {"fast_math": False}, {"advanced_optimization": False}, {"constant_folding": False})
)


@pytest.mark.full
@settings(max_examples=drawn(25), **SETTINGS)
@given(programs(), st.integers(0, 3), AROUND)
def test_compiled(callee: Callee, seed: int, around: str) -> None:
    check(callee, seed, around)


@settings(max_examples=drawn(20), **SETTINGS)
@given(programs(length=4, depth=1), st.integers(0, 3))
def test_checked(callee: Callee, seed: int) -> None:
    check(callee, seed, debug=True)


@pytest.mark.slow
@settings(max_examples=1500, **SETTINGS)
@given(programs(length=10, depth=3), st.integers(0, 3), AROUND, OPTIONS)
def test_many(callee: Callee, seed: int, around: str, options: dict[str, object]) -> None:
    check(callee, seed, around, **options)
