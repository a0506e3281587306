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
# # A million differential equations
#
# [Diffrax](https://docs.kidger.site/diffrax) solves differential equations in JAX. Its solvers are loops that end when
# the solution does, and adaptive steps differ from one problem to the next. `qd.vmap` runs each solve in a lane of its
# own, with its own steps. This notebook solves a million of them, differentiates them, and fits a model to data.
#
# ```
# pip install '.[notebooks]'
# ```

# %%
import time

import diffrax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import qdtrace as qd

# %% [markdown]
# ## One solve
#
# Neurons fire when they are driven strongly enough. The model of FitzHugh and Nagumo is the simplest that does: v is
# the voltage, w recovers slowly, I is the current that drives it.
#
# dv/dt = v - v^3/3 - w + I,   dw/dt = (v + a - b w) / tau
#
# This function is plain Diffrax. Nothing in it knows of lanes.


# %%
def neuron(t, y, args):
    current, a, tau = args
    v, w = y
    return jnp.stack([v - v**3 / 3 - w + current, (v + a - 0.8 * w) / tau])


def solve(current, a=0.7, tau=12.5, save=None, rtol=1e-4, end=100.0, throw=True):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(neuron),
        diffrax.Tsit5(),
        0.0,
        end,
        0.1,
        jnp.array([-1.2, -0.6]),
        args=(current, a, tau),
        saveat=diffrax.SaveAt(t1=True) if save is None else diffrax.SaveAt(ts=save),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=1e-4),
        max_steps=4096,
        throw=throw,
    )


times = jnp.linspace(0.0, 100.0, 300)
currents = jnp.array([0.1, 0.3, 0.34, 0.5, 0.9])
traces = jax.jit(qd.vmap(lambda current: solve(current, save=times).ys[:, 0]))(currents)
np.testing.assert_allclose(traces[3], solve(currents[3], save=times).ys[:, 0], atol=0.05)

plt.figure(figsize=(8, 4), constrained_layout=True)
for k, trace in enumerate(traces):
    plt.plot(times, trace + 5 * k)
    plt.text(101, float(trace[-1]) + 5 * k, f"I = {currents[k]:.2f}")
plt.title("a neuron fires when the current is strong enough")
plt.xlabel("time")
plt.yticks([])
plt.xlim(0, 115)
plt.show()
assert jnp.ptp(traces[0]) < 1 < jnp.ptp(traces[3])

# %% [markdown]
# ## A million solves
#
# A thousand currents times a thousand values of tau. A lane keeps its state in registers, so the memory that the call
# needs is that of its arguments and results. We keep the place at the end and the number of steps.
#
# In single precision one or two solves in a million get stuck: by rounding they refuse one step after another. This is
# Diffrax's arithmetic, `jax.vmap` shows it as often. Diffrax makes that an error of the whole call; with `throw=False`
# the others go on, and the number of steps tells.


# %%
def end_and_steps(current, tau):
    solution = solve(current, 0.7, tau, throw=False)
    return solution.ys[-1], solution.stats["num_steps"]


side = 1000
current, tau = jnp.meshgrid(jnp.linspace(0.0, 1.6, side), jnp.logspace(0.3, 1.7, side), indexing="xy")
million = jax.jit(qd.vmap(end_and_steps)).lower(current.ravel(), tau.ravel()).compile()
began = time.perf_counter()
end, steps = jax.block_until_ready(million(current.ravel(), tau.ravel()))
took = time.perf_counter() - began
print(f"{side**2:,} solves, {int(steps.sum()):,} steps in {took:.1f} s: {1e9 * took / steps.sum():.0f} ns a step")
stuck = steps >= 4096
print(f"stuck: {int(stuck.sum())}")
assert stuck.sum() < 30
assert jnp.isfinite(end).all()

figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), constrained_layout=True)
for axis, values, title, colours in (
    (axes[0], end[:, 0], "voltage at the end", "twilight"),
    (axes[1], jnp.where(stuck, 0, steps), "steps of each solve", "viridis"),
):
    image = axis.pcolormesh(current, tau, values.reshape(side, side), cmap=colours, rasterized=True)
    axis.set(title=title, xlabel="current I", ylabel="tau", yscale="log")
    figure.colorbar(image, ax=axis)
plt.show()

# %% [markdown]
# At the left and at the right the neuron is at rest; between, where it fires, the colour is the phase at which time
# ran out. Solves differ in their number of steps. Under `jax.vmap` each takes as many as the longest of its batch. We
# try that with a part of them, as a million take long.

# %%
longest = int(steps[~stuck].max())
print(f"steps: mean {steps.mean():.0f}, longest {longest}")
assert longest > 1.5 * steps.mean()

some = jax.random.permutation(jax.random.key(0), side**2)[:4000]
lanes, lockstep = jax.jit(qd.vmap(end_and_steps)), jax.jit(jax.vmap(end_and_steps))


def timed(f):
    result = jax.block_until_ready(f(current.ravel()[some], tau.ravel()[some]))
    began = time.perf_counter()
    jax.block_until_ready(f(current.ravel()[some], tau.ravel()[some]))
    return result, time.perf_counter() - began


(end_lanes, steps_lanes), ours = timed(lanes)
(end_lockstep, steps_lockstep), theirs = timed(lockstep)
print(f"4000 solves: qd.vmap {1e3 * ours:.0f} ms, jax.vmap {1e3 * theirs:.0f} ms, ratio {theirs / ours:.0f}")
close = jnp.abs(end_lanes - end_lockstep).max(-1) < 1e-2
print(f"the same end in both: {100 * close.mean():.1f} %")
assert close.mean() > 0.97
assert jnp.median(jnp.abs(steps_lanes - steps_lockstep)) <= 1

# %% [markdown]
# ## Derivatives
#
# `jax.grad` goes back through every step that a lane has taken. Here: how the end depends on the current, for many
# currents at once. Differences of values say the same. At the threshold of firing, near 0.16, the voltage changes so
# fast that neither helps.


# %%
def final_voltage(current, tau):
    return solve(current, 0.7, tau, rtol=1e-5, end=30.0).ys[-1, 0]


line = jnp.linspace(0.0, 1.6, 2000)
slow = jnp.full_like(line, 12.5)
voltages = jax.jit(qd.vmap(final_voltage))
value, slope = voltages(line, slow), jax.jit(jax.grad(lambda x: jnp.sum(voltages(x, slow))))(line)
width = float(line[8] - line[0])
differences = (value[8:] - value[:-8]) / width
middle = slope[4:-4]
smooth = jnp.abs(slope[8:] - slope[:-8]) < 0.1 + 0.05 * jnp.abs(middle)  # where a difference says something
np.testing.assert_allclose(middle[smooth], differences[smooth], rtol=0.1, atol=0.1)
assert smooth.mean() > 0.5

figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), constrained_layout=True)
axes[0].plot(line, value)
axes[0].set(title="voltage at time 30", xlabel="current I")
axes[1].plot(line, slope, label="jax.grad through qd.vmap")
axes[1].plot(line[4:-4], differences, "--", label="differences of values")
axes[1].set(title="its derivative", xlabel="current I", ylim=(-20, 50))
axes[1].legend()
plt.show()

# %% [markdown]
# ## A fit, from many starts at once
#
# A noisy record of one neuron is given. Which current, a and tau did it have? Descents on such a loss stop in local
# minima, so one start is not enough. 512 starts go down together, a lane each: the gradient of the sum of all losses
# holds each start's own.

# %%
truth = jnp.array([0.55, 0.62, 9.0])
seen = jnp.linspace(0.0, 60.0, 60)


def model(p):
    return solve(p[0], p[1], p[2], save=seen, end=60.0, throw=False).ys[:, 0]


record = model(truth) + 0.15 * jax.random.normal(jax.random.key(1), seen.shape)
scale = jnp.array([1.0, 1.0, 10.0])


def misfit(p):
    return jnp.mean((model(scale * p) - record) ** 2)


def all_losses(p):
    loss = qd.vmap(misfit)(p)
    return jnp.sum(loss), loss


low, high = jnp.array([0.2, 0.4, 0.4]), jnp.array([1.2, 0.9, 2.0])
p = jax.random.uniform(jax.random.key(2), (512, 3), minval=low, maxval=high)


@jax.jit
def improve(state, k):
    p, mean, square = state
    (_, loss), slope = jax.value_and_grad(all_losses, has_aux=True)(p)
    slope = jnp.where(jnp.isfinite(slope), slope, 0)  # of a solve that got stuck
    mean, square = 0.9 * mean + 0.1 * slope, 0.95 * square + 0.05 * slope**2
    moved = p - 0.03 * 0.97**k * mean / (jnp.sqrt(square) + 1e-6)
    return (jnp.clip(moved, 0.5 * low, 1.5 * high), mean, square), loss


state, losses = (p, jnp.zeros_like(p), jnp.zeros_like(p)), []
for k in range(80):
    state, loss = improve(state, k)
    losses.append(loss)
history, found = jnp.stack(losses), scale * state[0]
best = int(history[-1].argmin())
print("true:", truth, " found:", found[best], f" loss {history[-1][best]:.4f}, noise {0.15**2:.4f}")
np.testing.assert_allclose(found[best], truth, rtol=0.1)
arrived = history[-1] < 2 * 0.15**2
print(f"{100 * arrived.mean():.0f} % of the starts arrived")

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
axes[0].semilogy(history[:, ~arrived][:, :60], color="lightgrey", linewidth=0.7)
axes[0].semilogy(history[:, arrived][:, :60], color="tab:blue", linewidth=0.7)
axes[0].axhline(0.15**2, color="black", linestyle=":")
axes[0].set(title="120 of 512 descents; blue: arrived at the noise", xlabel="iteration", ylabel="mean squared misfit")
axes[1].plot(seen, record, ".", color="black", label="record")
axes[1].plot(seen, model(scale * p[best]), color="lightgrey", label="best, at its start")
axes[1].plot(seen, model(found[best]), color="tab:blue", label="best, at its end")
axes[1].set(title="the fit", xlabel="time")
axes[1].legend()
plt.show()
assert 0.02 < arrived.mean() < 0.98  # so many starts are worth it

# %% [markdown]
# Read on: `docs/language.md`, "A function of one element". Stiff problems (implicit solvers), events, dense output and
# other adjoints of Diffrax run as lanes as well; `make demo` fits a model of lynx and hare to real counts.
