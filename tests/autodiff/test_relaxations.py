"""Gradients of random relaxations in place, whose guards tell cells apart by remainders, against JAX's: the same bits.

Numbers are small whole ones, so sums have the same bits in every order.
"""

from itertools import product
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.passes import gather

LENGTHS = ((2, 3, 5, 8, 9, 64, 97), (3, 5, 8, 9, 12), (3, 5, 6, 8))


class Relaxation:
    """A few sweeps over cells of a grid, each of which stores cells of one colour from cells of others."""

    def __init__(self, rng: Random) -> None:
        self.ndim = rng.choice((1, 1, 2, 2, 3))
        self.shape = tuple(rng.choice(LENGTHS[self.ndim - 1]) for _ in range(self.ndim))
        self.wraps = rng.random() < 0.3
        self.kind = rng.choice(("sum", "sum", "axes", "bits", "with ends"))
        self.modulus = 2 if self.kind in {"axes", "bits"} else rng.choice((2, 2, 3, 4))
        self.weights = [rng.choice((1, 1, 1, 2, 3)) % self.modulus or 1 for _ in range(self.ndim)]
        self.has_flags, self.has_product = rng.random() < 0.3, rng.random() < 0.4
        reach = rng.choice((1, 1, 2))
        self.ends = [(0, n) if self.wraps else (min(reach, n), max(n - reach, 0)) for n in self.shape]
        near = [o for o in product(range(-reach, reach + 1), repeat=self.ndim) if any(o)]
        self.sweeps = [self.sweep(rng, near) for _ in range(rng.choice((1, 2, 2, 3)))]

    def sweep(self, rng: Random, near: list[tuple[int, ...]]) -> tuple[Any, list[tuple[int, ...]], bool]:
        """Draws a colour, some offsets at which no cell has it, and whether cells keep their own value."""
        colour = tuple(rng.randrange(self.modulus) for _ in range(self.ndim if self.kind == "axes" else 1))
        free = [o for o in near if not (self.stored(colour) & np.roll(self.stored(colour), o, range(self.ndim))).any()]
        return colour, rng.sample(free, min(len(free), rng.randrange(1, 8))), rng.random() < 0.5

    def is_of(self, at: Any, colour: tuple[int, ...]) -> Any:
        """Returns whether a cell has a colour."""
        if self.kind == "axes":
            tests = [i % 2 == c for i, c in zip(at, colour, strict=True)]
        else:
            total = sum(w * i for w, i in zip(self.weights, at, strict=True))
            tests = [(total & 1 if self.kind == "bits" else total % self.modulus) == colour[0]]
        if self.kind == "with ends":
            tests += [at[0] > 0, at[-1] < self.shape[-1] - 1]
        found = tests[0]
        for test in tests[1:]:
            found = found & test
        return found

    def stored(self, colour: tuple[int, ...]) -> Any:
        """Returns which cells a sweep over a colour stores."""
        at = np.indices(self.shape)
        inside = np.all([(i >= a) & (i < z) for i, (a, z) in zip(at, self.ends, strict=True)], axis=0)
        return inside & self.is_of(at, colour)

    def value(self, own: Any, others: list[Any], other: Any, keeps: bool) -> Any:
        """Returns what a cell becomes."""
        total = sum(((k % 3 + 1) * x for k, x in enumerate(others)), 2.0 * own if keeps else 0.0 * other)
        return total * other if self.has_product else total + other

    def oracle(self, x: Any, b: Any, flags: Any) -> Any:
        """Returns the cells in the end, by JAX."""
        for colour, offsets, keeps in self.sweeps:
            taken = self.stored(colour)
            others = [jnp.roll(x, [-o for o in offset], range(self.ndim)) for offset in offsets]
            x = jnp.where(taken & flags if self.has_flags else taken, self.value(x, others, b, keeps), x)
        return x

    def kernel(self, x: Any, b: Any, flags: Any) -> Any:
        """Returns the same by loops."""
        for colour, offsets, keeps in self.sweeps:
            for at in qd.ndrange(*self.ends):
                test = self.is_of(at, colour)
                with qd.when(test & flags[at] if self.has_flags else test):
                    places = [tuple(i + o for i, o in zip(at, offset, strict=True)) for offset in offsets]
                    if self.wraps:
                        places = [tuple(i % n for i, n in zip(p, self.shape, strict=True)) for p in places]
                    x[at] = self.value(x[at], [x[p] for p in places], b[at], keeps)
        return x


def compare(seed: int) -> bool:
    """Compares the gradient of a random relaxation; returns whether it gathers."""
    one, rng = Relaxation(Random(seed)), np.random.default_rng(seed)
    x, b, bar = (jnp.asarray(rng.integers(-3, 4, one.shape), jnp.float64) for _ in range(3))
    flags = jnp.asarray(rng.random(one.shape) < 0.7)
    back = lambda f: lambda x, b: jax.vjp(lambda x, b: f(x, b, flags), x, b)[1](bar)  # noqa: E731
    made = qd.jit(back(qd.jit(one.kernel)))
    for want, got in zip(jax.jit(back(one.oracle))(x, b), made(x, b), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    return "accum" not in made.lower(x, b).graph() or any("gather" in task.name for task in made.lower(x, b).tasks)


@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(100, 500, 100))])
def test_random_relaxations(wide_oracle: None, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Inner cells have a task of their own in every second one; values are kept in every third."""
    for seed in range(first, first + (100 if first else 6)):
        monkeypatch.setattr(gather, "PEELED", 10**6 if seed % 2 else 0)
        monkeypatch.setattr(gather, "SCATTER_COST", (10**6, 24, -(10**6))[seed % 3])
        compare(seed)


def test_a_red_and_black_sweep_gathers() -> None:
    """Each sweep of the adjoint is a loop over the cells of the other colour, and one that clears its own."""

    @qd.jit
    def sweep(x: Any) -> Any:
        n, m = x.shape
        for colour in (0, 1):
            for i, j in qd.ndrange((1, n - 1), (1, m - 1)):
                with qd.when((i + j) % 2 == colour):
                    x[i, j] = 0.25 * (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])
        return x

    x = jnp.ones((32, 33))
    names = [t.name.split("_")[-1] for t in qd.jit(lambda b, x: jax.vjp(sweep, x)[1](b)).lower(x, x).tasks]
    assert names == ["gather", "reverse", "gather", "reverse"]
