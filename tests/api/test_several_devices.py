"""Calls that fail in a program of several devices: nobody waits for ever, and the error is the caller's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh

ROOT = Path(__file__).parents[2]
INDEX = "BoundsError: index 4 is out of bounds for axis 0 of `x` with shape (4,)"
FAR = "BoundsError: index 16 is out of bounds for axis 0 of `x` with shape (16,)"
MAPPED = [f"shard_map, {behind}" for behind in ("sum", "nothing", "turned", "twice")]
EXPECTED = dict.fromkeys([*MAPPED, "debug", "pmap", "in a loop", "gradient", "compiled ahead"], INDEX)
EXPECTED |= {
    "check": "CheckError: check failed: k is zero",
    "sharded arrays": FAR,
    "sharded arrays, directly": FAR,
    "one device": "JaxRuntimeError: OUT_OF_RANGE: index 16 is out of bounds for axis 0 of `x` with shape (16,)",
}


@pytest.fixture(scope="module")
def child() -> subprocess.CompletedProcess[str]:
    """The process of `several_devices`."""
    flags = "--xla_force_host_platform_device_count=4"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.api.several_devices"]
    done = fresh.run(command, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.parametrize("name", EXPECTED)
def test_the_call_that_fails_raises_and_the_next_is_right(child, name: str) -> None:
    assert json.loads(child.stdout)[name] == [EXPECTED[name], "nothing", EXPECTED[name]]


def test_all_cases_are_expected(child) -> None:
    later = {"right after all", "several", "without a hook", "next call"}
    assert json.loads(child.stdout).keys() == EXPECTED.keys() | later


def test_several_shards_that_fail_are_told_together(child) -> None:
    found = json.loads(child.stdout)
    assert found["right after all"] == 120
    nine = INDEX.partition(": ")[2].replace("4 is", "9 is")
    told = sorted(text.removeprefix("another check failed: ").splitlines()[0] for text in found["several"])
    assert told == [INDEX.partition(": ")[2], nine]


def test_without_jax_hook_later_calls_raise_it_once(child) -> None:
    found = json.loads(child.stdout)
    assert found["without a hook"] == [True, INDEX]
    assert found["next call"] == [INDEX, "nothing"]


def test_what_nobody_asks_for_is_a_warning_at_the_end(child) -> None:
    assert f"QdWarning: nobody waited for this {INDEX}" in child.stderr
