"""MuJoCo's MJX: a body that falls on a plane, with joints and contacts."""

import functools

import jax
import mujoco
from mujoco import mjx

from tests.libraries.lanes import Lanes, spread

MJX = Lanes()
BALL = """
<mujoco><option timestep="0.01" iterations="4" ls_iterations="6" {options}/><worldbody>
<geom type="plane" size="5 5 0.1"/>
<body pos="0 0 0.12"><freejoint/><geom type="sphere" size="0.1"/></body>
</worldbody></mujoco>"""
PENDULUM = """
<mujoco><option timestep="0.01"/><worldbody><body><joint name="a" type="hinge" axis="0 1 0" damping="0.1"/>
<geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.03"/><body pos="0 0 -0.5"><joint type="hinge" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.03"/></body></body></worldbody>
<actuator><motor joint="a"/></actuator></mujoco>"""


@functools.cache
def model(xml, double):
    with jax.ensure_compile_time_eval():  # it is kept, and must not be of the trace that asks first
        return mjx.put_model(mujoco.MjModel.from_xml_string(xml))


def rolled(xml, velocity, steps):
    of = model(xml, jax.config.jax_enable_x64)
    state = mjx.make_data(of)
    state = state.replace(qvel=state.qvel.at[0].set(velocity))
    end = jax.lax.fori_loop(0, steps, lambda _, s: mjx.step(of, s), state)
    return end.qpos, end.qvel


@MJX(spread(-2.0, 2.0), rtol=1e-6, single=1e-2)
def pendulum(velocity):
    return rolled(PENDULUM, velocity, 5)


@MJX(spread(0.5, 2.0), rtol=1e-5, atol=1e-7, single=2e-2)
def ball_on_a_plane(velocity):
    return rolled(BALL.format(options=""), velocity, 5)
