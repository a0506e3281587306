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
# # Batching
#
# There are two ways to run a function for many inputs. `jax.vmap` gives each array one more axis, so all elements of
# the batch do the same operation at the same time. `qd.vmap` gives each element a *lane*, a thread with its own control
# flow. This notebook shows where the two differ, and how they work together with `qd.jit` and `jax.grad`.

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import qdtrace as qd

# %% [markdown]
# ## A function of one element, with a loop of unknown length
#
# A pendulum swings above three magnets until one of them has caught it. How long that takes, and which magnet it is,
# depends on where it starts in a way that nobody can guess. We write the solver for one pendulum, in plain JAX: steps
# of Heun's method of variable size, whose difference from Euler's method estimates the error, until the energy is too
# low to leave a magnet.

# %%
angle = 2 * np.pi * jnp.arange(3) / 3
magnets = jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)


def field(y):
    place, velocity = y[:2], y[2:]
    way = magnets - place
    pull = jnp.sum(way / (jnp.sum(way**2, -1, keepdims=True) + 0.04) ** 1.5, 0)
    return jnp.concatenate([velocity, pull - 0.5 * place - 0.25 * velocity])


def energy(y):
    depth = jnp.sum(1 / jnp.sqrt(jnp.sum((magnets - y[:2]) ** 2, -1) + 0.04))
    return 0.5 * jnp.sum(y[2:] ** 2) + 0.25 * jnp.sum(y[:2] ** 2) - depth


def swing(start, tolerance=1e-2):
    def free(state):
        y, _, trips = state
        return (energy(y) > -3.2) & (trips < 5000)

    def try_step(state):
        y, h, trips = state
        slope = field(y)
        euler = y + h * slope
        heun = y + 0.5 * h * (slope + field(euler))
        error = jnp.max(jnp.abs(heun - euler)) / tolerance
        factor = jnp.clip(0.9 / jnp.sqrt(error + 1e-10), 0.2, 3.0)
        return jnp.where(error < 1, heun, y), jnp.clip(h * factor, 1e-4, 0.5), trips + 1

    y, _, trips = jax.lax.while_loop(free, try_step, (jnp.append(start, jnp.zeros(2)), jnp.float32(0.01), 0))
    return y[:2], trips


# %% [markdown]
# Both transformations make a function of a batch from it. Orbits between magnets are chaotic, so rounding may send one
# of them elsewhere; nearly all end at the same magnet after the same number of steps.

# %%
starts = jnp.asarray(np.random.default_rng(0).uniform(-2, 2, (20_000, 2)), jnp.float32)
lanes, lockstep = jax.jit(qd.vmap(swing)), jax.jit(jax.vmap(swing))
place, trips = lanes(starts)
place_lockstep, trips_lockstep = lockstep(starts)
alike = (trips == trips_lockstep) & (jnp.abs(place - place_lockstep).max(-1) < 1e-2)
print(f"the same in both: {100 * alike.mean():.1f} %")
assert alike.mean() > 0.9

# %% [markdown]
# ## What a lock-step batch waits for
#
# The picture shows sixty of the pendulums as lanes, one row each. A row is blue as long as its pendulum swings. Under
# `jax.vmap` a `while_loop` goes on until the last element of the batch has finished: in the grey part an element is
# computed as well, and what comes out is thrown away.

# %%
some = np.sort(np.asarray(trips[:60]))
figure, axes = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
axes[0].barh(range(60), some, height=1.0, color="tab:blue", label="iterations it needs")
axes[0].barh(range(60), some.max() - some, left=some, height=1.0, color="lightgrey", label="iterations it waits")
axes[0].set(title="sixty lanes in lock-step", xlabel="iteration", ylabel="lane (sorted)")
axes[0].legend(loc="lower right")
axes[1].hist(np.asarray(trips), bins=80, color="tab:blue")
axes[1].axvline(int(trips.max()), color="black", label="longest")
axes[1].axvline(float(trips.mean()), color="tab:orange", label="mean")
axes[1].set(title="all 20,000 lanes", xlabel="iterations", ylabel="lanes", yscale="log")
axes[1].legend()
plt.show()

useful = float(trips.mean() / trips.max())
print(f"of what a lock-step batch computes, {100 * useful:.0f} % is of use")
assert useful < 0.6

# %% [markdown]
# Lanes run in vectors of the processor, sixteen at a time with AVX-512. A vector does not wait for the longest of its
# lanes: a lane that has finished stores its result and takes up the next element. That is called lane refill.

# %%
task = qd.jit(qd.vmap(swing)).lower(starts).tasks[0]
print(task.reason)
assert "refill" in task.reason


def best_time(f, *args):
    times = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(f(*args))
        times.append(time.perf_counter() - began)
    return min(times)


ours, theirs = best_time(lanes, starts), best_time(lockstep, starts)
print(f"qd.vmap {1e3 * ours:.0f} ms, jax.vmap {1e3 * theirs:.0f} ms, ratio {theirs / ours:.0f}")

# %% [markdown]
# The ratio is greater than the waiting alone explains. A lane keeps its state in registers; a lock-step batch carries
# its state through memory at each iteration.
#
# ## Batches of batches
#
# `qd.vmap` nests as `jax.vmap` does, `in_axes` included, and `jax.vmap` may be around it. Two levels are one task over
# the product. Here: each row of a picture with each of its columns.

# %%
side = jnp.linspace(-2.0, 2.0, 400)


def from_point(x, y):
    return swing(jnp.stack([x, y]))


grid = qd.vmap(qd.vmap(from_point, in_axes=(0, None)), in_axes=(None, 0))
place_grid, trips_grid = jax.jit(grid)(side, side)
assert trips_grid.shape == (400, 400)
tasks = qd.jit(grid).lower(side, side).tasks
print(tasks[0])
assert len(tasks) == 1

mixed = jax.vmap(qd.vmap(from_point, in_axes=(0, None)), in_axes=(None, 0))
np.testing.assert_array_equal(jax.jit(mixed)(side, side)[1], trips_grid)

caught_by = jnp.argmin(jnp.sum((place_grid[..., None, :] - magnets) ** 2, -1), -1)
shade = np.clip(1.15 - np.asarray(trips_grid) / np.percentile(trips_grid, 98), 0.15, 1)
colours = np.array([[0.95, 0.45, 0.2], [0.2, 0.6, 0.55], [0.35, 0.35, 0.8]])[np.asarray(caught_by)]
figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), constrained_layout=True)
axes[0].imshow(colours * shade[..., None], origin="lower", extent=(-2, 2, -2, 2))
axes[0].plot(*magnets.T, "o", color="white", markeredgecolor="black")
axes[0].set_title("the magnet that catches it; dark: late")
image = axes[1].imshow(trips_grid, origin="lower", extent=(-2, 2, -2, 2))
axes[1].set_title("iterations of each lane")
figure.colorbar(image, ax=axes[1])
plt.show()

# %% [markdown]
# The magnets have a symmetry, and so has the picture: mirrored at the horizontal axis the first magnet stays, and the
# other two change places.

# %%
mirrored = jnp.array([0, 2, 1])[caught_by[::-1]]
assert jnp.mean(mirrored == caught_by) > 0.9

# %% [markdown]
# ## `jax.vmap` of a `qd.jit` function
#
# A `qd.jit` function has loops over elements of its own. Under `jax.vmap` each of its tasks gets one more axis: the
# batch is not a loop of calls, and the number of tasks stays what it was. What the elements of the batch share
# (`in_axes=None`) is not copied.
#
# The example smooths a noisy picture. The filter averages over a neighbourhood, with weights that fall with the
# distance and with the difference in brightness, so edges stay sharp. How wide should the two weights be? We try 20
# pairs at once.


# %%
@qd.jit
def smooth(image, reach, contrast):
    height, width = image.shape
    out = qd.empty(image.shape, image.dtype)
    for i, j in qd.ndrange(height, width):
        total, weights = qd.local(0.0), qd.local(0.0)
        for a in qd.range(-4, 5):
            for b in qd.range(-4, 5):
                k, m = jnp.clip(i + a, 0, height - 1), jnp.clip(j + b, 0, width - 1)
                near = jnp.exp(-(a * a + b * b) / (2 * reach**2))
                alike = jnp.exp(-((image[k, m] - image[i, j]) ** 2) / (2 * contrast**2))
                total += near * alike * image[k, m]
                weights += near * alike
        out[i, j] = total / weights
    return out


size = 96
row, column = np.mgrid[0:size, 0:size] / size
clean = 0.2 + 0.6 * (np.hypot(row - 0.4, column - 0.4) < 0.25) + 0.3 * column * (row > 0.7)
noisy = jnp.asarray(clean + 0.12 * np.random.default_rng(1).normal(size=clean.shape), jnp.float32)
clean = jnp.asarray(clean, jnp.float32)
reaches, contrasts = jnp.array([0.6, 1.0, 2.0, 3.5]), jnp.array([0.05, 0.15, 0.3, 0.6, 2.0])

over_contrasts = jax.vmap(smooth, in_axes=(None, None, 0))
over_both = jax.vmap(over_contrasts, in_axes=(None, 0, None))
pictures = jax.jit(over_both)(noisy, reaches, contrasts)
assert pictures.shape == (4, 5, size, size)
np.testing.assert_allclose(pictures[2, 1], smooth(noisy, reaches[2], contrasts[1]), atol=1e-6)

one, all_pairs = smooth.lower(noisy, 1.0, 1.0), qd.jit(over_both).lower(noisy, reaches, contrasts)
print("tasks:", len(one.tasks), "for one pair,", len(all_pairs.tasks), "for twenty")
print("bytes:", one.traffic(), "|", all_pairs.traffic())
assert len(all_pairs.tasks) == len(one.tasks) == 1

errors = jnp.mean((pictures - clean) ** 2, axis=(2, 3))
best = np.unravel_index(int(errors.argmin()), errors.shape)
figure, axes = plt.subplots(4, 5, figsize=(8, 6.6), constrained_layout=True)
for (r, c), axis in np.ndenumerate(axes):
    axis.imshow(pictures[r, c], cmap="gray", vmin=0, vmax=1.1)
    axis.set_title(f"{reaches[r]:.1f}, {contrasts[c]:.2f}: {1e3 * errors[r, c]:.1f}", fontsize=8)
    axis.axis("off")
axes[best].set_title(f"best: {1e3 * errors[best]:.1f}", fontsize=8, color="tab:red")
figure.suptitle("reach, contrast: 1000 x mean squared error", fontsize=10)
plt.show()
assert errors.min() < 0.25 * jnp.mean((noisy - clean) ** 2)

# %% [markdown]
# ## `vmap(grad)`
#
# A gradient is a function like any other, so it goes into a batch as well. From each of the twenty pairs, a few steps
# of descent look for a better one. Every pair has its own gradient; one call computes all of them.


# %%
def badness(pair):
    return 1e3 * jnp.mean((smooth(noisy, *jnp.exp(pair)) - clean) ** 2)


pairs = jnp.log(jnp.stack(jnp.meshgrid(reaches, contrasts, indexing="ij"), -1).reshape(-1, 2))
slopes = jax.jit(jax.vmap(jax.value_and_grad(badness)))
qd.check_grads(badness, (pairs[7],), order=1, modes=("rev",), rtol=2e-2)

paths, history = [pairs], []
for k in range(18):
    value, slope = slopes(paths[-1])
    history.append(value)
    paths.append(paths[-1] - 0.4 * 0.85**k * slope / (1e-3 + jnp.linalg.norm(slope, axis=1, keepdims=True)))
path, values = jnp.exp(jnp.stack(paths[:-1])), jnp.stack(history)
np.testing.assert_allclose(values[0], 1e3 * errors.ravel(), rtol=1e-3)
assert values[-1].min() <= values[0].min()
assert values[-1].mean() < 0.6 * values[0].mean()

plt.figure(figsize=(6, 4), constrained_layout=True)
plt.plot(path[:, :, 0], path[:, :, 1], color="tab:grey", linewidth=1)
plt.scatter(path[0, :, 0], path[0, :, 1], c=values[0], vmin=1, vmax=8, label="start")
plt.scatter(path[-1, :, 0], path[-1, :, 1], c=values[-1], vmin=1, vmax=8, marker="*", s=90, label="after 18 steps")
plt.xscale("log")
plt.yscale("log")
plt.xlabel("reach")
plt.ylabel("contrast")
plt.title("twenty descents at once")
plt.colorbar(label="1000 x mean squared error")
plt.legend()
plt.show()

# %% [markdown]
# The other way round works too: the gradient of a sum over a `qd.vmap` goes back through each lane's own number of
# iterations. In reverse mode plain JAX refuses a `while_loop`, as it cannot know how much to keep. JAX can go forward,
# so we can compare.


# %%
def height(start):
    return swing(start)[0][1]


near = jnp.asarray(np.random.default_rng(2).uniform(-0.4, 0.4, (300, 2)), jnp.float32) + magnets[0]
slope = jax.jit(jax.grad(lambda starts: jnp.sum(qd.vmap(height)(starts))))(near)
np.testing.assert_allclose(slope, jax.jit(jax.vmap(jax.jacfwd(height)))(near), rtol=1e-2, atol=1e-2)

try:
    jax.vmap(jax.grad(height))(near)
except ValueError as error:
    print("jax.grad alone:", str(error).split(". ")[0])
else:
    raise AssertionError("JAX can do it: change the text")

# %% [markdown]
# ## Which one?
#
# - Elements whose loops differ in length, or which branch differently: `qd.vmap`.
# - Loops over elements that read each other's data, or add to it: `qd.jit`; and `jax.vmap` of it for a batch.
# - Every element does the same, in large matrix products: `jax.vmap`. XLA's products are the best there are.
#
# Lanes run in no order, so one cannot ask the others: a collective over the axis of a `qd.vmap` is an error that says
# so.

# %%
try:
    qd.vmap(lambda x: x - jax.lax.pmean(x, "all"), axis_name="all")(side)
except qd.UnsupportedError as error:
    print(str(error).splitlines()[0])
else:
    raise AssertionError("no error")
