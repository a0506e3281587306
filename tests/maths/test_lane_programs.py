"""Errors of whole programs in f32 as `fast_math` leaves them, beside those of `jax.jit(jax.vmap)`, against f64.

What `fast_math` changes is a rounding here and there: fused operations, quotients by a reciprocal, sums of constants.
So errors spread as they do under XLA, which fuses too. At the 99.9th percentile of the lanes they are 0.6 to 1.3 times
JAX's (values and gradients, AVX-512), with `fast_math` and without. Twice is the limit, as such a percentile is that of
sixteen lanes. A rewrite that loses digits shows by more: one side of a difference that is computed otherwise than the
other loses all of them.
"""

import jax
import numpy as np
import pytest

import qdtrace as qd
from tests.maths.lane_programs import PROGRAMS

pytestmark = pytest.mark.cpu
LANES = 16384
EPS = float(np.finfo(np.float32).eps)


def error(got, want) -> float:
    """At the 99.9th percentile, relative to the value, or to a tenth of the usual one where that is larger."""
    want = np.asarray(want)
    size = np.maximum(np.abs(want), 0.1 * np.median(np.abs(want)))
    return float(np.quantile(np.abs(np.asarray(got, np.float64) - want) / size, 0.999))


@pytest.mark.full
@pytest.mark.sample(10, full=3)
@pytest.mark.parametrize("lane", PROGRAMS, ids=lambda lane: lane.__name__)
def test_errors_are_those_of_jax(lane):
    rng = np.random.default_rng(0)
    single = [rng.uniform(*bounds, LANES).astype(np.float32) for bounds in PROGRAMS[lane]]
    theirs = jax.jit(jax.vmap(jax.value_and_grad(lane, (0, 1))))

    def ours(*args):
        value, pull = jax.vjp(qd.vmap(lane), *args)
        return value, pull(jax.numpy.ones_like(value))

    with jax.enable_x64(True):
        want = jax.tree.leaves(theirs(*(a.astype(np.float64) for a in single)))
    with jax.enable_x64(False):
        found = [jax.tree.leaves(f(*single)) for f in (jax.jit(ours), theirs)]
    names = ("value", "gradient by the first", "gradient by the second")
    for name, mine, other, exact in zip(names, *found, want, strict=True):
        assert error(mine, exact) <= 2 * max(error(other, exact), 2 * EPS), name
