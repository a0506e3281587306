"""The picture of a result: `python docs/pictures/magnets.py` in the source tree; needs Pillow.

A pendulum hangs over three magnets. Each pixel is a start; its colour says at which magnet the pendulum came to rest,
its brightness how long that took. Each start is a lane that integrates until its own pendulum rests. The script prints
how long `qd.vmap` and `jax.vmap` of the same function take, in turn in one process.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import qdtrace as qd
from benchmarks.slow_programs import smallest_times

HERE = Path(__file__).resolve().parent
ANGLES = np.arange(3) * 2 * np.pi / 3 + 0.5
PLACES = jnp.asarray(np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1), jnp.float32)
HEIGHT, DRAG, SPRING, MOST = 0.25, 0.2, 0.5, 8000
PIXELS, COLOURS = 420, np.array([[0.09, 0.42, 0.72], [0.93, 0.42, 0.11], [0.15, 0.55, 0.33]])


def rest(start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Number of the magnet, and steps of time until a pendulum from there rests."""

    def force(x: jax.Array, v: jax.Array) -> jax.Array:
        pull = sum((p - x) / (jnp.sum((p - x) ** 2) + HEIGHT**2) ** 1.5 for p in PLACES)
        return pull - SPRING * x - DRAG * v

    def moving(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        x, v, steps = state
        near = sum(jnp.sum((p - x) ** 2) < 0.04 for p in PLACES) > 0
        return ~(near & (jnp.sum(v * v) < 0.05)) & (steps < MOST)

    def step(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, v, steps = state
        v = v + 0.01 * force(x, v)
        return x + 0.01 * v, v, steps + 1

    x, _, steps = jax.lax.while_loop(moving, step, (start, jnp.zeros(2), 0))
    return jnp.argmin(jnp.stack([jnp.sum((p - x) ** 2) for p in PLACES])), steps


def main() -> None:
    """Writes docs/pictures/magnets.png."""
    side = jnp.linspace(-2.2, 2.2, PIXELS)
    starts = jnp.stack(jnp.meshgrid(side, side), -1).reshape(-1, 2)
    lanes, batch = jax.jit(qd.vmap(rest)), jax.jit(jax.vmap(rest))
    ours, theirs = smallest_times(lambda: lanes(starts), lambda: batch(starts))
    magnet, steps = (np.asarray(a).reshape(PIXELS, PIXELS) for a in lanes(starts))
    print(f"{starts.shape[0]} starts, {steps.mean():.0f} steps on average, at most {steps.max()}")
    print(f"qd.vmap {ours:.3g} s, jax.vmap {theirs:.3g} s, {theirs / ours:.3g} times")
    print(f"the same magnet for {np.mean(magnet.ravel() == np.asarray(batch(starts)[0])):.2%}")
    light = 1.15 - 0.9 * np.clip(np.log(np.maximum(steps, 1) / 100) / np.log(30), 0, 1)
    levels = np.round(16 * light) / 16  # few levels, a small file
    colours = np.uint8(255 * np.clip(COLOURS[magnet] * levels[..., None], 0, 1))[::-1]
    Image.fromarray(colours).quantize(64, dither=Image.Dither.NONE).save(HERE / "magnets.png", optimize=True)


if __name__ == "__main__":
    main()
