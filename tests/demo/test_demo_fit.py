"""The fit of the demo: gradients through the solver's loop, the descent and the errors of what it finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdtrace.tools.demo_fit import covariance, descent, gradients, one
from qdtrace.tools.demo_model import CARPENTER, MAX_STEPS, draw_starts, load_counts

BEST = (0.540, 0.0272, 0.796, 0.0237, 34.6, 5.84)
"""Where the misfit is smallest, to three digits."""


@pytest.mark.full
def test_misfits_and_gradients_are_those_of_jax() -> None:
    with jax.enable_x64(True):  # in f32 a rounding may reject a step that another accepts
        log_counts = jnp.log(load_counts()[1].astype(np.float64))
        logs = jnp.asarray(draw_starts(300, 0), jnp.float64)
        got, (fits, steps) = jax.jit(gradients)(logs, log_counts)
        want, tried = jax.jit(jax.vmap(jax.jacfwd(one, has_aux=True), (0, None)))(logs, log_counts)
        np.testing.assert_array_equal(steps, tried)
        assert len(set(np.asarray(steps).tolist())) > 50
        np.testing.assert_allclose(fits, jax.vmap(one, (0, None))(logs, log_counts)[0], rtol=1e-10)
        # sums of hundreds of terms that cancel: against the largest component of a gradient
        scale = np.abs(np.asarray(want)).max(1, keepdims=True)
        np.testing.assert_allclose(got / scale, want / scale, atol=1e-8)


@pytest.mark.full
def test_the_descent_arrives_at_the_published_values() -> None:
    pytest.importorskip("optax", reason="the descent needs the extra `demo`")
    log_counts = jnp.log(load_counts()[1])
    logs = jnp.asarray(draw_starts(256, 0))
    start, improve = descent(150)
    memory = start(logs)
    for _ in range(150):
        logs, memory, fits, _ = improve(logs, memory, log_counts)
    fits = np.asarray(fits)
    assert np.mean(fits < 1.01 * fits.min()) > 0.25
    best = np.exp(np.asarray(logs[np.argmin(fits)]))
    np.testing.assert_allclose(best, BEST, rtol=5e-3)
    # posterior means, within half of their standard deviations
    errors = best * np.sqrt(np.diag(covariance(jnp.log(best), log_counts)))
    assert (np.abs(best - CARPENTER) < 0.5 * errors).all()


@pytest.mark.full
def test_a_model_that_is_given_up_on_stays() -> None:
    pytest.importorskip("optax", reason="the descent needs the extra `demo`")
    log_counts = jnp.log(load_counts()[1])
    # the first explodes: nothing eats the hares and they multiply by e^80 a year
    logs = jnp.log(jnp.array([[80.0, 1e-9, 0.1, 1e-9, 30.0, 4.0], CARPENTER]))
    start, improve = descent(10)
    moved, _, fits, steps = improve(logs, start(logs), log_counts)
    assert np.isinf(fits[0])
    assert steps[0] == MAX_STEPS
    np.testing.assert_array_equal(moved[0], logs[0])
    assert np.isfinite(moved[1]).all()
    assert (moved[1] != logs[1]).any()


@pytest.mark.full
def test_there_are_no_errors_away_from_a_minimum() -> None:
    log_counts = jnp.log(load_counts()[1])
    got = covariance(jnp.log(jnp.array(CARPENTER)) + 0.5, log_counts)
    assert np.isnan(got).all()
    assert got.shape == (6, 6)


@pytest.mark.full
def test_the_errors_are_those_of_slopes_of_gradients() -> None:
    log_counts = jnp.log(load_counts()[1])
    logs = jnp.log(jnp.array(BEST))
    got = covariance(logs, log_counts)
    assert (np.linalg.eigvalsh(got) > 0).all()
    with jax.enable_x64(True):
        counts, apart = log_counts.astype(jnp.float64), 1e-5 * jnp.eye(6, dtype=jnp.float64)
        around = jnp.concatenate([logs + apart, logs - apart])
        slopes, (fits, _) = jax.jit(gradients)(around, counts)
        hessian = (slopes[:6] - slopes[6:]) / 2e-5
        want = 2.0 * fits.mean() / (counts.size - 6) * jnp.linalg.inv(0.5 * (hessian + hessian.T))
    # float32 through fifty steps, and a condition of the matrix near a hundred
    np.testing.assert_allclose(np.sqrt(np.diag(got)), np.sqrt(np.diag(want)), rtol=2e-3)
