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
# # Drops of atoms
#
# Atoms pull each other when they are near and push when they are too near. Only pairs closer than some radius count, so
# a loop should walk over those alone. `qd.grid(x, cell)` sorts points by cells, and `for j in grid.near(p, radius)` is
# a loop over the points around a place. This notebook throws two drops at each other, looks at how atoms are arranged
# in the drop that they become, and finds the law of the force from forces that were measured.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.spatial

import qdtrace as qd

# %% [markdown]
# ## The energy
#
# The potential is that of Lennard and Jones, with depth `epsilon` and size `sigma`, shifted to be zero where it is cut
# off. A loop over atoms has a loop over what is near, and adds each pair once. Forces are the gradient of the energy:
# `jax.grad` walks over the same pairs, and keeps nothing of them in memory.

# %%
RADIUS = 2.5


def potential(square, sigma, epsilon):
    """Energy of two atoms, of their squared distance."""
    ratio = (sigma**2 / square) ** 3
    return 4.0 * epsilon * (ratio**2 - ratio)


@qd.jit
def energy(x, sigma, epsilon):
    grid, total = qd.grid(x, RADIUS), qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        for j in grid.near(x[i], RADIUS):
            with qd.when(i < j):
                square = jnp.sum((x[i] - x[j]) ** 2)
                total[()] += potential(square, sigma, epsilon) - potential(RADIUS**2, sigma, epsilon)
    return total


def forces(x, sigma, epsilon):
    return -jax.grad(energy)(x, sigma, epsilon)


# %% [markdown]
# Two drops are pieces of a lattice, a little shaken. SciPy finds the same pairs with a tree, and NumPy adds them up.

# %%
rng = np.random.default_rng(0)
rows, columns = np.mgrid[-20:21, -20:21].reshape(2, -1)
lattice = 1.1 * np.stack([columns + 0.5 * (rows % 2), np.sqrt(0.75) * rows], -1)
drop = lattice[np.linalg.norm(lattice, axis=1) < 13.0]
start = np.concatenate([drop - np.array([15.0, 3.0]), drop + np.array([15.0, 3.0])])
x = jnp.asarray(start + rng.normal(0.0, 0.02, start.shape), jnp.float32)

pairs = scipy.spatial.KDTree(x).query_pairs(RADIUS, output_type="ndarray")
apart = np.asarray(x, np.float64)[pairs[:, 0]] - np.asarray(x, np.float64)[pairs[:, 1]]
square = (apart**2).sum(1)
expected = (potential(square, 1.0, 1.0) - potential(RADIUS**2, 1.0, 1.0)).sum()
print(f"{len(x)} atoms, {len(pairs)} pairs of {len(x) * (len(x) - 1) // 2}, energy {energy(x, 1.0, 1.0):.2f}")
np.testing.assert_allclose(energy(x, 1.0, 1.0), expected, rtol=1e-5)

slope = 24.0 * (square**-3 - 2.0 * square**-6) / square  # of the potential, by hand, over the distance
by_hand = np.zeros(x.shape)
np.add.at(by_hand, pairs[:, 0], -slope[:, None] * apart)
np.add.at(by_hand, pairs[:, 1], slope[:, None] * apart)
np.testing.assert_allclose(forces(x, 1.0, 1.0), by_hand, atol=1e-3)

# %% [markdown]
# ## Two drops meet
#
# Half a step of speed, a step of place, half a step of speed: the scheme of Verlet keeps the energy up to a small
# wobble. The grid is made anew in each step, inside of `jax.lax.scan`: sorting the atoms costs less than walking over
# them. Energy and momentum tell whether a pair was lost.

# %%
STEP, STEPS, SHOWN = 0.01, 20, 60


def moved(state, _):
    x, v, pull = state
    v = v + 0.5 * STEP * pull
    x = x + STEP * v
    pull = forces(x, 1.0, 1.0)
    return (x, v + 0.5 * STEP * pull, pull), None


@jax.jit
def played(x, v):
    def shown(state, _):
        state, _ = jax.lax.scan(moved, state, length=STEPS)
        x, v, _ = state
        return state, (x, v, energy(x, 1.0, 1.0), 0.5 * jnp.sum(v**2))

    return jax.lax.scan(shown, (x, v, forces(x, 1.0, 1.0)), length=SHOWN)[1]


v = np.repeat([[1.1, 0.0], [-1.1, 0.0]], len(drop), axis=0) + rng.normal(0.0, 0.3, x.shape)
places, speeds, potentials, kinetics = played(x, jnp.asarray(v, jnp.float32))
whole = potentials + kinetics
print(f"energy {whole[0]:.1f} at first, {whole[-1]:.1f} at last; of motion {kinetics[0]:.1f} and {kinetics[-1]:.1f}")
np.testing.assert_allclose(whole, whole[0], atol=0.002 * float(jnp.abs(whole[0])))
np.testing.assert_allclose(speeds.sum(1), np.broadcast_to(v.sum(0), (SHOWN, 2)), atol=0.1)

figure, axes = plt.subplots(1, 4, figsize=(12, 3), constrained_layout=True)
for axis, k in zip(axes, (0, 20, 35, SHOWN - 1), strict=True):
    axis.scatter(*places[k].T, s=2, c=np.arange(len(x)) < len(drop), cmap="coolwarm")
    axis.set(xlim=(-30, 30), ylim=(-24, 24), title=f"time {STEP * STEPS * (k + 1):.1f}")
    axis.set_aspect("equal")
    axis.axis("off")
plt.show()

# %% [markdown]
# ## How atoms are arranged
#
# Around an atom others stand in shells. A loop counts pairs by their distance: `counts[bin] += 1` is right however many
# meet. The radius is now two cells and a half, and the loop walks over more cells; the result is the same for any cell.

# %%
BINS, FARTHEST = 120, 6.0


@qd.jit
def shells(x):
    grid, counts = qd.grid(x, RADIUS), qd.zeros(BINS, jnp.int32)
    for i in qd.range(x.shape[0]):
        for j in grid.near(x[i], FARTHEST):
            with qd.when(i != j):
                distance = jnp.sqrt(jnp.sum((x[i] - x[j]) ** 2))
                counts[jnp.minimum((distance * (BINS / FARTHEST)).astype(jnp.int32), BINS - 1)] += 1
    return counts


edges = np.linspace(0.0, FARTHEST, BINS + 1)
density = {k: np.asarray(shells(places[k])) / len(x) / (np.pi * np.diff(edges**2)) for k in (0, SHOWN - 1)}
within = scipy.spatial.KDTree(places[-1]).query_pairs(FARTHEST, output_type="ndarray")
assert shells(places[-1]).sum() == 2 * len(within)
assert 1.0 < edges[density[SHOWN - 1].argmax()] < 1.2  # the minimum of the potential is at 2 ** (1 / 6)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), constrained_layout=True)
for k, name in ((0, "two lattices"), (SHOWN - 1, "one drop")):
    axes[0].stairs(density[k], edges, label=name)
axes[0].set(xlabel="distance", ylabel="atoms of an area", title="around an atom")
axes[0].legend()
times = STEP * STEPS * np.arange(1, SHOWN + 1)
for values, name in ((whole, "whole"), (potentials, "of places"), (kinetics, "of motion")):
    axes[1].plot(times, values, label=name)
axes[1].set(xlabel="time", title="energy")
axes[1].legend()
plt.show()

# %% [markdown]
# ## A list of pairs
#
# Where places stay, or move less than a skin around the radius, one search serves many steps. `qd.append` takes pairs
# as they are found; their number is known when the loop has run. With a skin of 0.3 the list holds more pairs than
# count, and the loop over it asks again.


# %%
@qd.jit
def listed(x):
    grid = qd.grid(x, RADIUS)
    out = qd.append(20 * x.shape[0], like=(0, 0))
    for i in qd.range(x.shape[0]):
        for j in grid.near(x[i], RADIUS + 0.3):
            with qd.when(i < j):
                out.push((i, j))
    return out


@qd.jit
def energy_of(x, pairs, sigma, epsilon):
    (first, second), total = pairs.values, qd.zeros((), x.dtype)
    for k in qd.range(pairs.count):
        square = jnp.sum((x[first[k]] - x[second[k]]) ** 2)
        with qd.when(square <= RADIUS**2):
            total[()] += potential(square, sigma, epsilon) - potential(RADIUS**2, sigma, epsilon)
    return total


x = places[-1]
pairs = listed(x)
print(f"{pairs.count} pairs, {pairs.count / len(x):.1f} of an atom")
np.testing.assert_allclose(energy_of(x, pairs, 1.0, 1.0), energy(x, 1.0, 1.0), rtol=1e-5)

# %% [markdown]
# ## The law of the force from forces
#
# Somebody has measured the forces on all atoms, with noise. Which `sigma` and `epsilon` have they? `jax.jacfwd` tells
# how forces change with parameters: a second derivative of the energy, by places and by parameters. With it Gauss and
# Newton's method solves a linear problem in each step. It works on logarithms, so that parameters stay positive.

# %%
truth = (1.05, 0.7)
exact = -jax.grad(energy_of)(x, pairs, *truth)
measured = exact + jnp.asarray(rng.normal(0.0, 0.1 * float(exact.std()), x.shape), jnp.float32)


def beside(logarithms):
    """What the forces of these parameters have more than those that were measured."""
    return (-jax.grad(energy_of)(x, pairs, *jnp.exp(logarithms)) - measured).ravel()


@jax.jit
def improve(logarithms):
    values, slopes = beside(logarithms), jax.jacfwd(beside)(logarithms)
    return logarithms - jnp.linalg.solve(slopes.T @ slopes, slopes.T @ values), jnp.sqrt(jnp.mean(values**2))


guess, path = jnp.log(jnp.array([0.95, 1.5])), []
for _ in range(9):
    after, error = improve(guess)
    path.append((*np.exp(guess), float(error)))
    guess = after
sigmas, epsilons, errors = np.transpose(path)
print(f"sigma {sigmas[-1]:.4f} of {truth[0]}, epsilon {epsilons[-1]:.4f} of {truth[1]}")
np.testing.assert_allclose(path[-1][:2], truth, rtol=0.02)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), constrained_layout=True)
axes[0].semilogy(errors)
axes[0].axhline(float(jnp.sqrt(jnp.mean((exact - measured) ** 2))), color="black", linewidth=0.8, linestyle="--")
axes[0].set(xlabel="step", title="error of the forces, and that of the measurement")
for values, name, value in ((sigmas, "sigma", truth[0]), (epsilons, "epsilon", truth[1])):
    axes[1].plot(values, label=name)
    axes[1].axhline(value, color="black", linewidth=0.8, linestyle="--")
axes[1].set(xlabel="step", title="parameters")
axes[1].legend()
plt.show()
