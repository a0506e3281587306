"""Ripple: gravitational waves of two black holes, as complex numbers of a range of frequencies."""

import jax.numpy as jnp
import numpy as np
from ripplegw.waveforms.cbc.IMRPhenomD.IMRPhenomD import gen_IMRPhenomD_hphc

from tests.libraries.lanes import Lanes, spread

RIPPLE = Lanes()


def wave(frequencies, mass, ratio, spin):
    parameters = jnp.stack([jnp.asarray(x, float) for x in (mass, ratio, spin, -0.2, 440.0, 0.0, 0.3, 0.5)])
    plus, cross = gen_IMRPhenomD_hphc(frequencies, parameters, 20.0)
    return jnp.stack([plus, cross]) * 1e22


@RIPPLE(spread(20.0, 30.0), spread(0.2, 0.249), spread(-0.5, 0.5), rtol=1e-6, single=5e-2)
def black_holes(mass, ratio, spin):
    return wave(jnp.asarray(np.linspace(30.0, 400.0, 8)), mass, ratio, spin)
