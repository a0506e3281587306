"""`jax.jit` over sharded arrays: each device runs its lanes, and gathers what they do not share out."""

import json
import os
import sys
from functools import cache
from pathlib import Path

import pytest

from tests import fresh

ROOT = Path(__file__).parents[2]
SUMMED, GATHERED = {"all-reduce": 1}, {"all-gather": 1}
EXPECTED = {
    "lanes": ({}, [["d"], ["d"]]),
    "one of two": ({}, [["d"], ["d"]]),
    "in the middle": ({}, [["None", "d"], ["d"]]),
    "two axes of a mesh": ({}, [["('b', 'a')"]] * 2),
    "half of a mesh": ({}, [["b"], ["b"]]),
    "another axis": (GATHERED, None),
    "not divisible": (None, None),
    "few lanes": (None, None),
    "lanes of lanes": ({}, [["d"], ["d"]]),
    "inner lanes": ({}, [["None", "d"]] * 2),
    "donated": ({}, [["d"]]),
    "nested": ({}, [["d"]]),
    "gradient": (SUMMED, [["d"], [], []]),
    "gradient on a square": (SUMMED | GATHERED, [["a"], [], []]),
    "Jacobian": ({}, [["d"]]),
    "keys": ({}, [["d"]]),
    "deterministic": (GATHERED, None),
    "the number of a lane": (GATHERED, None),
    "a sum that lanes read": (GATHERED, None),
}
"""Collectives and axes of results by case; None where they are XLA's choice."""
CLOSE = 1e-5
"""Largest difference of values of f32, relative to 1 and their size: some ten operations, and sums in another order."""


@cache
def child(*given: str) -> dict[str, list]:
    flags = "--xla_force_host_platform_device_count=4"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    done = fresh.run([sys.executable, "-m", "tests.api.sharded_arrays", *given], env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.every_case
@pytest.mark.parametrize("name", EXPECTED)
def test_values_and_what_is_sent(name: str) -> None:
    difference, sent, axes = child()[name]
    assert difference < CLOSE
    wanted, along = EXPECTED[name]
    assert wanted is None or sent == wanted
    assert along is None or axes == along


def test_a_refusal_while_xla_compiles_is_an_error_of_this_package() -> None:
    assert child()["refused"] == "halved: needs codegen 'auto' or 'llvm' on cpu, got 'triton'"


def test_a_saved_program_is_shared_out_too() -> None:
    assert child()["saved"] == 0


@pytest.mark.parametrize(
    ("first", "last"), [pytest.param(0, 3, marks=pytest.mark.full), pytest.param(3, 100, marks=pytest.mark.slow)]
)
def test_random_arrays_axes_and_shardings(first: int, last: int) -> None:
    found = child(str(first), str(last))
    assert len(found) == last - first
    assert max(difference for difference, _, _ in found.values()) < CLOSE
