"""Blackjax: chains of samplers, each lane its own: trees of NUTS end where a lane turns around."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from tests.libraries.lanes import Lanes, keys, uniform

BLACKJAX = Lanes()


def density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4) + 0.3 * x[0] * x[1]


def chain(kernel, words, start, steps):
    state = kernel.init(start)

    def step(state, key):
        return kernel.step(key, state)[0], None

    split = jax.random.split(jax.random.wrap_key_data(words), steps)
    return jax.lax.scan(step, state, split)[0].position


@BLACKJAX(keys(), uniform(2), rtol=1e-6, single=1e-3)
def nuts(words, start):
    return chain(blackjax.nuts(density, 0.3, np.ones(2), max_num_doublings=6), words, start, 3)


@BLACKJAX(keys(), uniform(2), rtol=1e-7, slow=False)
def hmc(words, start):
    return chain(blackjax.hmc(density, 0.2, np.ones(2), 8), words, start, 3)


@BLACKJAX(keys(), uniform(2), rtol=1e-7)
def mala(words, start):
    return chain(blackjax.mala(density, 0.1), words, start, 6)


@BLACKJAX(keys(), uniform(2), rtol=1e-7)
def random_walk(words, start):
    kernel = blackjax.additive_step_random_walk(density, blackjax.mcmc.random_walk.normal(0.3 * jnp.ones(2)))
    return chain(kernel, words, start, 6)


@BLACKJAX(keys(), uniform(2), rtol=1e-6)
def slices(words, start):
    return chain(blackjax.elliptical_slice(density, mean=jnp.zeros(2), cov=jnp.eye(2)), words, start, 4)
