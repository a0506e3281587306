"""The model of the demo, by itself: data, solver and the figure's helpers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdtrace.tools.demo_model import CENTRE, MAX_STEPS, draw_parameters, load_counts, misfit, trajectory, try_step
from qdtrace.tools.demo_plot import draw_figure, draw_likely


def test_counts_are_the_published_table() -> None:
    years, counts = load_counts()
    np.testing.assert_array_equal(years, np.arange(1900, 1921))
    assert counts.shape == (21, 2)
    assert counts.dtype == np.float32
    np.testing.assert_array_equal(counts[[0, 4, 20]], np.float32([[30.0, 4.0], [36.3, 59.4], [24.7, 8.6]]))
    # sums of the two columns, in tenths
    assert np.round(10 * counts.astype(np.float64)).sum(0).tolist() == [7157, 4235]


def test_draws_are_log_normal_around_the_centre_and_reproducible() -> None:
    draws = draw_parameters(20_000, 3)
    assert draws.dtype == np.float32
    # the standard error of a median of 20 000 draws with deviation 0.35 is 0.003: five of them
    np.testing.assert_allclose(np.median(np.log(draws), axis=0), np.log(CENTRE), atol=0.016)
    np.testing.assert_array_equal(draws, draw_parameters(20_000, 3))
    assert (draws != draw_parameters(20_000, 4)).all()


def test_a_step_has_order_five_or_more() -> None:
    with jax.enable_x64(True):
        p = jnp.array(CENTRE, jnp.float64)

        def error_of(h: float) -> float:
            _, hares, lynxes = trajectory(np.array([*CENTRE[:4], 50.0, 20.0]), 1, per_year=4096)
            at = round(h * 4096)
            hare, lynx, _ = try_step(jnp.float64(50.0), jnp.float64(20.0), h, p)
            return float(abs(hare - hares[at]) + abs(lynx - lynxes[at]))

        # the local error is of order six, so halving the step divides it by 64 or, where the leading term is small,
        # by more; a method of order four would give 32
        assert error_of(0.5) / error_of(0.25) > 50


def test_misfit_agrees_with_a_fine_fixed_step_solution() -> None:
    _, counts = load_counts()
    draws = draw_parameters(200, 1)
    got, steps = jax.vmap(misfit, (0, None))(jnp.asarray(draws), jnp.log(counts))
    _, hares, lynxes = trajectory(draws.T.astype(np.float64), 20)
    want = ((np.log(np.stack([hares, lynxes], -1)[::50]) - np.log(counts)[:, None]) ** 2).sum((0, 2))
    # the solver's tolerance of 1e-5 a step, over tens of steps, on squares of logarithms up to about 10
    np.testing.assert_allclose(got, want, rtol=2e-3)
    assert (np.asarray(steps) >= 20).all()
    assert (np.asarray(steps) < 300).all()


def test_a_model_that_explodes_is_given_up_on() -> None:
    _, counts = load_counts()
    # nothing eats the hares and they multiply by e^80 a year: beyond the largest float32
    total, steps = misfit(jnp.array([80.0, 0.0, 0.1, 0.0, 30.0, 4.0]), jnp.log(counts))
    assert float(total) == np.inf
    assert int(steps) == MAX_STEPS


@pytest.mark.parametrize("spread", [0.0, 100.0])
def test_likely_draws_prefer_small_misfits(spread: float) -> None:
    fits = np.full(1000, 2.0, np.float32)
    fits[17] -= spread and 1.0
    fits[18:] += np.float32(spread)
    taken = draw_likely(np.zeros((1000, 6)), fits, observations=42, count=500)
    if spread:
        assert set(taken) == {17}
    else:
        assert len(set(taken)) > 300  # 500 of 1000 with return: 393 expected, deviation below 10


def test_the_figure_is_a_png(tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="the figure needs the extra `demo`")
    years, counts = load_counts()
    draws = draw_parameters(50, 0)
    path = tmp_path / "demo.png"
    draw_figure(path, years, counts, draws[0], draws, np.arange(50.0))
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 20_000
