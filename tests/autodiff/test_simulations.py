"""Simulations differentiated as a whole: gradients are right, and descent along them makes the loss smaller."""

import jax
import numpy as np
import pytest

import qdtrace as qd
from tests.autodiff.simulations import billiards, elastic, mass_spring, wave


def picture():
    """Heights that start from a hill beside the middle."""
    hill = np.zeros((10, 10))
    hill[3:6, 5:8] = 1
    return wave.heights(hill, 12)


PROGRAMS = {
    "mass_spring": (lambda net: mass_spring.loss(net, 40), mass_spring.weights(), 0.3),
    "elastic": (lambda thrown: elastic.loss((*thrown, 20.0), 30), (np.array([1.0, 0.5]),), 5.0),
    "stiffness": (lambda young: elastic.loss((np.array([1.0, -2.0]), young), 40), 20.0, 3000.0),
    "wave": (lambda start: wave.loss(start, picture(), 12), np.full((10, 10), 0.1), 0.1),
    "billiards": (lambda v: billiards.loss((np.array([0.1, 0.5]), v), 40), np.array([1.1, 0.05]), 0.02),
    "billiards by start": (lambda x: billiards.loss((x, np.array([1.1, 0.05])), 40), np.array([0.1, 0.5]), 0.02),
}


@pytest.mark.full
@pytest.mark.sample(3, full=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name):
    loss, start, _ = PROGRAMS[name]
    qd.check_grads(loss, (start,))


@pytest.mark.parametrize("name", ["mass_spring", "elastic", "wave", "billiards"])
@pytest.mark.full
def test_descent(name):
    loss, parameters, rate = PROGRAMS[name]
    both = jax.jit(jax.value_and_grad(loss))
    losses = []
    for _ in range(6):
        value, slope = both(parameters)
        losses.append(float(value))
        parameters = jax.tree.map(lambda p, g: p - rate * g, parameters, slope)
    assert losses == sorted(losses, reverse=True)
    assert losses[0] - losses[-1] > 0.05 * abs(losses[0])
