"""Astrojax: satellites by SGP4, from their elements."""

import jax.numpy as jnp
import numpy as np
from astrojax.sgp4.propagation import sgp4_init_jax, sgp4_propagate, sgp4_propagate_unified

from tests.libraries.lanes import Lanes, spread

ASTROJAX = Lanes()


def elements(motion, eccentricity, drag):
    """Of a satellite, as two-line elements have them; the motion is in revolutions a day."""
    revolutions = motion * 2 * np.pi / 1440
    return jnp.stack([jnp.asarray(x, float) for x in (
        2460000.5, 0.25, revolutions, eccentricity, 0.9, 4.1, 1.5, 2.6, drag, 0.0, 0.0
    )])  # fmt: skip


@ASTROJAX(spread(13.5, 15.8), spread(0.0005, 0.02), spread(0.0, 1440.0), rtol=1e-7, single=2e-3, slow=False)
def near_earth(motion, eccentricity, minutes):
    return sgp4_propagate(sgp4_init_jax(elements(motion, eccentricity, 1e-4)), minutes, "n")


@ASTROJAX(np.array([15.5, 2.0, 1.0, 14.0, 6.0]), spread(0.001, 0.1), spread(0.0, 3000.0), rtol=1e-6, single=1e-2)
def near_and_deep(motion, eccentricity, minutes):
    parameters = sgp4_init_jax(elements(motion, eccentricity, 1e-4))
    return sgp4_propagate_unified(parameters, minutes, max_dspace_iters=5)
