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
# # Ragged and sparse data
#
# Rows of different length, neighbours of a graph, entries of a sparse matrix: in arrays they are padded, sorted or
# expressed by gathers and segment sums. In a loop one writes what one means. This notebook walks over rows of different
# length, ranks the nodes of a graph, assembles and solves a finite element problem, and finds a material from
# temperatures, through the solve.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import matplotlib.tri
import numpy as np
import optax
import scipy.sparse
import scipy.sparse.linalg
import scipy.spatial

import qdtrace as qd

# %% [markdown]
# ## Rows of different length
#
# A hundred thousand stars were observed, some a few times, some hundreds of times. The observations lie in one array,
# and `first[i]` says where those of star i begin. For each star we want the weighted mean brightness, robust against
# wrong values: weights fall with the distance from the mean, so mean and weights are computed in turns until the mean
# rests. That is a loop of unknown length around a loop of different length.

# %%
rng = np.random.default_rng(0)
stars = 100_000
lengths = np.minimum(3 + rng.pareto(1.2, stars) * 8, 600).astype(np.int32)
first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
true_brightness = rng.normal(10, 2, stars)
observed = np.repeat(true_brightness, lengths) + 0.1 * rng.normal(size=first[-1])
observed += (rng.random(first[-1]) < 0.1) * rng.normal(0, 5, first[-1])  # one in ten is wrong
observed = jnp.asarray(observed, jnp.float32)


@qd.jit
def robust_means(first, y):
    n = first.shape[0] - 1
    mean, turns = qd.empty(n, y.dtype), qd.empty(n, jnp.int32)
    for i in qd.range(n):
        center, change, width, count = qd.local(0.0), qd.local(1.0), qd.local(30.0), qd.local(0)
        for _ in qd.while_(lambda: ((change.value > 1e-4) | (width.value > 0.4)) & (count.value < 200)):
            total, weights = qd.local(0.0), qd.local(0.0)
            for k in qd.range(first[i], first[i + 1]):
                weight = 1 / (1 + ((y[k] - center) / width) ** 2) ** 2
                total += weight * y[k]
                weights += weight
            change.value = jnp.abs(total / weights - center)
            center.value = total / weights
            width.value = jnp.maximum(0.7 * width, 0.3)
            count += 1
        mean[i] = center
        turns[i] = count
    return mean, turns


mean, turns = robust_means(first, observed)
plain = np.add.reduceat(np.asarray(observed), first[:-1]) / lengths
enough = lengths >= 10
error, plain_error = np.abs(mean - true_brightness)[enough].mean(), np.abs(plain - true_brightness)[enough].mean()
print(f"mean error of stars with ten observations or more: {error:.3f}, of the plain mean {plain_error:.3f}")
assert error < 0.5 * plain_error

padded = lengths.max() * stars
print(f"{first[-1]:,} observations; padded to the longest row {padded:,}")
assert padded > 10 * first[-1]

figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), constrained_layout=True)
axes[0].hist(lengths, bins=np.geomspace(3, 601, 40))
axes[0].set(title="lengths of rows", xlabel="observations of a star", xscale="log", yscale="log")
axes[1].hist(np.asarray(turns), bins=range(int(turns.max()) + 2))
axes[1].set(title="turns until the mean rests", xlabel="turns", yscale="log")
plt.show()

# %% [markdown]
# ## A graph
#
# Who is important in a network of links? He whom important ones link to. A walker follows links at random, and now and
# then jumps anywhere; where he is most often says who is important. One step has a loop over links: many of them end
# at the same node, and `rank[b] += ...` is right however many meet.

# %%
nodes = 3000
ends = rng.random((nodes, 2))
tree = scipy.spatial.KDTree(ends)
pairs = tree.query_pairs(0.035, output_type="ndarray")
toward = np.linalg.norm(ends[pairs[:, 0]] - 0.5, axis=1) > np.linalg.norm(ends[pairs[:, 1]] - 0.5, axis=1)
links = np.where(toward[:, None], pairs, pairs[:, ::-1])  # most links lead to the middle
turned = rng.random(len(links)) < 0.35
links = jnp.asarray(np.where(turned[:, None], links[:, ::-1], links), jnp.int32)


@qd.jit
def degrees(links):
    out = qd.zeros(nodes, jnp.int32)
    for e in qd.range(links.shape[0]):
        out[links[e, 0]] += 1
    return out


@qd.jit
def wander(rank, links, leaving):
    lost = jnp.sum(jnp.where(leaving[...] == 0, rank[...], 0.0))  # of nodes without a link
    after = qd.full(nodes, (0.15 + 0.85 * lost) / nodes, rank.dtype)
    for e in qd.range(links.shape[0]):
        a, b = links[e, 0], links[e, 1]
        after[b] += 0.85 * rank[a] / leaving[a]
    return after


@jax.jit
def importance(links):
    leaving = degrees(links)

    def moving(state):
        return (state[1] > 1e-7) & (state[2] < 500)

    def step(state):
        after = wander(state[0], links, leaving)
        return after, jnp.max(jnp.abs(after - state[0])), state[2] + 1

    return jax.lax.while_loop(moving, step, (jnp.full(nodes, 1 / nodes), jnp.float32(1), 0))


rank, _, rounds = importance(links)
print(f"{len(links)} links, {rounds} rounds, sum of ranks {rank.sum():.6f}")
np.testing.assert_allclose(rank.sum(), 1, rtol=1e-4)

leaving = np.bincount(links[:, 0], minlength=nodes)
np.testing.assert_array_equal(degrees(links), leaving)
share = 1 / leaving[np.asarray(links[:, 0])]
matrix = scipy.sparse.csr_matrix((share, (links[:, 1], links[:, 0])), (nodes, nodes))
jump = (0.15 + 0.85 * np.asarray(rank)[leaving == 0].sum()) / nodes
np.testing.assert_allclose(0.85 * (matrix @ np.asarray(rank, np.float64)) + jump, rank, atol=1e-5)

away = np.linalg.norm(ends - 0.5, axis=1)
assert rank[away < 0.2].mean() > 1.5 * rank[away > 0.5].mean()

plt.figure(figsize=(5, 4.4), constrained_layout=True)
plt.plot(*ends[np.asarray(links)].transpose(2, 1, 0), color="grey", linewidth=0.4, zorder=0)
plt.scatter(ends[:, 0], ends[:, 1], s=2 + 20_000 * np.asarray(rank), c=rank, cmap="viridis")
plt.axis("off")
plt.title("most links lead to the middle")
plt.show()

# %% [markdown]
# ## Finite elements: assembly
#
# Heat flows in a plate, - div(k grad u) = f, with u = 0 at its rim. On triangles with linear functions this is a sparse
# system A u = b. Each triangle adds nine numbers to A. We keep A as compressed rows: the entries of row i begin at
# `first_of[i]`, in the columns `columns_of`. Where the nine numbers of a triangle go, `places`, is known before.

# %%
grid = np.stack(np.meshgrid(np.linspace(-1, 1, 45), np.linspace(-1, 1, 45)), -1).reshape(-1, 2)
grid += 0.012 * rng.uniform(-1, 1, grid.shape)
rim = np.linspace(0, 2 * np.pi, 140, endpoint=False)
mesh = np.concatenate([grid[np.linalg.norm(grid, axis=1) < 0.97], np.stack([np.cos(rim), np.sin(rim)], -1)])
triangles = scipy.spatial.Delaunay(mesh).simplices
fixed = jnp.asarray(np.linalg.norm(mesh, axis=1) > 0.999)

rows, columns = np.repeat(triangles, 3, axis=1).ravel(), np.tile(triangles, 3).ravel()
keys, inverse = np.unique(rows * len(mesh) + columns, return_inverse=True)
columns_of = jnp.asarray(keys % len(mesh), jnp.int32)
first_of = jnp.asarray(np.searchsorted(keys, len(mesh) * np.arange(len(mesh) + 1)), jnp.int32)
places = jnp.asarray(inverse.reshape(-1, 3, 3), jnp.int32)
points, corners = jnp.asarray(mesh, jnp.float32), jnp.asarray(triangles, jnp.int32)
print(len(mesh), "nodes,", len(triangles), "triangles,", len(keys), "entries")


@qd.jit
def assemble(conductivity):
    entries = qd.zeros(columns_of.shape[0], conductivity.dtype)
    for t in qd.range(corners.shape[0]):
        p = jnp.stack([points[corners[t, a]] for a in range(3)])
        edges = jnp.roll(p, 1, axis=0) - jnp.roll(p, -1, axis=0)  # opposite of each corner
        double_area = jnp.abs(edges[0, 0] * edges[1, 1] - edges[0, 1] * edges[1, 0])
        stiffness = conductivity[t] * (edges @ edges.T) / (2 * double_area)
        for a in range(3):
            for b in range(3):
                entries[places[t, a, b]] += stiffness[a, b]
    return entries


@qd.jit
def times(entries, u):
    out = qd.empty(u.shape, u.dtype)
    for i in qd.range(u.shape[0]):
        total = qd.local(0.0)
        for k in qd.range(first_of[i], first_of[i + 1]):
            total += entries[k] * u[columns_of[k]]
        out[i] = total
    return out


# %% [markdown]
# ## ... and solve
#
# JAX's own method of conjugate gradients takes any function for the matrix, so also a `qd.jit` function. It knows that
# the derivative of a solution is one more solve with the same matrix, and does not walk back through its iterations.


# %%
def temperature(conductivity, load):
    entries = assemble(conductivity)

    def apply(u):
        return jnp.where(fixed, u, times(entries, jnp.where(fixed, 0.0, u)))

    return jax.scipy.sparse.linalg.cg(apply, jnp.where(fixed, 0.0, load), tol=1e-6, maxiter=500)[0]


middles = points[corners].mean(1)
even = jnp.ones(len(triangles))
inclusion = jnp.linalg.norm(middles - jnp.array([0.35, 0.2]), axis=1) < 0.25
strip = jnp.abs(middles @ jnp.array([0.5, 0.87]) + 0.35) < 0.1
material = jnp.where(inclusion, 8.0, jnp.where(strip, 0.15, 1.0))
source = jnp.where(jnp.linalg.norm(points - jnp.array([-0.2, 0.1]), axis=1) < 0.3, 0.01, 0.0)
u = jax.jit(temperature)(material, source)

data = (np.asarray(assemble(material), np.float64), np.asarray(columns_of), np.asarray(first_of))
inside = np.flatnonzero(~np.asarray(fixed))
system = scipy.sparse.csr_matrix(data, (len(mesh), len(mesh)))[inside][:, inside]
direct = scipy.sparse.linalg.splu(system.tocsc()).solve(np.asarray(source, np.float64)[inside])
np.testing.assert_allclose(u[inside], direct, atol=2e-3 * direct.max())

plate = matplotlib.tri.Triangulation(mesh[:, 0], mesh[:, 1], triangles)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), constrained_layout=True)
shown = axes[0].tripcolor(plate, np.log10(material), cmap="RdBu_r", vmin=-1, vmax=1)
axes[0].triplot(plate, color="grey", linewidth=0.15)
axes[0].set_title("log10 of the conductivity")
figure.colorbar(shown, ax=axes[0])
shown = axes[1].tricontourf(plate, u, 25, cmap="inferno")
axes[1].set_title("temperature")
figure.colorbar(shown, ax=axes[1])
for axis in axes:
    axis.set_aspect("equal")
    axis.axis("off")
plt.show()

# %% [markdown]
# ## The gradient by each coefficient
#
# How does the temperature at one point depend on the conductivity of each triangle? One `jax.grad` tells all of them:
# back through the solve, the product and the assembly.

# %%
sensor = int(np.argmin(np.linalg.norm(mesh - np.array([0.45, -0.3]), axis=1)))


def reading(conductivity):
    return temperature(conductivity, source)[sensor]


influence = jax.jit(jax.grad(reading))(even)
kick = jnp.asarray(rng.uniform(-1, 1, len(triangles)), jnp.float32)
difference = (reading(even + 0.05 * kick) - reading(even - 0.05 * kick)) / 0.1
np.testing.assert_allclose(jnp.vdot(influence, kick), difference, rtol=0.05)

limit = float(jnp.percentile(jnp.abs(influence), 99))
plt.figure(figsize=(4.6, 3.8), constrained_layout=True)
plt.tripcolor(plate, influence, cmap="RdBu", vmin=-limit, vmax=limit)
plt.plot(*mesh[sensor], "o", color="black")
plt.colorbar()
plt.gca().set_aspect("equal")
plt.axis("off")
plt.title("derivative of the temperature at the dot")
plt.show()

# %% [markdown]
# ## Without a matrix
#
# A wind carries the heat along: - div(k grad u) + w . grad u = f. That is not symmetric, so `bicgstab` takes the place
# of `cg`. It asks for the transpose of the operator, and a loop that is linear in `u` has one: its own reverse. So
# nothing is assembled. The loop goes over triangles and adds what each does to its corners.


# %%
@qd.jit
def carry(conductivity, wind, u):
    out = qd.zeros_like(u)
    for t in qd.range(corners.shape[0]):
        p = jnp.stack([points[corners[t, a]] for a in range(3)])
        edges = jnp.roll(p, 1, axis=0) - jnp.roll(p, -1, axis=0)
        area = edges[0, 0] * edges[1, 1] - edges[0, 1] * edges[1, 0]  # twice, with a sign
        slope = edges.T @ jnp.stack([u[corners[t, a]] for a in range(3)])  # turned by 90 degrees, times `area`
        blown = jnp.sign(area) * (wind[1] * slope[0] - wind[0] * slope[1]) / 6
        for a in range(3):
            out[corners[t, a]] += conductivity[t] * (edges[a] @ slope) / (2 * jnp.abs(area)) + blown
    return out


def temperature_in_wind(conductivity, wind):
    def apply(u):
        return jnp.where(fixed, u, carry(conductivity, wind, jnp.where(fixed, 0.0, u)))

    load = jnp.where(fixed, 0.0, source)
    return jax.scipy.sparse.linalg.bicgstab(apply, load, tol=1e-6, maxiter=500)[0]


calm = jax.jit(temperature_in_wind)(material, jnp.zeros(2))
np.testing.assert_allclose(calm, u, atol=2e-3 * u.max())
wind = jnp.array([3.0, 2.0])
warm = jax.jit(temperature_in_wind)(even, wind)
through, back = jax.vjp(lambda v: carry(even, wind, v), warm)
np.testing.assert_allclose(jax.linear_transpose(lambda v: carry(even, wind, v), warm)(through)[0], back(through)[0])

by_wind = jax.jit(jax.grad(lambda wind: temperature_in_wind(even, wind)[sensor]))(wind)
kicks = jnp.eye(2) * 0.05
changes = [temperature_in_wind(even, wind + k)[sensor] - temperature_in_wind(even, wind - k)[sensor] for k in kicks]
np.testing.assert_allclose(by_wind, jnp.stack(changes) / 0.1, rtol=0.05, atol=1e-6)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), constrained_layout=True)
for axis, shown, title in ((axes[0], temperature_in_wind(even, jnp.zeros(2)), "no wind"), (axes[1], warm, "wind")):
    figure.colorbar(axis.tricontourf(plate, shown, 25, cmap="inferno"), ax=axis)
    axis.set_title(title)
    axis.set_aspect("equal")
    axis.axis("off")
plt.show()

# %% [markdown]
# ## A material from temperatures
#
# The plate is heated at eight places, one after the other, and 150 sensors tell the temperature, with noise. Which
# conductivity has the plate? `jax.vmap` solves for the eight loads at once. The loss holds the temperatures against the
# sensors, and asks for a material that is nearly even from one triangle to the next.

# %%
around = 2 * np.pi * np.arange(8) / 8
spots = 0.55 * jnp.stack([jnp.cos(around), jnp.sin(around)], -1)
loads = jnp.where(jnp.linalg.norm(points - spots[:, None], axis=-1) < 0.2, 0.01, 0.0)
solve_all = jax.vmap(temperature, in_axes=(None, 0))
sensors = jnp.asarray(rng.choice(inside, 150, replace=False))
exact = jax.jit(solve_all)(material, loads)[:, sensors]
scale = float(exact.std())
measured = exact + 0.01 * scale * jnp.asarray(rng.normal(size=exact.shape), jnp.float32)

belongs = scipy.sparse.csr_matrix((np.ones(3 * len(triangles)), triangles.ravel(), 3 * np.arange(len(triangles) + 1)))
meeting = (belongs @ belongs.T).tocoo()  # how many corners two triangles have in common
sides = (meeting.data == 2) & (meeting.row < meeting.col)
left, right = jnp.asarray(meeting.row[sides]), jnp.asarray(meeting.col[sides])


def misfit(logarithm):
    difference = (solve_all(jnp.exp(logarithm), loads)[:, sensors] - measured) / (0.01 * scale)
    jumps = logarithm[left] - logarithm[right]
    return jnp.mean(difference**2) + 60 * jnp.mean(jnp.sqrt(jumps**2 + 1e-4))


steps = 100
optimiser = optax.adam(optax.cosine_decay_schedule(0.15, steps))


@jax.jit
def improve(logarithm, memory):
    value, slope = jax.value_and_grad(misfit)(logarithm)
    change, memory = optimiser.update(slope, memory)
    return logarithm + change, memory, value


found, memory, values = jnp.zeros(len(triangles)), optimiser.init(jnp.zeros(len(triangles))), []
for _ in range(steps):
    found, memory, value = improve(found, memory)
    values.append(float(value))
print(f"loss: {values[0]:.1f} before, {values[-1]:.2f} after")
assert values[-1] < 0.05 * values[0]
closer = jnp.abs(found - jnp.log(material)).mean() / jnp.abs(jnp.log(material)).mean()
print(f"mean error of log conductivity beside that of an even plate: {closer:.2f}")
assert closer < 0.85

figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), constrained_layout=True)
for axis, values_of, title in ((axes[0], np.log10(material), "true"), (axes[1], found / np.log(10), "found")):
    shown = axis.tripcolor(plate, values_of, cmap="RdBu_r", vmin=-1, vmax=1)
    axis.set_aspect("equal")
    axis.axis("off")
    axis.set_title(f"log10 of the conductivity: {title}")
axes[1].plot(*mesh[np.asarray(sensors)].T, ".", color="black", markersize=2)
figure.colorbar(shown, ax=axes[1])
axes[2].semilogy(values)
axes[2].set(title="loss", xlabel="iteration")
plt.show()

# %% [markdown]
# What sums over many triangles gives results that do not depend on threads: accumulations add in the same order at
# each call, here as long as the array is not large (`docs/design` has the details).

# %%
np.testing.assert_array_equal(assemble(material), assemble(material))
print(assemble.lower(material).tasks[-1].reason)
