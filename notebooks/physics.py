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
# # Differentiable physics
#
# Two simulations, both written as loops over particles, both differentiated from their last state back to what we may
# choose. A creature of masses and springs learns to walk. A block of jelly is thrown so that it hits the floor and
# comes back up to where we want it.

# %%
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from IPython.display import Image
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.collections import LineCollection

import qdtrace as qd


def film(figure, draw, frames, interval):
    """An animated PNG; `interval` is in milliseconds."""
    animation = FuncAnimation(figure, draw, frames=frames)
    plt.close(figure)  # the film is shown, not the figure
    with TemporaryDirectory() as folder:
        animation.save(f"{folder}/film.png", PillowWriter(fps=1000 / interval))
        return Image(f"{folder}/film.png")

# %% [markdown]
# ## Masses and springs
#
# The creature is a table of points; a spring joins each pair of neighbours. A spring is also a muscle: it changes its
# rest length with time, as a sine and a cosine whose sizes we may choose.

# %%
cells = [(i, 1) for i in range(5)] + [(i, 0) for i in (0, 1, 3, 4)]  # a body with two legs
corners = sorted({(i + a, j + b) for i, j in cells for a in (0, 1) for b in (0, 1)})
number = {corner: k for k, corner in enumerate(corners)}
pairs = set()
for i, j in cells:
    four = [number[i + a, j + b] for a in (0, 1) for b in (0, 1)]
    pairs |= {(a, b) for a in four for b in four if a < b}
points = 0.1 * jnp.array(corners, jnp.float32) + jnp.array([0.1, 0.02])
springs = jnp.array(sorted(pairs))
rest = jnp.linalg.norm(points[springs[:, 0]] - points[springs[:, 1]], axis=1)
print(len(points), "masses,", len(springs), "springs")

# %% [markdown]
# One step has two loops. The loop over springs adds forces to points that several springs share: `f[a] += ...` loses
# none of them. The loop over points adds weight and ground, and moves. Any `jnp` code may stand in a loop, on small
# vectors as well.

# %%
dt = 2e-3


@qd.jit
def walk(x, v, muscles, t):
    f = qd.zeros(x.shape, x.dtype)
    for s in qd.range(springs.shape[0]):
        a, b = springs[s, 0], springs[s, 1]
        way, speed = x[b] - x[a], v[b] - v[a]
        length = jnp.linalg.norm(way)
        along = way / length
        pull = muscles[s, 0] * jnp.sin(15 * t) + muscles[s, 1] * jnp.cos(15 * t)
        wanted = rest[s] * (1 + 0.15 * jnp.tanh(pull))
        force = (1500 * (length - wanted) + 4 * jnp.dot(speed, along)) * along
        f[a] += force
        f[b] += -force
    for i in qd.range(x.shape[0]):
        depth = jnp.maximum(0.0, 0.02 - x[i, 1])
        push = 4000 * depth - 20 * v[i, 1] * (depth > 0)
        rub = -0.8 * push * jnp.tanh(v[i, 0] / 0.05)
        v[i] = 0.999 * (v[i] + dt * (f[i] + jnp.stack([rub, push - 9.8])))
        x[i] = x[i] + dt * v[i]
    return x, v


steps = 1000


def journey(muscles):
    def advance(state, t):
        x, v = state
        x, v = walk(x, v, muscles, t)
        return (x, v), x

    return jax.lax.scan(advance, (points, jnp.zeros_like(points)), dt * jnp.arange(steps))[1]


print("tasks of a step:", len(walk.lower(points, points, jnp.zeros((len(springs), 2)), 0.0).tasks))

# %% [markdown]
# The loss is minus the distance that the middle of the body has gone. `jax.grad` goes back through 1000 steps: springs,
# contacts and friction. Nothing has to be declared for that. Feet that touch the ground, or just not, make the loss
# rough: a descent goes up at times, so we keep the best that it has seen.


# %%
def loss(muscles):
    return -(journey(muscles)[-1, :, 0].mean() - points[:, 0].mean())


muscles = 0.1 * jax.random.normal(jax.random.key(0), (len(springs), 2))
optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.08, 60)))


@jax.jit
def improve(muscles, memory):
    value, slope = jax.value_and_grad(loss)(muscles)
    change, memory = optimiser.update(slope, memory)
    return muscles + change, memory, value


learnt, memory, losses = muscles, optimiser.init(muscles), []
best, best_loss = muscles, np.inf
for _ in range(60):
    before = learnt
    learnt, memory, value = improve(learnt, memory)
    losses.append(float(value))
    if value < best_loss:
        best, best_loss = before, float(value)
print(f"distance: {-losses[0]:.3f} before, {-best_loss:.3f} after")
assert best_loss < -0.3
assert -best_loss > 5 * abs(losses[0])

plt.figure(figsize=(6, 3), constrained_layout=True)
plt.plot(-np.array(losses))
plt.title("how far it walks")
plt.xlabel("iteration")
plt.ylabel("distance")
plt.show()

# %%
clumsy, skilled = np.asarray(journey(muscles)), np.asarray(journey(best))
assert np.isfinite(skilled).all()
figure, axes = plt.subplots(2, 1, figsize=(7, 3.4), dpi=65, constrained_layout=True, sharex=True)
bodies = []
for axis, title in ((axes[0], "before"), (axes[1], "after")):
    axis.set(xlim=(0, 2), ylim=(-0.02, 0.42), aspect="equal", yticks=[], title=title)
    axis.axhline(0, color="black")
    bodies.append(axis.add_collection(LineCollection([], color="tab:blue", linewidth=1)))


def draw(k):
    for body, path in zip(bodies, (clumsy, skilled), strict=True):
        body.set_segments(path[k][np.asarray(springs)])


film(figure, draw, range(0, steps, 20), 60)

# %% [markdown]
# ## Particles and a grid
#
# The material point method has particles that carry mass, velocity and deformation, and a grid on which they meet. One
# step has three loops: particles give to the nine grid points around them; the grid points feel weight and walls;
# particles take back. That the giving overlaps is no problem, as `grid[k] += ...` is one accumulation.
#
# The jelly is elastic: `slope` holds the slopes of its velocity, `shape` how it is deformed.

# %%
cells_a_side, dx, dt_jelly = 32, 1 / 32, 1e-3
block = 20
spacing = 0.2 / block
volume = spacing**2
mu, bulk = 30.0, 60.0


def weights(place):
    base = (place / dx - 0.5).astype(jnp.int32)
    off = place / dx - base
    return base, off, jnp.stack([0.5 * (1.5 - off) ** 2, 0.75 - (off - 1) ** 2, 0.5 * (off - 0.5) ** 2])


@qd.jit
def jelly(x, v, slope, shape):
    m = qd.zeros((cells_a_side, cells_a_side), x.dtype)
    p = qd.zeros((cells_a_side, cells_a_side, 2), x.dtype)
    for q in qd.range(x.shape[0]):
        new = (jnp.eye(2) + dt_jelly * slope[q]) @ shape[q]
        grown = jnp.maximum(new[0, 0] * new[1, 1] - new[0, 1] * new[1, 0], 0.1)
        stress = mu * (new @ new.T - jnp.eye(2)) + bulk * jnp.log(grown) * jnp.eye(2)
        affine = -dt_jelly * volume * 4 / dx**2 * stress + volume * slope[q]
        shape[q] = new
        base, off, w = weights(x[q])
        for i in qd.range(3):
            for j in qd.range(3):
                way = (jnp.stack([i, j]) - off) * dx
                weight = w[i, 0] * w[j, 1]
                m[base[0] + i, base[1] + j] += weight * volume
                p[base[0] + i, base[1] + j] += weight * (volume * v[q] + affine @ way)
    for a, b in qd.ndrange(cells_a_side, cells_a_side):
        u = p[a, b] / jnp.maximum(m[a, b], 1e-9) - jnp.stack([0.0, dt_jelly * 9.8])
        left, right, floor = a < 3, a > cells_a_side - 4, b < 3
        side = jnp.where(left, jnp.maximum(u[0], 0), jnp.where(right, jnp.minimum(u[0], 0), u[0]))
        rub = jnp.where(floor, 0.97, 1.0)
        p[a, b] = jnp.stack([side * rub, jnp.where(floor, jnp.maximum(u[1], 0), u[1])])
    for q in qd.range(x.shape[0]):
        base, off, w = weights(x[q])
        velocity, slopes = qd.local(jnp.zeros(2)), qd.local(jnp.zeros((2, 2)))
        for i in qd.range(3):
            for j in qd.range(3):
                u = w[i, 0] * w[j, 1] * p[base[0] + i, base[1] + j]
                velocity += u
                slopes += 4 / dx**2 * jnp.outer(u, (jnp.stack([i, j]) - off) * dx)
        v[q], slope[q] = velocity.value, slopes.value
        x[q] = jnp.clip(x[q] + dt_jelly * velocity.value, 2 * dx, 1 - 2 * dx)
    return x, v, slope, shape


# %% [markdown]
# A throw has three numbers: two of velocity, one of spin. 700 steps later the centre of the block shall be at the
# cross. On its way it hits the floor and is squashed.

# %%
side = spacing * (jnp.arange(block) + 0.5)
body = jnp.stack(jnp.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2) + jnp.array([0.15, 0.5])
still = jnp.zeros((len(body), 2, 2))
target = jnp.array([0.7, 0.35])


@jax.jit
def throw(choice):
    arm = body - body.mean(0)
    v = choice[:2] + choice[2] * jnp.stack([-arm[:, 1], arm[:, 0]], -1)

    def advance(state, _):
        return jelly(*state), state[0]

    last, path = jax.lax.scan(advance, (body, v, still, still + jnp.eye(2)), length=700)
    return last[0], path[::14]


def miss(choice):
    return jnp.sum((throw(choice)[0].mean(0) - target) ** 2)


first = jnp.array([0.2, 0.3, 3.0])
slope = jax.jit(jax.grad(miss))(first)
for k in range(3):
    step = jnp.zeros(3).at[k].set(0.02)
    difference = (miss(first + step) - miss(first - step)) / 0.04
    print(f"derivative {slope[k]:.4f}, difference of values {difference:.4f}")
    assert abs(slope[k] - difference) < 0.02 + 0.1 * abs(difference)

# %% [markdown]
# The gradient agrees with differences of values, through 700 steps and a contact. So a descent can aim.

# %%
optimiser = optax.adam(optax.cosine_decay_schedule(0.15, 60))
choice, memory, throws, misses = first, optimiser.init(first), [], []
value_and_slope = jax.jit(jax.value_and_grad(miss))
for _ in range(60):
    value, slope = value_and_slope(choice)
    throws.append(choice)
    misses.append(float(value))
    change, memory = optimiser.update(slope, memory)
    choice = optax.apply_updates(choice, change)
aimed = throws[int(np.argmin(misses))]
print(f"misses by {misses[0] ** 0.5:.3f} before, by {min(misses) ** 0.5:.4f} after: {aimed}")
assert min(misses) < 0.01 * misses[0]

paths = [np.asarray(throw(c)[1]) for c in (first, aimed)]
colour = np.asarray(body[:, 1])
figure, axes = plt.subplots(1, 3, figsize=(10, 3.3), constrained_layout=True)
axes[0].semilogy(misses)
axes[0].set(title="squared distance from the cross", xlabel="iteration")
for axis, path, title in zip(axes[1:], paths, ("before", "after"), strict=True):
    for k in range(0, len(path), 8):
        axis.scatter(*path[k].T, s=1, c=colour, alpha=0.25)
    axis.scatter(*path[-1].T, s=2, c=colour)
    axis.plot(*path.mean(1).T, color="black", linewidth=1)
    axis.plot(*target, "+", color="tab:red", markersize=14, markeredgewidth=3)
    axis.set(title=title, xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
plt.show()

# %%
figure, axes = plt.subplots(1, 2, figsize=(6, 3.2), dpi=65, constrained_layout=True)
dots = []
for axis, path, title in zip(axes, paths, ("before", "after"), strict=True):
    axis.set(title=title, xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
    axis.plot(*target, "+", color="tab:red", markersize=12, markeredgewidth=3)
    dots.append(axis.scatter(*path[0].T, s=2, c=colour))


def show(k):
    for dot, path in zip(dots, paths, strict=True):
        dot.set_offsets(path[k])


film(figure, show, len(paths[0]), 60)

# %% [markdown]
# ## What the derivative of a step looks like
#
# Reverse mode of a step of jelly is again a task over particles, one over the grid and one over particles. What they
# need of the way there, they compute anew in registers, or find in the state that `lax.scan` keeps at each step. Tasks
# named `copy` fill a buffer with an argument, as the caller's array stays what it is. For long runs put
# `jax.checkpoint` around parts of the scan, as always in JAX.

# %%
state = (body, jnp.zeros_like(body), still, still + jnp.eye(2))
backward = qd.jit(jax.grad(lambda state: jnp.sum(jelly(*state)[0]))).lower(state)
for task in backward.tasks:
    print(f"{task.name}: {task.reason}")
assert sum(task.name.endswith("reverse") for task in backward.tasks) == len(jelly.lower(*state).tasks) == 3
