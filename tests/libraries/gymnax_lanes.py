"""Gymnax: environments and games, each lane with a policy of its own."""

import gymnax
import jax
import jax.numpy as jnp

from tests.libraries.lanes import Lanes, keys, spread

GYMNAX = Lanes()


def rollout(name, words, gain, steps):
    env, parameters = gymnax.make(name)
    key = jax.random.wrap_key_data(words)
    seen, state = env.reset(key, parameters)

    def step(carry, key):
        seen, state, total = carry
        last = seen.ravel()[-1] * gain
        action = (last > 0).astype(int) if name != "Pendulum-v1" else -last[None]
        seen, state, reward, *_ = env.step(key, state, action, parameters)
        return (seen, state, total + reward), None

    (seen, _, total), _ = jax.lax.scan(step, (seen, state, jnp.zeros(())), jax.random.split(key, steps))
    return seen, total


@GYMNAX(keys(), spread(0.5, 2.0), rtol=1e-6, slow=False)
def cart_pole(words, gain):
    return rollout("CartPole-v1", words, gain, 20)


@GYMNAX(keys(), spread(0.1, 1.0), rtol=1e-6, single=1e-3)
def swing(words, gain):
    return rollout("Pendulum-v1", words, gain, 20)


@GYMNAX(keys(), spread(0.1, 1.0), rtol=1e-6, single=1e-3)
def acrobot(words, gain):
    return rollout("Acrobot-v1", words, gain, 5)


@GYMNAX(keys(), spread(0.1, 1.0))
def breakout(words, gain):
    return rollout("Breakout-MinAtar", words, gain, 20)
