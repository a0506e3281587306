# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A torch network that learns to throw
#
# A small network of torch is told how far a target is and how the wind blows, and says how to throw a ball. It is
# never shown a good throw: each step of its training simulates a batch of throws, looks at where they land, and
# follows the gradient of the miss back through the simulation into the network. The simulation is a lane of this
# package: each ball flies until it lands, so lanes take different numbers of steps. `qd.torch` makes it a function of
# tensors. It needs torch (`pip install 'qdtrace[torch]'`).

# %%
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import torch

import qdtrace as qd

torch.manual_seed(0)
torch.set_num_threads(1)  # its pool of threads would wait beside that of the kernels

# %% [markdown]
# ## The flight
#
# Drag grows with the square of the speed through the air, which moves with the wind. The last step of a flight ends
# below the ground: where the ball lands is found on the line between the last two places, so that it is a smooth
# function of the throw.

# %%
DRAG, STEP = 0.02, 0.02


def fall(place, speed, wind):
    """One step of a flight."""
    through = speed - jnp.stack([wind, 0.0 * wind])
    pull = -DRAG * jnp.sqrt((through**2).sum()) * through - jnp.array([0.0, 9.81])
    speed = speed + STEP * pull
    return place + STEP * speed, speed


def landing(speed, wind):
    """How far a ball flies."""

    def step(state):
        _, place, speed = state
        return place, *fall(place, speed, wind)

    start = jnp.array([0.0, 1.5])
    first = (start, *fall(start, speed, wind))
    before, after, _ = jax.lax.while_loop(lambda s: s[1][1] > 0.0, step, first)
    part = before[1] / (before[1] - after[1])
    return before[0] + part * (after[0] - before[0])


land: Any = qd.torch(qd.vmap(landing))
print(land(torch.tensor([[10.0, 10.0], [20.0, 5.0]]), torch.tensor([0.0, -5.0])))

# %% [markdown]
# Torch checks the gradient against differences of values, in 64 bits.

# %%
with jax.enable_x64(True):
    throws = torch.tensor([[10.0, 10.0], [20.0, 5.0]], dtype=torch.float64, requires_grad=True)
    winds = torch.tensor([0.0, -5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(land, (throws, winds))

# %% [markdown]
# ## The network
#
# Two numbers in, two numbers out: the speed of the throw, along the ground and upwards.

# %%
network: Any = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
optimiser = torch.optim.Adam(network.parameters(), lr=0.01)


def drawn(count):
    """Targets, and the wind."""
    return 15.0 + 25.0 * torch.rand(count), 16.0 * torch.rand(count) - 8.0


def thrown(targets, winds):
    """The throws of the network."""
    return 15.0 + 10.0 * network(torch.stack([(targets - 27.0) / 12.0, winds / 8.0], 1))


def misses(targets, winds):
    """How far beside the target they land."""
    return land(thrown(targets, winds), winds) - targets


test = drawn(512)
with torch.no_grad():
    before = misses(*test)

losses = []
for _ in range(300):
    optimiser.zero_grad()
    loss = misses(*drawn(256)).square().mean()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())

with torch.no_grad():
    after = misses(*test)
print(f"mean miss: {before.abs().mean():.1f} m before, {after.abs().mean():.2f} m after")
assert after.abs().mean() < 0.5 < 3.0 < before.abs().mean()

# %% [markdown]
# ## What it has learned
#
# Throws at one target in three winds, before the last line of the flight, and the misses along the training.

# %%
def flight(speed, wind):
    """Places of one flight."""
    places = [np.array([0.0, 1.5])]
    while places[-1][1] > 0.0:
        through = speed - np.array([wind, 0.0])
        speed = speed + STEP * (-DRAG * np.hypot(*through) * through - np.array([0.0, 9.81]))
        places.append(places[-1] + STEP * speed)
    return np.array(places)


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), gridspec_kw={"width_ratios": [2, 1]})
for target, color in ((18.0, "tab:blue"), (28.0, "tab:orange"), (38.0, "tab:green")):
    for wind, style in ((-8.0, ":"), (0.0, "-"), (8.0, "--")):
        with torch.no_grad():
            throw = thrown(torch.tensor([target]), torch.tensor([wind]))[0].numpy()
        left.plot(*flight(throw, wind).T, style, color=color, label=f"wind {wind:+.0f} m/s" if target == 18.0 else None)
    left.plot(target, 0, "v", color=color, markersize=10)
left.set(xlabel="m", ylabel="m", ylim=(0, None), title="Throws of the trained network")
left.legend(loc="upper left")
right.semilogy(np.sqrt(losses))
right.set(xlabel="step", ylabel="m", title="Miss (root of the mean square)")
figure.tight_layout()
