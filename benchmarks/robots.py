"""Five steps of two robots of MuJoCo in JAX (`mujoco-mjx`, extra `fields`), from random velocities."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax import lax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILES = {"quadruped": "barkour_v0/assets/barkour_v0_mjx.xml", "humanoid": "humanoid/humanoid.xml"}


def are_installed() -> bool:
    """Returns whether the package that has the robots is installed."""
    return find_spec("mujoco") is not None


def robots() -> Iterator[tuple[str, Callable[[Any], Any], int]]:
    """Yields the name of each robot, positions and velocities after five steps, and the degrees of freedom."""
    os.environ.setdefault("MUJOCO_GL", "disable")
    mujoco, mjx = import_module("mujoco"), import_module("mujoco.mjx")  # no package of the checks
    folder = Path(str(mjx.__file__)).parent / "test_data"
    for name, file in FILES.items():
        model = mjx.put_model(mujoco.MjModel.from_xml_path(str(folder / file)))
        start = mjx.make_data(model)

        def steps(velocity: Any, model: Any = model, start: Any = start) -> Any:
            state = start.replace(qvel=velocity)
            state = lax.fori_loop(0, 5, lambda _, state: mjx.step(model, state), state)
            return state.qpos, state.qvel

        yield name, steps, int(model.nv)
