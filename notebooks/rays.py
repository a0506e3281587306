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
# # Rays onto triangles
#
# A picture of a mesh asks for each pixel which triangle its ray hits first, and whether the light sees that place. A
# tree of boxes finds both by a look at few triangles. We draw a bumpy ball, and turn the light to where it is wanted,
# by the derivative of the picture.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import qdtrace as qd

# %% [markdown]
# ## A mesh

# %%
rows = 60
u, v = np.meshgrid(np.linspace(0, np.pi, rows + 1), np.linspace(0, 2 * np.pi, 2 * rows + 1), indexing="ij")
radius = 1 + 0.2 * np.sin(5 * u) * np.cos(4 * v)
points = np.stack([radius * np.sin(u) * np.cos(v), radius * np.cos(u), radius * np.sin(u) * np.sin(v)], -1)
cells = [points[:-1, :-1], points[1:, :-1], points[1:, 1:], points[:-1, 1:]]
halves = [np.stack([cells[a], cells[b], cells[c]], 2).reshape(-1, 3, 3) for a, b, c in ((0, 1, 2), (0, 2, 3))]
triangles = jnp.asarray(np.concatenate(halves), jnp.float32)
print(triangles.shape[0], "triangles")

# %% [markdown]
# ## Rays
#
# The test of an item is an ordinary function: where a ray crosses a triangle, or infinity. `tree.ray` asks it of few
# items. A second ray, to the light, tells which places are in shadow.


# %%
def crossing(origin, direction, triangle):
    a, b, c = triangle
    normal = jnp.cross(direction, c - a)
    scale = 1 / jnp.dot(b - a, normal)
    first = scale * jnp.dot(origin - a, normal)
    other = jnp.cross(origin - a, b - a)
    second = scale * jnp.dot(direction, other)
    inside = (first >= 0) & (second >= 0) & (first + second <= 1)
    return jnp.where(inside, scale * jnp.dot(c - a, other), jnp.inf)


def crossings(origin, direction, triangles):
    return lambda j: crossing(origin, direction, triangles[j])


size = 160


@qd.jit
def picture(triangles, light):
    tree = qd.boxes(triangles.min(axis=1), triangles.max(axis=1))
    image = qd.zeros((size, size))
    for row, column in qd.ndrange(size, size):
        eye = jnp.stack([(column - size / 2) / (size / 2.6), (size / 2 - row) / (size / 2.6), 3.0])
        ahead = jnp.array([0.0, 0.0, -1.0])
        item, distance = tree.ray(eye, ahead, crossings(eye, ahead, triangles))
        with qd.when(item >= 0):
            a, b, c = triangles[item]
            normal = jnp.cross(b - a, c - a)
            normal = normal / jnp.linalg.norm(normal)
            normal = jnp.where(normal[2] < 0, -normal, normal)
            place = eye + distance * ahead + 1e-3 * normal
            shade, _ = tree.ray(place, light, crossings(place, light, triangles))
            bright = jnp.maximum(jnp.dot(normal, light), 0) / jnp.linalg.norm(light)
            image[row, column] = 0.15 + jnp.where(shade < 0, 0.85 * bright, 0.0)
    return image


light = jnp.array([1.0, 1.0, 0.6])
image = picture(triangles, light)
print(f"{float((image > 0).mean()):.2f} of the rays hit")

# %% [markdown]
# ## A light that follows a wish
#
# The picture has a derivative by the light, through what the rays hit. (Which places are in shadow has none: an edge
# that moves is no smooth change.) We turn the light until the picture is as bright as can be.


# %%
@jax.jit
def brighter(light, triangles):
    value, slope = jax.value_and_grad(lambda light: picture(triangles, light).mean())(light)
    turned = light + 0.8 * slope / jnp.linalg.norm(slope)
    return turned / jnp.linalg.norm(turned), value


turned = light
for _ in range(6):
    turned, value = brighter(turned, triangles)
image_turned = picture(triangles, turned)
print(f"mean brightness {float(image.mean()):.3f}, then {float(image_turned.mean()):.3f}; light from", turned)
assert image_turned.mean() > image.mean()

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 4.4))
for axis, shown, title in zip(axes, (image, image_turned), ("light from the side", "light turned"), strict=True):
    axis.imshow(np.asarray(shown), cmap="bone", vmin=0, vmax=1)
    axis.set(title=title, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## What is closest
#
# The same tree says how far places are from the surface: here in a slice through the middle.


# %%
def square(p, triangle):
    """The squared distance of a point from a triangle: from its plane if it is above, else from its nearest side."""
    a, b, c = triangle
    normal = jnp.cross(b - a, c - a)
    sides = [(a, b), (b, c), (c, a)]
    inside = [jnp.dot(jnp.cross(end - start, p - start), normal) >= 0 for start, end in sides]
    along = [jnp.clip(jnp.dot(p - s, e - s) / jnp.maximum(jnp.dot(e - s, e - s), 1e-20), 0, 1) for s, e in sides]
    ends = [jnp.sum((p - s - t * (e - s)) ** 2) for t, (s, e) in zip(along, sides, strict=True)]
    plane = jnp.dot(p - a, normal) ** 2 / jnp.maximum(jnp.dot(normal, normal), 1e-20)
    flat = jnp.dot(normal, normal) < 1e-18  # triangles at the poles are sides
    return jnp.where(inside[0] & inside[1] & inside[2] & ~flat, plane, jnp.minimum(jnp.minimum(*ends[:2]), ends[2]))


def squares(p, triangles):
    return lambda j: square(p, triangles[j])


@qd.jit
def slice_of_distances(triangles):
    tree = qd.boxes(triangles.min(axis=1), triangles.max(axis=1))
    out = qd.zeros((size, size))
    for row, column in qd.ndrange(size, size):
        p = jnp.stack([(column - size / 2) / (size / 3), (size / 2 - row) / (size / 3), 0.0])
        _, found = tree.closest(p, squares(p, triangles))
        out[row, column] = jnp.sqrt(found)
    return out


distances = slice_of_distances(triangles)
fig, axis = plt.subplots(figsize=(4.6, 4.4))
axis.contourf(np.asarray(distances)[::-1], levels=20, cmap="magma")
axis.set(title="distance from the surface", xticks=[], yticks=[], aspect="equal")
plt.show()
