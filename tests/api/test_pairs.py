"""Functions of all pairs of elements, in loops and in reverse, as they are made for a GPU.

Arrays of pairs are too large for registers there: nests of loops are fused, arrays become rows of their trips, and what
is cheap is made again from shorter arrays. The interpreter runs the graph in the end.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.analysis.machine import GPU
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.trace import jax_settings

CHEAP = (
    lambda d, rng: d * 2,
    lambda d, rng: -d,
    lambda d, rng: jnp.abs(d),
    lambda d, rng: jnp.maximum(d, 0.25),
    lambda d, rng: d * d,
    lambda d, rng: jnp.where(d > 0.1, d, 0.5 * d),
)
DEAR = (
    lambda d, rng: jnp.exp(-d * d),
    lambda d, rng: jnp.sin(d),
    lambda d, rng: d / (1 + d * d),
    lambda d, rng: jnp.tanh(d) + d,
    lambda d, rng: jnp.cumsum(d, axis=int(rng.integers(d.ndim))) / 16,
)
REDUCTIONS = (jnp.sum, jnp.mean, jnp.max, lambda d, axis: jnp.sqrt(jnp.sum(d * d, axis) + 1))


class Program:
    """A random function of the pairs of two sets of points, alone or in steps that move one of them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        n, m, width = int(rng.integers(9, 21)), int(rng.integers(9, 21)), int(rng.integers(1, 4))
        self.itself, self.steps = bool(rng.random() < 0.5), int(rng.choice((0, 0, 2, 3)))
        self.args = tuple(jnp.asarray(rng.normal(size=(2, k, width))) for k in (n, m))
        self.draws = rng.integers(1 << 30)

    def __call__(self, x: Any, y: Any) -> Any:
        rng = np.random.default_rng(self.draws)

        def moved(x: Any) -> Any:
            other = x if self.itself else y
            d = x[:, None] - other[None] if rng.random() < 0.8 else x[:, None] * other[None] + 0.5
            alone = d
            for _ in range(rng.integers(1, 4)):
                kind = CHEAP if rng.random() < 0.6 else DEAR
                d = kind[rng.integers(len(kind))](d, rng)
                if rng.random() < 0.3:
                    d = d + alone
            near = REDUCTIONS[rng.integers(len(REDUCTIONS))](d, -1)
            form = rng.integers(4)
            if form == 0:
                return x + 0.01 * (near[..., None] * alone).sum(1)
            if form == 1:
                return x * (0.1 + near.mean()) + 0.01 * d.max(1)
            if form == 2:
                return x + 0.01 * jnp.sin(near.sum(0)).sum() + 0.01 * (jnp.exp(-near)[..., None] * d).mean(1)
            return x - 0.01 * near.min(1)[:, None] * x

        if not self.steps:
            return moved(x)
        state = rng.bit_generator.state

        def step(_: Any, x: Any) -> Any:
            rng.bit_generator.state = state  # each trace of the step draws the same
            return moved(x)

        return lax.fori_loop(0, self.steps, step, x)

    def pulled(self, x: Any, y: Any) -> Any:
        """Returns the cotangents of both."""
        out, pull = jax.vjp(self, x, y)
        return pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))


@pytest.mark.full
@pytest.mark.sample(full=8)
@pytest.mark.parametrize("seed", range(60))
def test_random_pairs_as_a_gpu_has_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_settings, "default_machine", lambda: GPU)
    with jax.enable_x64(True):
        program = Program(seed)
        f = program.pulled if seed % 3 else program
        options = {"array_mapping": "lanes", "offline_cache": False}
        low = qd.jit(qd.vmap(f), options=options).lower(*program.args, target="sm_90")
        made = parse_program(low.graph("final"))
        given = {"x": program.args[0], "y": program.args[1]}
        if any(p.hint not in given for p in made.params):
            return  # it reads constants, which no text of a graph has
        got = evaluate(made, [np.asarray(given[p.hint]) for p in made.params], fuel=10**9)
        want = jax.tree.leaves(jax.jit(jax.vmap(f))(*program.args))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        # sums are added up in another order
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-9 * max(float(np.abs(w).max()), 1))


@pytest.mark.parametrize("width", [2, 3, 5])
def test_kernels_of_pairs_are_not_kept(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short sum and a function of it are made again where they are read, once for all components of a point."""
    monkeypatch.setattr(jax_settings, "default_machine", lambda: GPU)

    def kernels(x: Any, y: Any) -> Any:
        return jnp.sin(jnp.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)).mean())

    points = jax.ShapeDtypeStruct((64, 20, width), jnp.float32)
    gradient = qd.jit(qd.vmap(jax.grad(kernels, (0, 1))), options={"offline_cache": False})
    text = gradient.lower(points, points, target="sm_90").as_text("graph")
    assert "20x20" not in text
    assert text.count(": f32 = exp ") == 3  # of the value, and of the derivative by each set
