"""A robot of eight revolute links on a free base: the articulated-body algorithm in 6-vectors, with ground contact.

Vectors are angular parts in front of linear ones, in the frame of their body (Featherstone, Rigid Body Dynamics
Algorithms, 2008, chapters 7 and 9). Four legs of two links each; feet and base push against the ground like springs.
Written with an array module, `jax.numpy` in lanes or `numpy` for checks, where arrays may be complex.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LINKS, STEPS, DT = 8, 64, 0.004
PARENT = (-1, 0, -1, 2, -1, 4, -1, 6)
HIPS = ((0.2, 0.15, 0.0), (0.2, -0.15, 0.0), (-0.2, 0.15, 0.0), (-0.2, -0.15, 0.0))
LENGTH, GRAVITY = 0.2, 9.81
STIFFNESS, DAMPING, FRICTION = 2000.0, 20.0, 15.0
AXIS = 1
"""Joints turn about y; the z axis of a link goes along it."""
UNIT = np.eye(6, dtype=np.float32)[AXIS]


@dataclass
class Robot:
    """State of one robot."""

    place: Any
    """Position of the base in the world (3,)."""
    turn: Any
    """Quaternion of the base (4,)."""
    motion: Any
    """Velocity of the base in its own frame (6,)."""
    angles: Any
    """Angles of the joints (8,)."""
    speeds: Any
    """Angular speeds of the joints (8,)."""


def start(xp: Any) -> Robot:
    """Standing a little above the ground with bent knees."""
    angles = xp.array([0.5, -0.9] * 4)
    return Robot(xp.array([0.0, 0.0, 0.38]), xp.array([1.0, 0.0, 0.0, 0.0]), xp.zeros(6), angles, xp.zeros(LINKS))


def _cross(xp: Any, v: Any) -> Any:
    """The matrix of a cross product."""
    zero = 0.0 * v[0]
    return xp.stack([xp.stack([zero, -v[2], v[1]]), xp.stack([v[2], zero, -v[0]]), xp.stack([-v[1], v[0], zero])])


def _blocks(xp: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return xp.concatenate([xp.concatenate([a, b], 1), xp.concatenate([c, d], 1)], 0)


def _inertia(mass: float, center: Any, moments: Any) -> Any:
    cx = _cross(np, np.asarray(center))
    angular = np.diag(np.asarray(moments)) + mass * cx @ cx.T
    return np.block([[angular, mass * cx], [mass * cx.T, mass * np.eye(3)]]).astype(np.float32)


BASE = _inertia(6.0, (0.0, 0.0, 0.0), (0.1, 0.2, 0.25))
LINK = _inertia(0.5, (0.0, 0.0, -LENGTH / 2), (0.002, 0.002, 0.0002))


def _rotation(xp: Any, q: Any) -> Any:
    """The matrix from the frame of the base to the world."""
    w, x, y, z = q[0], q[1], q[2], q[3]
    return xp.stack([
        xp.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]),
        xp.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]),
        xp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]),
    ])  # fmt: skip


def _about_y(xp: Any, angle: Any) -> Any:
    """Returns the rotation from the frame before a joint to the frame after it."""
    c, s = xp.cos(angle), xp.sin(angle)
    zero = 0.0 * angle
    return xp.stack([xp.stack([c, zero, -s]), xp.stack([zero, zero + 1, zero]), xp.stack([s, zero, c])])


def _across(xp: Any, turn: Any, offset: Any) -> Any:
    """The transform of motions into a frame at `offset` that is turned by `turn`."""
    return _blocks(xp, turn, 0.0 * turn, -turn @ _cross(xp, offset), turn)


def _bias(xp: Any, motion: Any, inertia: Any) -> Any:
    """The force that a body in motion needs to go on so."""
    momentum = inertia @ motion
    w, v = _cross(xp, motion[:3]), _cross(xp, motion[3:])
    return xp.concatenate([w @ momentum[:3] + v @ momentum[3:], w @ momentum[3:]])


def _outside(xp: Any, rotation: Any, place: Any, motion: Any, mass: float, center: Any, tip: Any) -> Any:
    """Weight, and the push of the ground at the tip: a force in the frame of the body."""
    weight = rotation.T @ xp.array([0.0, 0.0, -mass * GRAVITY])
    height = (place + rotation @ tip)[2]
    speed = rotation @ (motion[3:] + _cross(xp, motion[:3]) @ tip)
    depth = xp.where(height.real < 0, -height, 0.0 * height)
    push = xp.stack([-FRICTION * speed[0], -FRICTION * speed[1], STIFFNESS * 1.0 - DAMPING * speed[2]])
    # friction and damping grow with the depth, so that forces begin at zero
    push = rotation.T @ (depth * push * xp.array([10.0, 10.0, 1.0]))
    force = weight + push
    return xp.concatenate([_cross(xp, center) @ weight + _cross(xp, tip) @ push, force])


def step(xp: Any, robot: Robot, torques: Any) -> Robot:
    """One step of semi-implicit Euler."""
    base_rotation = _rotation(xp, robot.turn)
    down, nothing = xp.array([0.0, 0.0, -LENGTH]), xp.zeros(3)
    rotations, places, motions, transforms, inertias, biases, coriolis = [], [], [], [], [], [], []
    base_push = _outside(xp, base_rotation, robot.place, robot.motion, 6.0, nothing, nothing)
    base_inertia, base_bias = xp.array(BASE), _bias(xp, robot.motion, BASE) - base_push
    for k, parent in enumerate(PARENT):
        turn = _about_y(xp, robot.angles[k])
        offset = xp.array(HIPS[k // 2]) if parent < 0 else down
        rotation, place = (base_rotation, robot.place) if parent < 0 else (rotations[parent], places[parent])
        before = robot.motion if parent < 0 else motions[parent]
        transforms.append(_across(xp, turn, offset))
        places.append(place + rotation @ offset)
        rotations.append(rotation @ turn.T)
        own = UNIT * robot.speeds[k]
        motions.append(transforms[k] @ before + own)
        w, v = _cross(xp, motions[k][:3]), _cross(xp, motions[k][3:])
        coriolis.append(xp.concatenate([w @ own[:3], v @ own[:3] + w @ own[3:]]))
        push = _outside(xp, rotations[k], places[k], motions[k], 0.5, down / 2, down)
        inertias.append(xp.array(LINK))
        biases.append(_bias(xp, motions[k], LINK) - push)
    columns: list[Any] = [None] * LINKS
    pivots, drives = list(columns), list(columns)
    for k in reversed(range(LINKS)):
        columns[k], pivots[k] = inertias[k][:, AXIS], inertias[k][AXIS, AXIS]
        drives[k] = torques[k] - 0.1 * robot.speeds[k] - biases[k][AXIS]
        left = inertias[k] - xp.outer(columns[k], columns[k]) / pivots[k]
        bias = biases[k] + left @ coriolis[k] + columns[k] * (drives[k] / pivots[k])
        x = transforms[k]
        if PARENT[k] < 0:
            base_inertia, base_bias = base_inertia + x.T @ left @ x, base_bias + x.T @ bias
        else:
            inertias[PARENT[k]] = inertias[PARENT[k]] + x.T @ left @ x
            biases[PARENT[k]] = biases[PARENT[k]] + x.T @ bias
    base = -xp.linalg.solve(base_inertia, base_bias)
    changes, found = [], []
    for k, parent in enumerate(PARENT):
        reached = transforms[k] @ (base if parent < 0 else changes[parent]) + coriolis[k]
        found.append((drives[k] - columns[k] @ reached) / pivots[k])
        changes.append(reached + UNIT * found[k])
    motion, speeds = robot.motion + DT * base, robot.speeds + DT * xp.stack(found)
    w, q = motion[:3], robot.turn
    turned = xp.stack([
        -w[0] * q[1] - w[1] * q[2] - w[2] * q[3],
        w[0] * q[0] + w[2] * q[2] - w[1] * q[3],
        w[1] * q[0] - w[2] * q[1] + w[0] * q[3],
        w[2] * q[0] + w[1] * q[1] - w[0] * q[2],
    ])  # fmt: skip
    q = q + 0.5 * DT * turned
    q = q / xp.sqrt(q @ q)
    return Robot(robot.place + DT * (base_rotation @ motion[3:]), q, motion, robot.angles + DT * speeds, speeds)
