"""The demo's command at a small size."""

from __future__ import annotations

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.tools.demo import evaluate
from qdtrace.tools.demo_model import draw_parameters, load_counts, misfit

NEEDS = "the demo needs its extra `demo`"


@pytest.fixture(scope="module")
def kernel_and_inputs():
    draws = jnp.asarray(draw_parameters(1000, 0))
    return qd.jit(evaluate), draws, jnp.log(load_counts()[1])


def test_the_kernel_agrees_with_vmap(kernel_and_inputs) -> None:
    kernel, draws, log_counts = kernel_and_inputs
    fits, steps = kernel(jnp.zeros(1000), jnp.zeros(1000, jnp.int32), draws, log_counts, 0, 1000)
    want, tried = jax.vmap(misfit, (0, None))(draws, log_counts)
    # the solver's tolerance: an accepted step may be a rejected one after another rounding
    np.testing.assert_allclose(fits, want, rtol=1e-3)
    assert np.mean(np.asarray(steps) == np.asarray(tried)) > 0.8
    assert np.abs(np.asarray(steps) - np.asarray(tried)).max() <= 3


def test_only_the_given_range_is_evaluated(kernel_and_inputs) -> None:
    kernel, draws, log_counts = kernel_and_inputs
    _, steps = kernel(jnp.zeros(1000), jnp.full(1000, -1, jnp.int32), draws, log_counts, 100, 250)
    assert ((np.asarray(steps) != -1) == ((np.arange(1000) >= 100) & (np.arange(1000) < 250))).all()


def test_the_command_prints_and_writes_what_it_says(tmp_path) -> None:
    pytest.importorskip("matplotlib", reason=NEEDS)
    pytest.importorskip("tqdm", reason=NEEDS)
    command = [sys.executable, "-m", "qdtrace", "demo", "--draws", "3000", "--chunks", "4", "--output", "small.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "small.png").stat().st_size > 20_000
    for part in ("3,000 Lotka-Volterra models", "best fits", "optimised graph (1 task", "range_for", "wrote small.png"):
        assert part in done.stdout
    assert "3.00k/3.00k" in done.stderr  # the progress bar at its end
    agreement = re.search(r"agreement with jax.vmap: ([\d.]+) %", done.stdout)
    assert agreement is not None
    assert float(agreement[1]) > 99.9
    best = re.findall(r"^ +\d  ((?: +[\d.]+){7})", done.stdout, re.MULTILINE)
    fits = [float(line.split()[-1]) for line in best]
    assert len(fits) == 5
    assert fits == sorted(fits)
