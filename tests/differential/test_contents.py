"""Random functions over buffers with an initial content: as written, batched, donated and differentiated.

Each statement is written twice: for a loop over elements, and for whole arrays in NumPy's way, whose derivatives JAX
knows. All values are small multiples of 1/8, so sums are exact in any order.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

SEEDS = range(16)
LANES = 3
CONTENTS = (0.0, 1.0, -2.5, 0.125)
KINDS = (jnp.float32, jnp.float32, jnp.int32, jnp.float16, jnp.int8, jnp.bool_)


class Drawn:
    """The statements of a function over the argument `x`, three buffers of floats and one of any dtype."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        self.n = draw.choice((1, 5, 8, 33))
        self.contents = [draw.choice(CONTENTS) for _ in range(3)]
        self.kind = draw.choice(KINDS)
        self.other = draw.choice((0, 1, 3))
        loops = [[self.statement() for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 4))]
        self.loops: Sequence[Sequence[tuple[str, int, int]]] = loops
        self.results = draw.sample(range(4), draw.randint(1, 4))

    def statement(self) -> tuple[str, int, int]:
        target, source = self.draw.sample(range(3), 2)
        return self.draw.choice((*MEANINGS, "turn")), target, source

    def by_elements(self, x: Any) -> tuple[Any, ...]:
        """The function with loops over elements; what reads elements of other iterations has a loop of its own."""
        buffers = [qd.full(x.shape, c, x.dtype) for c in self.contents]
        other = qd.full(x.shape, self.other, self.kind)
        for statements in self.loops:
            for name, target, source in statements:
                if name == "turn":
                    for i in qd.range(self.n):
                        buffers[target][i] += buffers[source][self.n - 1 - i]
            for i in qd.range(self.n):
                for name, target, source in statements:
                    if name != "turn":
                        MEANINGS[name][0](buffers[target], buffers[source], x, i)
                with qd.when(x[i] > 0.0):
                    other[i] = jnp.asarray(other[i] + jnp.asarray(1, self.kind), self.kind)
        return tuple([*buffers, other][k] for k in self.results)

    def by_arrays(self, x: Any) -> tuple[Any, ...]:
        """The same with arrays."""
        arrays = [jnp.full(x.shape, c, x.dtype) for c in self.contents]
        other = jnp.full(x.shape, self.other, self.kind)
        for statements in self.loops:
            for name, target, source in statements:
                if name == "turn":
                    arrays[target] = arrays[target] + arrays[source][::-1]
            for name, target, source in statements:
                if name != "turn":
                    arrays[target] = MEANINGS[name][1](arrays[target], arrays[source], x)
            other = jnp.where(x > 0.0, jnp.asarray(other + jnp.asarray(1, self.kind), self.kind), other)
        return tuple([*arrays, other][k] for k in self.results)


def _add(a: Any, b: Any, x: Any, i: Any) -> None:
    a[i] += x[i] + b[i]


def _scale(a: Any, b: Any, x: Any, i: Any) -> None:
    a[i] = a[i] * x[i]


def _rows(a: Any, b: Any, x: Any, i: Any) -> None:
    for k in qd.range(3):
        a[i] += b[i] * 0.5 + k


def _positive(a: Any, b: Any, x: Any, i: Any) -> None:
    with qd.when(x[i] > 0.0):
        a[i] = b[i]


def _overwrite(a: Any, b: Any, x: Any, i: Any) -> None:
    a[i] = x[i]


MEANINGS: dict[str, tuple[Callable[..., None], Callable[..., Any]]] = {
    "add": (_add, lambda a, b, x: a + x + b),
    "scale": (_scale, lambda a, b, x: a * x),
    "rows": (_rows, lambda a, b, x: a + b * 1.5 + 3.0),
    "positive": (_positive, lambda a, b, x: jnp.where(x > 0.0, b, a)),
    "overwrite": (_overwrite, lambda a, b, x: x + 0.0 * a),
}


def same(got: Any, want: Any) -> None:
    """Equal numbers: the sums are exact."""
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


@pytest.mark.full
@pytest.mark.sample(3)
@pytest.mark.sample(full=4)
@pytest.mark.parametrize("seed", SEEDS)
def test_contents_are_seen(seed: int) -> None:
    drawn = Drawn(seed)
    rows = jnp.asarray(np.random.default_rng(seed).integers(-2, 3, (LANES, drawn.n)), jnp.float32)
    function = qd.jit(drawn.by_elements)
    x = rows[0]
    same(function(x), drawn.by_arrays(x))
    same(qd.jit(drawn.by_elements, options={"debug": True})(x), drawn.by_arrays(x))
    same(jax.vmap(function)(rows), jax.vmap(drawn.by_arrays)(rows))
    same(jax.jit(function, donate_argnums=0)(x + 0.0), drawn.by_arrays(x))

    def total(of: Callable[..., Any], x: Any) -> Any:
        floats = [r for r in of(x) if r.dtype == jnp.float32]
        return sum([jnp.sum(r * r) for r in floats], jnp.sum(x))

    gradient, wanted = (jax.grad(lambda x, of=of: total(of, x)) for of in (function, drawn.by_arrays))
    same(gradient(x), wanted(x))
    same(jax.vmap(gradient)(rows), jax.vmap(wanted)(rows))
    forward, expected = (jax.jvp(lambda x, of=of: total(of, x), (x,), (rows[1],)) for of in (function, drawn.by_arrays))
    same(forward, expected)
