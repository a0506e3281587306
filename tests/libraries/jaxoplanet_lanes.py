"""Jaxoplanet: light curves of planets in front of stars, and Kepler's equation."""

import jax.numpy as jnp
from jaxoplanet.core.kepler import kepler
from jaxoplanet.light_curves import limb_dark_light_curve
from jaxoplanet.orbits.keplerian import Central, System
from jaxoplanet.orbits.transit import TransitOrbit

from tests.libraries.lanes import Lanes, spread

JAXOPLANET = Lanes()


@JAXOPLANET(spread(0.1, 6.0), spread(0.0, 0.9), rtol=1e-8, slow=False)
def anomalies(mean, eccentricity):
    return kepler(mean, eccentricity)


@JAXOPLANET(spread(0.02, 0.15), spread(0.05, 0.6), spread(2.0, 5.0), rtol=1e-6, single=1e-3)
def transit(radius, impact, period):
    orbit = TransitOrbit(period=period, duration=0.12, time_transit=0.0, impact_param=impact, radius_ratio=radius)
    return limb_dark_light_curve(orbit, [0.1, 0.3])(jnp.linspace(-0.1, 0.1, 5))


@JAXOPLANET(spread(0.02, 0.15), spread(0.0, 0.6), spread(8.0, 20.0), rtol=1e-6, single=1e-3)
def eccentric(radius, eccentricity, period):
    system = System(Central(mass=1.0, radius=1.0)).add_body(
        period=period, eccentricity=eccentricity, omega_peri=0.4, radius=radius, impact_param=0.2, time_transit=0.0
    )
    curve = limb_dark_light_curve(system.bodies[0], [0.2, 0.1])
    return curve(jnp.linspace(-0.2, 0.2, 4)), system.radial_velocity(jnp.asarray(1.5))
