"""Small functions that many tests call, and a fresh process to run a script in."""

import os
import sys
import textwrap
from pathlib import Path

import numpy as np

import qdtrace as qd
from tests import fresh

ROOT = Path(__file__).parents[2]


@qd.jit
def affine(x):
    """2 x + 1."""
    for i in qd.range(x.shape[0]):
        x[i] = 2 * x[i] + 1
    return x


@qd.jit
def add(x, y):
    for i in qd.range(x.shape[0]):
        x[i] += y[i]
    return x


def arange(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def in_process(script: str, **env: str) -> str:
    """Runs a script in a fresh Python and returns what it prints. Flags of XLA are added to those of this process."""
    flags = " ".join([os.environ.get("XLA_FLAGS", ""), env.pop("XLA_FLAGS", "")]).strip()
    done = fresh.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
