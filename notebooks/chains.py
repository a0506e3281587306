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
# # Chains that do not wait
#
# The No-U-Turn sampler (NUTS) draws from a distribution. For each draw it follows a path until the path turns back,
# which takes between one step and hundreds. Many chains under `jax.vmap` wait for the longest path at each draw. With
# `qd.vmap` each chain goes on by itself.
#
# Samplers of packages such as BlackJAX run as lanes unchanged. This notebook needs none: it writes NUTS in sixty lines
# of plain JAX, so that everything is in sight.

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import qdtrace as qd

# %% [markdown]
# ## A distribution that is hard to sample
#
# A funnel: v is normal with the standard deviation 1.5, and each x is normal with the standard deviation exp(v / 2). In
# the neck a path turns after a few steps; in the mouth it is long. So chains at different places need very different
# numbers of steps. As we know the distribution of v, we can see whether the sampler is right.

# %%
dimension = 5


def log_density(z):
    v, x = z[0], z[1:]
    scale = jnp.exp(-v)
    return -0.5 * (v / 1.5) ** 2 - 0.5 * scale * jnp.dot(x, x) - 0.5 * (dimension - 1) * v


# %% [markdown]
# ## NUTS
#
# One draw: give the point a random momentum, then double the path, forward or back in time, until the path as a whole,
# or a part of it, turns. Each new half is built in a loop; the points where a part of the path begins are kept in a
# small array with one place a doubling. Of the points of the path one is drawn, by its density.

# %%
DEPTH = 8  # at most 255 steps
slope_of = jax.grad(log_density)


def leap(z, p, direction, size):
    p = p + 0.5 * size * direction * slope_of(z)
    z = z + size * direction * p
    return z, p + 0.5 * size * direction * slope_of(z)


def energy(z, p):
    return 0.5 * jnp.dot(p, p) - log_density(z)


def turns(z_left, p_left, z_right, p_right):
    way = z_right - z_left
    return (jnp.dot(way, p_left) < 0) | (jnp.dot(way, p_right) < 0)


def half_path(key, z, p, direction, count, size, start_energy):
    """Goes `count` steps, a power of two; gives the last point, a drawn point, its weight, and whether to stop."""

    def going(state):
        return (state[0] < count) & ~state[1]

    def step(state):
        k, _, z, p, drawn, weight, places, momenta, key = state
        z, p = leap(z, p, direction, size)
        gain = start_energy - energy(z, p)
        key, draw = jax.random.split(key)
        total = jnp.logaddexp(weight, gain)
        drawn = jnp.where(jnp.log(jax.random.uniform(draw)) < gain - total, z, drawn)
        # of the parts of the path that end here, each began where a bit of k became zero
        slot = jax.lax.population_count(k >> 1)
        places = jnp.where(k % 2 == 0, places.at[slot].set(z), places)
        momenta = jnp.where(k % 2 == 0, momenta.at[slot].set(p), momenta)
        ends = jax.lax.population_count((~k & (k + 1)) - 1)

        def turned(level, found):
            at = slot - level
            first_z, first_p = places[at], momenta[at]
            way = direction * (z - first_z)
            return found | (jnp.dot(way, first_p) < 0) | (jnp.dot(way, p) < 0)

        parts = jnp.where(k % 2 == 0, 0, ends)  # as many as k has ones at its end
        stop = jax.lax.fori_loop(0, parts, turned, jnp.bool_(False)) | ~(gain > -1000)
        return k + 1, stop, z, p, drawn, total, places, momenta, key

    empty = jnp.zeros((DEPTH + 1, dimension))
    state = (jnp.int32(0), jnp.bool_(False), z, p, z, jnp.float32(-jnp.inf), empty, empty, key)
    k, stop, z, p, drawn, weight, *_ = jax.lax.while_loop(going, step, state)
    return z, p, drawn, weight, stop, k


def draw(key, z, size):
    key, kick = jax.random.split(key)
    p = jax.random.normal(kick, (dimension,))
    start_energy = energy(z, p)

    def growing(state):
        return (state["depth"] < DEPTH) & ~state["stop"]

    def double(s):
        key, way, inner, choice = jax.random.split(s["key"], 4)
        forward = jax.random.bernoulli(way)
        direction = jnp.where(forward, 1.0, -1.0)
        z, p = jnp.where(forward, s["z_right"], s["z_left"]), jnp.where(forward, s["p_right"], s["p_left"])
        z, p, drawn, weight, stop, steps = half_path(inner, z, p, direction, 1 << s["depth"], size, start_energy)
        take = ~stop & (jnp.log(jax.random.uniform(choice)) < weight - s["weight"])
        left, right = jnp.where(forward, s["z_left"], z), jnp.where(forward, z, s["z_right"])
        p_left, p_right = jnp.where(forward, s["p_left"], p), jnp.where(forward, p, s["p_right"])
        return {
            "depth": s["depth"] + 1,
            "stop": stop | turns(left, p_left, right, p_right),
            "z_left": left,
            "p_left": p_left,
            "z_right": right,
            "p_right": p_right,
            "drawn": jnp.where(take, drawn, s["drawn"]),
            "weight": jnp.logaddexp(s["weight"], weight),
            "steps": s["steps"] + steps,
            "key": key,
        }

    ends = {"z_left": z, "p_left": p, "z_right": z, "p_right": p, "drawn": z}
    counts = {"depth": jnp.int32(0), "steps": jnp.int32(0), "stop": jnp.bool_(False), "weight": jnp.float32(0)}
    last = jax.lax.while_loop(growing, double, {**ends, **counts, "key": key})
    return last["drawn"], last["steps"]


# %% [markdown]
# A chain is a `lax.scan` over draws. This is a function of one chain; nothing in it knows of batches. It gives each
# point and the number of steps that it took. The key of a draw is made where it is needed: `jax.random.split(key, 200)`
# would be an array in each lane, and a lane refuses to make so many keys at once.


# %%
def chain(key, draws, size=0.15):
    start, key = jax.random.split(key)

    def next_draw(z, k):
        z, steps = draw(jax.random.fold_in(key, k), z, size)
        return z, (z, steps)

    z = 0.5 * jax.random.normal(start, (dimension,))
    return jax.lax.scan(next_draw, z, jnp.arange(draws))[1]


def timed(f, keys):
    compiled = jax.jit(f).lower(keys).compile()
    began = time.perf_counter()
    result = jax.block_until_ready(compiled(keys))
    return result, time.perf_counter() - began


chains, draws = 1000, 200
keys = jax.random.split(jax.random.key(0), chains)
(points, steps), took = timed(qd.vmap(lambda key: chain(key, draws)), keys)
print(f"{chains} chains of {draws} draws: {int(steps.sum()):,} steps in {took:.1f} s")
assert points.shape == (chains, draws, dimension)
assert jnp.isfinite(points).all()

# %% [markdown]
# ## Is it right?
#
# The first half of each chain is its way from the start; we look at the second. v must be normal. Chains must agree
# with each other: the variance between them, beside that within them (R-hat), must be near one.

# %%
v = np.asarray(points[:, draws // 2 :, 0])
within, between = v.var(1, ddof=1).mean(), v.mean(1).var(ddof=1)
r_hat = np.sqrt((v.shape[1] - 1) / v.shape[1] + between / within)
print(f"v: mean {v.mean():.3f} (0), standard deviation {v.std():.3f} (1.5), R-hat {r_hat:.3f}")
assert abs(v.mean()) < 0.15
assert abs(v.std() - 1.5) < 0.15
assert r_hat < 1.15

figure, axes = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
last = points[:, -20:].reshape(-1, dimension)
shown = axes[0].scatter(last[:, 1], last[:, 0], c=np.asarray(steps[:, -20:]).ravel(), s=1, norm="log")
axes[0].set(title="points of all chains; colour: steps of the draw", xlabel="x[0]", ylabel="v", xlim=(-12, 12))
figure.colorbar(shown, ax=axes[0])
line = np.linspace(-5, 5, 200)
axes[1].hist(v.ravel(), bins=80, density=True, color="lightgrey", label="drawn")
axes[1].plot(line, np.exp(-0.5 * (line / 1.5) ** 2) / (1.5 * np.sqrt(2 * np.pi)), label="exact")
axes[1].set(title="v", xlabel="v")
axes[1].legend()
plt.show()

# %% [markdown]
# ## Who waits for whom
#
# Left: each row is a chain, its parts are its draws, as long as their paths. In lanes they follow each other at once.
# Right: in lock-step every draw of every chain is as long as the longest of all chains at that draw. White is waiting.

# %%
some, few = 25, 12
lengths = np.asarray(steps[:some, :few])
longest = np.asarray(steps[:, :few].max(0))
figure, axes = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True, sharex=True, sharey=True)
for axis, starts in ((axes[0], np.cumsum(lengths, 1) - lengths), (axes[1], np.cumsum(longest) - longest)):
    for k in range(few):
        begin = np.broadcast_to(starts, (some, few))[:, k]
        axis.barh(range(some), lengths[:, k], left=begin, height=1.0, color=("tab:blue", "tab:cyan")[k % 2])
    axis.set_xlabel("steps")
axes[0].set(title="lanes: twelve draws of 25 chains", ylabel="chain")
axes[1].set_title("lock-step: the same draws")
plt.show()

lockstep_share = float(steps.mean() / steps.max(0).mean())
lanes_share = float(steps.sum(1).mean() / steps.sum(1).max())
print(f"of the time of a chain, work is {100 * lockstep_share:.0f} % in lock-step, {100 * lanes_share:.0f} % if each "
      "goes on by itself and the last one is waited for")
assert lockstep_share < 0.5
assert lanes_share > 1.3 * lockstep_share

# %% [markdown]
# `jax.vmap` of the same function, with fewer draws as it takes its time. Both draw from the same keys; rounding sends a
# few paths elsewhere.

# %%
short = 10
(alike, steps_lanes), ours = timed(qd.vmap(lambda key: chain(key, short)), keys)
(same, steps_lockstep), theirs = timed(jax.vmap(lambda key: chain(key, short)), keys)
print(f"{short} draws of {chains} chains: qd.vmap {1e3 * ours:.0f} ms, jax.vmap {1e3 * theirs:.0f} ms, "
      f"ratio {theirs / ours:.0f}")
first = jnp.abs(alike[:, 0] - same[:, 0]).max(-1) < 1e-2
print(f"the same first draw: {100 * first.mean():.1f} %, the same number of steps: "
      f"{100 * jnp.mean(steps_lanes == steps_lockstep):.1f} %")
assert first.mean() > 0.9
assert jnp.mean(steps_lanes[:, 0] == steps_lockstep[:, 0]) > 0.9

# %% [markdown]
# ## With a package
#
# The same for BlackJAX, whose kernels are functions of one chain as well:
#
# ```
# import blackjax
#
# def chain(key, start):
#     sampler = blackjax.nuts(log_density, step_size=0.15, inverse_mass_matrix=jnp.ones(dimension))
#     def next_draw(state, k):
#         state, info = sampler.step(jax.random.fold_in(key, k), state)
#         return state, (state.position, info.num_integration_steps)
#     return jax.lax.scan(next_draw, sampler.init(start), jnp.arange(200))[1]
#
# points, steps = jax.jit(qd.vmap(chain))(keys, starts)
# ```
