"""Dynamax: filters of linear and nonlinear Gaussian models, and of hidden Markov models."""

import jax
import jax.numpy as jnp
from dynamax.hidden_markov_model.inference import hmm_filter, hmm_posterior_mode, hmm_smoother
from dynamax.linear_gaussian_ssm import inference as linear
from dynamax.nonlinear_gaussian_ssm import ParamsNLGSSM, extended_kalman_filter, unscented_kalman_filter
from dynamax.nonlinear_gaussian_ssm.inference_ukf import UKFHyperParams

from tests.libraries.lanes import Lanes, spread, uniform

DYNAMAX = Lanes()
STEPS = 12


def model(friction, noise):
    """A body that is seen where it is; there are no inputs, so their weights have no elements."""
    weights = jnp.array([[1.0, 0.1], [0.0, 1.0]]) - jnp.array([[0.0, 0.0], [0.0, 1.0]]) * friction * 0.1
    return linear.ParamsLGSSM(
        initial=linear.ParamsLGSSMInitial(mean=jnp.zeros(2), cov=jnp.eye(2)),
        dynamics=linear.ParamsLGSSMDynamics(
            weights=weights, bias=jnp.zeros(2), input_weights=jnp.zeros((2, 0)), cov=0.1 * jnp.eye(2)
        ),
        emissions=linear.ParamsLGSSMEmissions(
            weights=jnp.array([[1.0, 0.0]]), bias=jnp.zeros(1), input_weights=jnp.zeros((1, 0)), cov=noise * jnp.eye(1)
        ),
    )


@DYNAMAX(spread(0.1, 0.9), spread(0.2, 1.0), uniform(STEPS, 1), rtol=1e-7, slow=False, single=1e-3)
def kalman_filter(friction, noise, seen):
    found = linear.lgssm_filter(model(friction, noise), seen)
    return found.marginal_loglik, found.filtered_means


@DYNAMAX(spread(0.1, 0.9), spread(0.2, 1.0), uniform(STEPS, 1), rtol=1e-7, single=1e-3)
def kalman_smoother(friction, noise, seen):
    return linear.lgssm_smoother(model(friction, noise), seen).smoothed_means


def pendulum(step):
    return ParamsNLGSSM(
        initial_mean=jnp.array([0.5, 0.0]),
        initial_covariance=jnp.eye(2) * 0.1,
        dynamics_function=lambda z: jnp.array([z[0] + z[1] * step, z[1] - 9.8 * jnp.sin(z[0]) * step]),
        dynamics_covariance=0.01 * jnp.eye(2),
        emission_function=lambda z: jnp.array([jnp.sin(z[0])]),
        emission_covariance=0.3 * jnp.eye(1),
    )


@DYNAMAX(spread(0.02, 0.1), uniform(STEPS, 1), rtol=1e-7, single=1e-3)
def extended(step, seen):
    found = extended_kalman_filter(pendulum(step), seen)
    return found.marginal_loglik, found.filtered_means


@DYNAMAX(spread(0.02, 0.1), uniform(STEPS, 1), rtol=1e-6, single=1e-2)
def unscented(step, seen):
    return unscented_kalman_filter(pendulum(step), seen, UKFHyperParams()).filtered_means


@DYNAMAX(spread(0.05, 0.4), uniform(STEPS, 3), rtol=1e-7)
def hidden_states(change, scores):
    transitions = jnp.eye(3) * (1 - change) + (1 - jnp.eye(3)) * change / 2
    start, scores = jnp.ones(3) / 3, jax.nn.log_softmax(scores)
    found = hmm_smoother(start, transitions, scores)
    likelihood = hmm_filter(start, transitions, scores).marginal_loglik
    return likelihood, found.smoothed_probs, hmm_posterior_mode(start, transitions, scores)
