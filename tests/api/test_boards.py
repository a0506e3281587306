"""Lanes of boards: arrays of two or three short axes, too large to be scalars and too short to be rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from tests.selection import drawn

SHAPES = (
    (10, 10),
    (9, 11),
    (12, 9),
    (3, 40),
    (10, 10, 3),
    (5, 6, 4),
    (2, 7, 8),
    (8, 8),
    (6, 6),
    (8, 8, 12),
    (11, 11, 4),
)
ODD = ((1, 100), (100, 1), (10, 1, 10), (1, 10, 10), (10, 10, 1), (2, 3, 4, 5), (0, 10), (10, 0, 3))
"""Shapes with axes of one element and of none, and of four axes."""
LANES = 11


def windows(b: Any) -> Any:
    """Weighted sums of three by three neighbours in the first two axes."""
    n, m = b.shape[:2]
    around = jnp.pad(b, [(1, 1), (1, 1), *[(0, 0)] * (b.ndim - 2)])
    return sum((0.1 * i - 0.2 * j) * around[i : i + n, j : j + m] for i in range(3) for j in range(3))


def three_in_a_row(b: Any) -> Any:
    """Adds one where a line, a column or a diagonal has three positive numbers from somewhere on."""
    p = b > 0
    across = (p[:, :-2] & p[:, 1:-1] & p[:, 2:]).any()
    down = (p[:-2] & p[1:-1] & p[2:]).any()
    return b + (across | down | (p[:-2, :-2] & p[1:-1, 1:-1] & p[2:, 2:]).all())


ANYWHERE: dict[str, Callable[[Any], Any]] = {
    "a norm": lambda b: b / jnp.sqrt(1.0 + jnp.sum(b * b)),
    "softmax": lambda b: b * jax.nn.softmax(b, axis=tuple(range(b.ndim))),
    "softmax of lines": lambda b: b + jax.nn.softmax(b, axis=-1),
    "complex": lambda b: jnp.real(jnp.exp(0.5j * b) * (b - 1j)).astype(b.dtype),
    "lines and columns": lambda b: b * b.sum(0, keepdims=True) - b.sum(-1, keepdims=True),
    "places": lambda b: (
        b + lax.broadcasted_iota(b.dtype, b.shape, 0) * lax.broadcasted_iota(b.dtype, b.shape, b.ndim - 1)
    ),
    "twice as long": lambda b: jnp.repeat(jnp.concatenate([b, 2.0 * b], 0), 2, -1)[: b.shape[0], ..., ::2] - b,
    "whole numbers": lambda b: b * jnp.where(b > 0.2, 3, -1).sum(-1, keepdims=True).astype(b.dtype),
    "layers of masks": lambda b: jnp.stack([b > 0, b < 1], 0).all(0).astype(b.dtype) - b,
    "axes in another order": lambda b: jnp.sin(jnp.transpose(b)).T * b,
    "branches": lambda b: lax.cond(b.sum() > 0, lambda x: x * x, lambda x: x - 1.0, b),
    "nothing": lambda b: b[:, :0].sum() + b,
}
"""Functions of a board of any axes that give one of the same shape."""

STEPS: dict[str, Callable[[Any], Any]] = {
    **ANYWHERE,
    "arithmetic": lambda b: jnp.tanh(b) * 1.5 + 0.25,
    "both sides": lambda b: jnp.where(b > 0, b, 0.1 * b) - b * 0.5,
    "turned": lambda b: b + jnp.flip(b, 0) * 0.5,
    "rolled": lambda b: jnp.roll(b, 1, 0) - 2.0 * b + jnp.roll(b, -1, 1),
    "padded": lambda b: jnp.pad(b, 1)[tuple(slice(2, None) for _ in b.shape)] + b,
    "standardised": lambda b: (b - b.mean()) / jnp.sqrt(jnp.square(b - b.mean()).mean() + 0.1),
    "sums along an axis": lambda b: b + b.sum(0) * 0.1,
    "extremes": lambda b: b - 0.5 * b.max(-1, keepdims=True),
    "running sums": lambda b: jnp.cumsum(b, 1) * 0.2,
    "flat": lambda b: (b.reshape(-1)[::-1] + jnp.linspace(0.0, 1.0, b.size, dtype=b.dtype)).reshape(b.shape),
    "axes exchanged": lambda b: (b.T.reshape(b.shape) + b) * 0.5,
    "an element": lambda b: b.at[1, 2].set(b[0, 1] * b[1, 0]),
    "a place that is found": lambda b: b.at[jnp.unravel_index(jnp.argmax(b), b.shape)].mul(0.5),
    "three steps": lambda b: lax.fori_loop(0, 3, lambda _, x: x + 0.1 * (jnp.roll(x, 1, 0) - x), b),
    "until": lambda b: lax.while_loop(lambda x: jnp.abs(x).sum() > 20, lambda x: 0.5 * x, b),
    "a line of each colour": lambda b: b * jnp.where((b > 0).all(0).any() | (b > 0).all(1).any(), 2.0, 1.0),
    "windows": windows,
    "three in a row": three_in_a_row,
    "largest places of lines": lambda b: b + 0.1 * jnp.argmax(b, 1).astype(b.dtype).sum(),
    "flooded": lambda b: lax.while_loop(
        lambda s: s[0].sum() > s[1],
        lambda s: (jnp.maximum(s[0], (b > 0) * jnp.roll(s[0], 1, 1)), s[0].sum()),
        (jnp.abs(b), jnp.zeros((), b.dtype)),
    )[0],
    "layers": lambda b: jnp.stack([b > 0, b < 0, b == b[0, 0]], -1).sum(-1).astype(b.dtype) * b,
}
"""Functions of a board that give one of the same shape."""


LOOPED = ("until", "flooded")
"""Steps that loop an unknown number of times, which has no derivative in reverse."""
EXTREME = ("extremes",)
"""Steps whose derivative in a loop is NaN in JAX: XLA computes what is compared with a maximum again, with other
roundings, so that no element is equal to it."""


def game(names: list[str], rounds: int) -> Callable[[Any], tuple[Any, Any]]:
    def played(b: Any) -> Any:
        for name in names:
            b = STEPS[name](b)
        # not too large after many rounds, and as far apart from each other as before
        return b / (1.0 + jnp.abs(b).mean()) if rounds > 1 else b

    def lane(b: Any) -> tuple[Any, Any]:
        b = played(b) if rounds == 1 else lax.fori_loop(0, rounds, lambda _, x: played(x), b)
        return b, jnp.sum(jnp.sin(b))

    return lane


def check(names: list[str], shape: tuple[int, ...], *, derivative: bool, rounds: int = 1) -> None:
    boards = np.random.default_rng(len(names)).normal(size=(LANES, *shape))
    lane = game(names, rounds)

    def asked(mapped: Any) -> Any:
        if derivative:
            return jax.grad(lambda b: mapped(lane)(b)[1].sum())(boards)
        return mapped(lane)(boards)

    with jax.enable_x64(True):
        got, want = asked(qd.vmap), asked(jax.vmap)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        # f64; sums of some hundred elements, of up to four steps, in another order
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{names} {shape}")


@pytest.mark.parametrize("name", STEPS)
def test_one_step(name: str) -> None:
    check([name], (10, 10), derivative=False)


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in STEPS if name not in LOOPED])
def test_derivatives_of_one_step(name: str) -> None:
    check([name], (9, 11), derivative=True)


@pytest.mark.full
def test_random_games() -> None:
    rng = np.random.default_rng(0)
    for _ in range(drawn(12)):
        names = [str(n) for n in rng.choice(list(STEPS), size=rng.integers(2, 5))]
        shape = SHAPES[rng.integers(len(SHAPES))]
        check(names, shape, derivative=bool(rng.integers(2)) and not {*names} & {*LOOPED})


@pytest.mark.full
@pytest.mark.parametrize("derivative", [False, True])
def test_games_of_many_rounds(derivative: bool) -> None:
    rng = np.random.default_rng(int(derivative))
    names = [name for name in STEPS if not (derivative and name in LOOPED + EXTREME)]
    for _ in range(drawn(8)):
        game = [str(n) for n in rng.choice(names, size=2)]
        check(game, SHAPES[rng.integers(len(SHAPES))], derivative=derivative, rounds=3)


@pytest.mark.full
@pytest.mark.parametrize("shape", ODD, ids=str)
def test_axes_of_one_element_and_of_none(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(shape))
    names = [name for name in ANYWHERE if name != "softmax of lines" or shape[-1]]
    for derivative in (False, True):
        for _ in range(drawn(4)):
            check([str(n) for n in rng.choice(names, size=2)], shape, derivative=derivative)


@pytest.mark.cpu
def test_a_layer_of_a_board_is_a_loop() -> None:
    """A board of 11 x 11 written out was a thousand lines, whose machine code took two seconds."""

    def lane(b: Any, colour: Any) -> Any:
        own = jnp.where(colour > 0, b, -b).reshape(11, 11)
        return jnp.stack([own > 0, own < 0, jnp.broadcast_to(colour > 0, own.shape)], 2)

    boards, colours = jnp.zeros((4, 121), jnp.int32), jnp.ones(4, jnp.int32)
    low = qd.jit(lambda b, c: qd.vmap(lane)(b, c)).lower(boards, colours)
    assert low.graph("final").count("\n") < 100


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(10, 10), (11, 11, 4), (8, 8, 12)])
def test_arithmetic_and_sums_of_a_board_are_loops_over_all_elements(shape: tuple[int, ...]) -> None:
    """Nests of short loops had no vectors along them, and were not fused."""
    boards = jnp.zeros((400, *shape), jnp.float32)
    low = qd.jit(lambda b: qd.vmap(lambda b: (b - b.mean()) / jnp.sqrt(1.0 + jnp.square(b).sum()))(b)).lower(boards)
    assert low.graph("final").count("for k") == 2


@pytest.mark.cpu
def test_a_board_that_a_loop_carries_is_no_scalars() -> None:
    """Eight rounds of the game of life on 16 x 16 cells were 4,357 lines, whose first call took two seconds."""

    def life(b: Any) -> Any:
        shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]

        def after(_: Any, b: Any) -> Any:
            near = sum(jnp.roll(b, shift, (0, 1)) for shift in shifts)
            return ((near == 3) | ((b == 1) & (near == 2))).astype(b.dtype)

        return lax.fori_loop(0, 8, after, b)

    boards = jnp.asarray(np.random.default_rng(0).integers(0, 2, (40, 16, 16)), jnp.int32)
    f = qd.jit(lambda b: qd.vmap(life)(b))
    np.testing.assert_array_equal(f(boards), jax.vmap(life)(boards))
    assert f.lower(boards).graph("final").count("\n") < 1000
