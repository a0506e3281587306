"""Simulations: a step of the material point method with its gradient, a step of a lattice Boltzmann fluid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import qdtrace as qd
from benchmarks.gpu import lbm
from benchmarks.gpu.loops import called, checked
from benchmarks.gpu.row import Ask, Row
from benchmarks.gradients import programs
from benchmarks.gradients.case import Case
from benchmarks.mpm88 import Fluid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.bench import Bench


def mpm(bench: Bench) -> Iterator[Row]:
    """10^6 particles on 512^2 nodes; the gradient by all inputs for given adjoints of all results."""
    fluid = Fluid(bench.size(512, 32), 5e-5)
    given = programs.mpm_inputs(bench.size(1_000_000, 400))
    particles = {name: given[name] for name in programs.MPM}
    step = qd.jit(fluid.substep)
    kept = called(step, particles)
    checked(kept, given, programs.substep_check(fluid))
    in_place = qd.jit(fluid.substep, donate_argnums=(0, 1, 2, 3))
    state = [jnp.array(a) for a in particles.values()]

    def call() -> Any:
        state[:] = in_place(*state)
        return state

    function, operands = Case(
        step, tuple(particles.values()), tuple(given[f"bar_{name}"] for name in programs.MPM)
    ).reverse()
    reverse = jax.jit(function)
    ours, fresh = bench.times(call, kept)
    with qd.options(bounds="unchecked"):
        (unchecked,) = bench.times(call)
    for_quadrants = {**given, "grid": fluid.grid, "dt": fluid.dt}
    theirs, why = bench.quadrants("quadrants.mpm", "mpm", for_quadrants, programs.substep_check(fluid))
    yield Row("MPM, a step", ours.ms, "ms", "Quadrants", theirs, Ask.RATIO, 1.0, why or ours.words)
    yield Row("MPM, a step: arguments kept", fresh.ms)
    yield Row("MPM, a step: indices unchecked", unchecked.ms)
    check = programs.mpm_check(fluid, singles=bench.size(0, 3))
    checked(lambda: reverse(*operands), given, check)
    back, forth = bench.times(lambda: reverse(*operands), call)
    yield Row("gradient of an MPM step", back.ms, "ms", "our step", forth.ms, Ask.RATIO, 5.0, back.words)
    theirs, why = bench.quadrants("quadrants.mpm", "gradient_mpm", for_quadrants, check)
    yield Row("gradient of an MPM step: Quadrants", back.ms, "ms", "Quadrants", theirs, note=why)


def lattice(bench: Bench) -> Iterator[Row]:
    """256^3 cells of 19 velocities, in millions of cells a second."""
    n = bench.size(256, 12)
    given = lbm.inputs(n)
    call = called(lbm.step, given)
    checked(call, given, lbm.check)
    (ours,) = bench.times(call)
    copy, why = bench.by_hand("limits", "copy")
    cells = n**3 / 1e6
    # the copy reads and writes 2^26 floats
    limit = None if copy is None else cells / (1e-3 * copy * n**3 * lbm.BYTES / (8 << 26))
    name = f"lattice Boltzmann, {n}^3"
    yield Row(name, cells / (1e-3 * ours.ms), "MLUPS", "its bytes at a copy's speed", limit, Ask.LEAST, 20_000, why)
