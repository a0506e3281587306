"""The model of the demo, by itself: data, solver and the figure's helpers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from qdtrace.tools.demo_model import (
    CARPENTER,
    MAX_STEPS,
    PRIORS,
    draw_starts,
    load_counts,
    misfit,
    trajectory,
    try_step,
)
from qdtrace.tools.demo_plot import draw_figure


def test_counts_are_the_published_table() -> None:
    years, counts = load_counts()
    np.testing.assert_array_equal(years, np.arange(1900, 1921))
    assert counts.shape == (21, 2)
    assert counts.dtype == np.float32
    np.testing.assert_array_equal(counts[[0, 4, 20]], np.float32([[30.0, 4.0], [36.3, 59.4], [24.7, 8.6]]))
    # sums of the two columns, in tenths
    assert np.round(10 * counts.astype(np.float64)).sum(0).tolist() == [7157, 4235]


def test_starts_have_their_priors_and_are_reproducible() -> None:
    logs = draw_starts(20_000, 3)
    assert logs.dtype == np.float32
    starts = np.exp(logs.astype(np.float64))
    for column, (mean, deviation) in zip(starts.T, PRIORS, strict=False):
        # a normal distribution above zero has its mean beyond that of the whole one, by d phi(m / d) / Phi(m / d);
        # the standard error of a mean is below d / sqrt(20 000): five of them
        at = mean / deviation
        above = deviation * np.exp(-at * at / 2) / np.sqrt(2 * np.pi) / ndtr(at)
        np.testing.assert_allclose(column.mean(), mean + above, atol=0.036 * deviation)
    np.testing.assert_allclose(logs[:, 4:].mean(0), np.log(10.0), atol=0.036)
    np.testing.assert_allclose(logs[:, 4:].std(0), 1.0, atol=0.026)  # standard error 1 / sqrt(40 000)
    np.testing.assert_array_equal(logs, draw_starts(20_000, 3))
    assert (logs != draw_starts(20_000, 4)).all()


@pytest.mark.full
def test_a_step_has_order_five_or_more() -> None:
    with jax.enable_x64(True):
        p = jnp.array(CARPENTER, jnp.float64)

        def error_of(h: float) -> float:
            _, hares, lynxes = trajectory(np.array([*CARPENTER[:4], 50.0, 20.0]), 1, per_year=4096)
            at = round(h * 4096)
            hare, lynx, _ = try_step(jnp.float64(50.0), jnp.float64(20.0), h, p)
            return float(abs(hare - hares[at]) + abs(lynx - lynxes[at]))

        # the local error is of order six, so halving the step divides it by 64 or, where the leading term is small,
        # by more; a method of order four would give 32
        assert error_of(0.5) / error_of(0.25) > 50


@pytest.mark.full
def test_misfit_agrees_with_a_fine_fixed_step_solution() -> None:
    _, counts = load_counts()
    scatter = np.random.default_rng(1).standard_normal((200, 6))
    draws = (np.array(CARPENTER) * np.exp(0.25 * scatter)).astype(np.float32)
    got, steps = jax.vmap(misfit, (0, None))(jnp.asarray(draws), jnp.log(counts))
    _, hares, lynxes = trajectory(draws.T.astype(np.float64), 20)
    want = ((np.log(np.stack([hares, lynxes], -1)[::50]) - np.log(counts)[:, None]) ** 2).sum((0, 2))
    # the solver's tolerance of 1e-5 a step, over tens of steps, on squares of logarithms up to about 10
    np.testing.assert_allclose(got, want, rtol=2e-3)
    assert (np.asarray(steps) >= 20).all()
    assert (np.asarray(steps) < 300).all()


@pytest.mark.full
def test_a_model_that_explodes_is_given_up_on() -> None:
    _, counts = load_counts()
    # nothing eats the hares and they multiply by e^80 a year: beyond the largest float32
    total, steps = misfit(jnp.array([80.0, 0.0, 0.1, 0.0, 30.0, 4.0]), jnp.log(counts))
    assert float(total) == np.inf
    assert int(steps) == MAX_STEPS


@pytest.mark.full
@pytest.mark.parametrize("variance", [0.01, np.nan], ids=["with errors", "without errors"])
def test_the_figure_is_a_png(tmp_path, variance: float) -> None:
    pytest.importorskip("matplotlib", reason="the figure needs the extra `demo`")
    years, counts = load_counts()
    starts = draw_starts(50, 0)
    fits = 1.0 + np.arange(50.0)
    fits[7] = np.inf  # a model that was given up on
    path = tmp_path / "demo.png"
    best = np.log(np.array(CARPENTER))
    draw_figure(path, years, counts, (best, variance * np.eye(6)), np.ones((5, 4)), (starts, starts + 0.1, fits))
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 20_000
