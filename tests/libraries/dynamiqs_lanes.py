"""Dynamiqs: quantum systems, whose states are complex: Schrödinger's and Lindblad's equations."""

import dynamiqs as dq
import jax
import jax.numpy as jnp

from tests.libraries.lanes import Lanes, spread

DYNAMIQS = Lanes()
QUIET = {"progress_meter": False}


def method():
    tolerance = 1e-8 if jax.config.jax_enable_x64 else 1e-5
    return dq.method.Tsit5(rtol=tolerance, atol=tolerance, max_steps=1000)


@DYNAMIQS(spread(0.5, 3.0), rtol=1e-6, atol=1e-7, single=1e-3)
def qubit(drive):
    h = 0.5 * dq.sigmaz() + drive * dq.sigmax()
    found = dq.sesolve(h, dq.basis(2, 0), jnp.linspace(0.0, 1.0, 3), exp_ops=[dq.sigmaz()], method=method(), **QUIET)
    return jnp.real(found.expects)


@DYNAMIQS(spread(0.1, 1.0), rtol=1e-6, atol=1e-7, single=1e-3)
def decay(rate):
    h = dq.sigmax()
    jumps = [jnp.sqrt(rate) * dq.sigmam()]
    times = jnp.linspace(0.0, 1.0, 3)
    found = dq.mesolve(h, jumps, dq.basis(2, 0), times, exp_ops=[dq.sigmaz()], method=method(), **QUIET)
    return jnp.real(found.expects)
