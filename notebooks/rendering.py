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
# # Rendering
#
# A signed distance says how far a point is from a surface, negative inside. To draw what it describes, each pixel sends
# a ray that goes as far as the distance allows, again and again, until it has arrived: sphere tracing. Rays need very
# different numbers of steps, so each is a lane with a loop of its own. In this notebook we draw, look at the lanes,
# differentiate an image by a shape, and find a shape from images.

# %%
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from IPython.display import Image
from matplotlib.animation import FuncAnimation, PillowWriter

import qdtrace as qd


def film(figure, draw, frames, interval):
    """An animated PNG; `interval` is in milliseconds."""
    animation = FuncAnimation(figure, draw, frames=frames)
    plt.close(figure)  # the film is shown, not the figure
    with TemporaryDirectory() as folder:
        animation.save(f"{folder}/film.png", PillowWriter(fps=1000 / interval))
        return Image(f"{folder}/film.png")

# %% [markdown]
# ## A scene
#
# The scene is a JAX function of a point: a ring, a ball that melts into it, and a floor. `shape` has five numbers.


# %%
def melt(a, b, width):
    mix = jnp.clip(0.5 + 0.5 * (b - a) / width, 0.0, 1.0)
    return b + (a - b) * mix - width * mix * (1 - mix)


def thing(p, shape):
    ring, thickness, ball, height, width = shape
    around = jnp.hypot(p[0], p[2]) - ring
    torus = jnp.hypot(around, p[1]) - thickness
    sphere = jnp.linalg.norm(p - jnp.stack([0.0, height, 0.0])) - ball
    return melt(torus, sphere, width)


def scene(p, shape):
    return jnp.minimum(thing(p, shape), p[1] + 0.5)


# %% [markdown]
# ## The renderer
#
# `qd.ndrange` makes a lane of each pixel. `qd.while_` takes a function of the `qd.local` variables and runs while it
# gives True. A surface's normal is the gradient of the distance: `jax.grad` works inside of a lane, as all of JAX does.
# A second loop walks to the light, for the shadow.

# %%
light = jnp.array([0.5, 0.8, 0.3]) / jnp.linalg.norm(jnp.array([0.5, 0.8, 0.3]))


def ray(i, j, height, width, turn):
    across, up = (j + 0.5 - 0.5 * width) / height, (0.5 * height - i - 0.5) / height
    ahead = jnp.stack([-jnp.sin(turn) * 0.87, jnp.full_like(turn, -0.5), -jnp.cos(turn) * 0.87])
    right = jnp.stack([jnp.cos(turn), jnp.zeros_like(turn), -jnp.sin(turn)])
    way = ahead + across * right + up * jnp.cross(right, ahead)
    return -3.2 * ahead, way / jnp.linalg.norm(way)


def renderer(height, width):
    @qd.jit
    def render(shape, turn):
        image, work = qd.empty((height, width), jnp.float32), qd.empty((height, width), jnp.int32)
        for i, j in qd.ndrange(height, width):
            eye, way = ray(i, j, height, width, turn)
            t, distance, steps = qd.local(0.0), qd.local(1.0), qd.local(0)
            for _ in qd.while_(lambda: (distance.value > 1e-3) & (t.value < 12) & (steps.value < 200)):
                distance.value = scene(eye + t * way, shape[...])
                t += distance
                steps += 1
            brightness = qd.local(0.85)
            with qd.when(t < 12):
                p = eye + t * way
                normal = jax.grad(scene)(p, shape[...])
                away, near = qd.local(0.02), qd.local(1.0)
                for _ in qd.while_(lambda: (away.value < 4) & (near.value > 1e-3) & (steps.value < 400)):
                    free = scene(p + away * light, shape[...])
                    near.value = jnp.minimum(near, 12 * free / away)
                    away += jnp.maximum(free, 0.01)
                    steps += 1
                facing = jnp.maximum(jnp.dot(normal, light), 0.0)
                chequers = jnp.where((p[1] < -0.498) & ((jnp.floor(3 * p[0]) + jnp.floor(3 * p[2])) % 2 == 0), 0.6, 1.0)
                brightness.value = chequers * (0.15 + 0.75 * facing * jnp.clip(near, 0.0, 1.0))
            image[i, j] = brightness
            work[i, j] = steps
        return image, work

    return render


draw = renderer(360, 540)
shape = jnp.array([0.9, 0.25, 0.45, 0.35, 0.5])
image, work = jax.jit(draw)(shape, 0.6)

figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), constrained_layout=True)
axes[0].imshow(image, cmap="gray", vmin=0, vmax=1)
axes[0].set_title("the scene")
shown = axes[1].imshow(work, cmap="magma")
axes[1].set_title("steps of each ray")
figure.colorbar(shown, ax=axes[1])
for axis in axes:
    axis.axis("off")
plt.show()
print(f"steps: mean {work.mean():.0f}, longest {int(work.max())}")
assert work.max() > 3 * work.mean()
assert 0.1 < image.mean() < 0.9

# %% [markdown]
# Rays that pass close to an edge crawl; most others arrive soon. In lock-step all pixels would take as many steps as
# the worst one.
#
# ## An image is a JAX value
#
# So `jax.vmap` makes a film of it: one call for all angles.

# %%
turns = jnp.linspace(0, 2 * np.pi, 37)[:-1]
film_frames = np.asarray(jax.jit(jax.vmap(renderer(120, 180), in_axes=(None, 0)))(shape, turns)[0])
figure = plt.figure(figsize=(4.5, 3), dpi=60)
axis = figure.add_axes((0, 0, 1, 1))
axis.axis("off")
canvas = axis.imshow(film_frames[0], cmap="gray", vmin=0, vmax=1)
film(figure, lambda k: canvas.set_data(film_frames[k]), len(film_frames), 80)

# %% [markdown]
# ## The derivative of an image
#
# `jax.jacfwd` gives one image for each of the five numbers of the shape: how every pixel changes. It is the derivative
# of the steps that a ray has taken. Shading and shadows are in it. It has no term for pixels that jump from the thing
# to the floor: a sum over an image changes by its edges too, and this derivative does not know. Below, where we fit,
# edges are soft.

# %%
small = renderer(120, 180)
slopes = jax.jit(jax.jacfwd(lambda shape: small(shape, 0.6)[0]))(shape)
names = ("ring", "thickness", "ball", "height", "width")
figure, axes = plt.subplots(1, 5, figsize=(12, 2), constrained_layout=True)
for k, (axis, name) in enumerate(zip(axes, names, strict=True)):
    axis.imshow(slopes[..., k], cmap="RdBu", vmin=-3, vmax=3)
    axis.set_title(f"by {name}")
    axis.axis("off")
plt.show()

step = 2e-3
for k in range(5):
    change = jnp.zeros(5).at[k].set(step)
    difference = (small(shape + change, 0.6)[0] - small(shape - change, 0.6)[0]) / (2 * step)
    close = jnp.abs(slopes[..., k] - difference) < 0.1 + 0.1 * jnp.abs(difference)
    print(f"by {names[k]}: {100 * close.mean():.1f} % of the pixels agree with differences of values")
    assert close.mean() > 0.8

# %% [markdown]
# ## A shape from images
#
# Four balls that melt into each other are unknown: 16 numbers. Three cameras see the thing, and we look for the numbers
# that give their images. A ray keeps the smallest distance that it has met; how much it covers falls with that, so the
# edges are soft and have a derivative. Each camera is a call of one function, and `jax.vmap` makes a batch of them.
#
# The gradient goes back through every loop: each ray walks back the steps that it has taken, in its lane, and adds to
# the 16 slopes.


# %%
def balls(p, centres):
    distance = jnp.linalg.norm(p - centres[0, :3]) - centres[0, 3]
    for k in range(1, 4):
        distance = melt(distance, jnp.linalg.norm(p - centres[k, :3]) - centres[k, 3], 0.2)
    return distance


def soft_renderer(height, width):
    @qd.jit
    def render(centres, turn):
        image = qd.empty((height, width), jnp.float32)
        for i, j in qd.ndrange(height, width):
            eye, way = ray(i, j, height, width, turn)
            t, distance, closest, steps = qd.local(1.0), qd.local(1.0), qd.local(1.0), qd.local(0)
            for _ in qd.while_(lambda: (distance.value > 1e-3) & (t.value < 6) & (steps.value < 100)):
                distance.value = balls(eye + t * way, centres[...])
                closest.value = jnp.minimum(closest, distance)
                t += distance
                steps += 1
            normal = jax.grad(balls)(eye + t * way, centres[...])
            shade = 0.3 + 0.6 * jnp.maximum(jnp.dot(normal, light), 0.0)
            cover = jax.nn.sigmoid((0.04 - closest) / 0.01)
            image[i, j] = cover * jnp.where(t < 6, shade, 0.3)
        return image

    return render


look = soft_renderer(64, 64)
cameras = jnp.array([0.0, 2.1, 4.2])
views = jax.vmap(look, in_axes=(None, 0))
secret = jnp.array([[0.0, 0.1, 0.0, 0.42], [0.5, 0.3, 0.1, 0.25], [-0.4, -0.3, 0.3, 0.3], [-0.1, 0.45, -0.45, 0.22]])
wanted = jax.jit(views)(secret, cameras)


def unlike(centres):
    return jnp.mean((views(centres, cameras) - wanted) ** 2)


start = jnp.array([[0.1, 0.0, 0.1, 0.3], [0.2, 0.2, 0.2, 0.3], [-0.2, -0.1, 0.2, 0.3], [0.0, 0.2, -0.2, 0.3]])
optimiser = optax.adam(optax.cosine_decay_schedule(0.02, 150))


@jax.jit
def improve(centres, memory):
    value, slope = jax.value_and_grad(unlike)(centres)
    change, memory = optimiser.update(slope, memory)
    return centres + change, memory, value


centres, memory, path, values = start, optimiser.init(start), [start], []
for _ in range(150):
    centres, memory, value = improve(centres, memory)
    path.append(centres)
    values.append(float(value))
print(f"mean squared difference: {values[0]:.4f} before, {values[-1]:.6f} after")
assert values[-1] < 0.05 * values[0]

# %% [markdown]
# The last column is a camera that the fit has not seen.

# %%
angles = jnp.append(cameras, 1.0)
large = jax.jit(jax.vmap(soft_renderer(160, 160), in_axes=(None, 0)))
figure, axes = plt.subplots(3, 4, figsize=(8, 6.2), constrained_layout=True)
for row, (title, numbers) in enumerate((("start", start), ("found", centres), ("true", secret))):
    for column, picture in enumerate(large(numbers, angles)):
        axes[row, column].imshow(picture, cmap="gray", vmin=0, vmax=1)
        axes[row, column].set(xticks=[], yticks=[])
    axes[row, 0].set_ylabel(title)
axes[0, 3].set_title("not seen")
plt.show()
unseen = jnp.mean((large(centres, angles)[3] - large(secret, angles)[3]) ** 2)
assert unseen < 0.2 * jnp.mean((large(start, angles)[3] - large(secret, angles)[3]) ** 2)

figure, axes = plt.subplots(1, 2, figsize=(5, 2.6), dpi=60, constrained_layout=True)
axes[0].imshow(large(secret, angles)[0], cmap="gray", vmin=0, vmax=1)
axes[0].set_title("true")
canvas = axes[1].imshow(large(start, angles)[0], cmap="gray", vmin=0, vmax=1)
axes[1].set_title("found so far")
for axis in axes:
    axis.axis("off")
moments = np.unique(np.geomspace(1, len(path), 30).astype(int)) - 1
film(figure, lambda k: canvas.set_data(large(path[k], angles)[0]), moments, 120)

# %% [markdown]
# What does reverse mode keep of a ray, whose number of steps nobody knows? The lowered gradient tells, for each loop:

# %%
gradient = qd.jit(jax.grad(lambda centres: jnp.sum(look(centres, 0.0) ** 2))).lower(start)
print(*gradient.storage, sep="\n")
assert gradient.storage
