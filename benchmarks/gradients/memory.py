"""Memory that gradients keep and move, counted from their graphs: stacks of loops, and bytes of a chain of loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks.compile_time import Report, limited
from benchmarks.gradients import links
from benchmarks.peers.qdtrace_gradients import lorenz_ends, lorenz_until, robot_walks
from benchmarks.peers.qdtrace_peer import eight_loops

if TYPE_CHECKING:
    from pathlib import Path

LANES, CHAIN, STEPS = 1 << 16, 1 << 20, 100
STATE = 12
"""Bytes of x, y and z."""


def adjoint(function: Any, *given: Any) -> qd.Lowered:
    """The reverse mode of a function of arrays by its first one, lowered; adjoints of results are arguments."""
    return qd.jit(jax.grad(lambda *args: function(*args).sum())).lower(*given)


def variables_of_a_step() -> int:
    """Floating-point values that one step of the primal computes: what a tape of every value would keep."""
    graph = qd.jit(lorenz_ends(STEPS)).lower(jnp.zeros(LANES)).graph()
    loop = graph[graph.index("= for ") : graph.index("yield")]
    return loop.count(": f32 = ")


def robots() -> str:
    """The stacks of the robot's gradient beside 8 bytes for every value of every step, of one lane."""
    torques = jnp.zeros((256, links.STEPS, links.LINKS))
    kept = adjoint(robot_walks, torques).memory_analysis()["stack_per_lane"]
    every = 8 * qd.jit(robot_walks).lower(torques).graph().count(": f32 = ") * links.STEPS
    return limited(f"links: stacks of a lane, beside {every} for every value", kept, "bytes", every / 10)


def measure(root: Path, *, with_robots: bool = True) -> Report:
    """Lowers some gradients; nothing runs. That of the robot takes ten seconds."""
    rho = jnp.asarray(np.linspace(0, 21, LANES), jnp.float32)
    try:
        lorenz = adjoint(lorenz_ends(STEPS), rho)
        stacks, (task,) = lorenz.memory_analysis()["stacks"], lorenz.tasks
        tape = 8 * variables_of_a_step() * STEPS * task.at_once
        lines = [
            "memory of gradients, counted from their graphs",
            limited(f"lorenz, {STEPS} steps: stacks", stacks, "bytes", STATE * STEPS // 4 * task.at_once),
            f"  {f'8 bytes for every value of every step of {task.at_once} lanes':<72} {tape:8} bytes",
        ]
        unknown = adjoint(lorenz_until, rho, jnp.float32(1000))
        lines.append(
            f"  {'the same loop as a `while`: stacks for any number of steps':<72} "
            f"{unknown.memory_analysis()['stacks']:8} bytes"
        )
        lines += [f"    {choice}" for low in (lorenz, unknown) for choice in low.storage]
        moved = adjoint(eight_loops, jnp.zeros(CHAIN)).traffic()
        lines.append(limited("chain of eight loops: reads and writes", moved.total / (4 * CHAIN), "arrays", 4))
        if with_robots:
            lines.append(robots())
    except qd.QdError as error:
        return Report(f"memory of gradients: failed: {error}", False)
    return Report("\n".join(lines), True)
