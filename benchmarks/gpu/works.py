"""All works, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.gpu import arrays, gradients, launches, loops, simulations, sparse, streams

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Work

WORKS: dict[str, Work] = {
    "lorenz": loops.lorenz,
    "gradient_lorenz": gradients.lorenz,
    "gradient_while": gradients.lorenz_while,
    "mandelbrot": loops.mandelbrot,
    "kepler": loops.kepler,
    "chain": streams.chain,
    "ragged": loops.ragged,
    "gradient_ragged": gradients.ragged,
    "sparse": sparse.product,
    "sum": streams.total,
    "histogram": streams.histogram,
    "prefix": streams.prefix,
    "mpm": simulations.mpm,
    "oscillator": loops.oscillator,
    "lattice": simulations.lattice,
    "algebra": arrays.algebra,
    "filters": arrays.filters,
    "networks": arrays.networks,
    "robots": arrays.robots,
    "call": launches.call,
    "loops": launches.loops,
    "first_call": launches.first_call,
}
