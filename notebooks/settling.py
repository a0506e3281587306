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
# # Elastic bodies that settle
#
# A rubber bar is clamped at one end, and gravity pulls it down. Where does it come to rest? At the minimum of its
# energy, which Newton's method finds in a few steps, if somebody has the second derivatives. They are sparse: a corner
# of a tetrahedron meets the other corners of its tetrahedra, and nothing else. Here the energy is a loop over
# tetrahedra, and `qd.sparsity` reads from it which second derivatives there are.

# %%
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.scipy.sparse.linalg import cg
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

import qdtrace as qd

jax.config.update("jax_enable_x64", True)  # the last steps change the energy by less than f32 can tell

# %% [markdown]
# ## A bar of tetrahedra
#
# Each cell of a grid is cut into six tetrahedra along its diagonal.

# %%
cells = (12, 3, 3)
grid = np.stack(np.meshgrid(*(np.arange(n + 1) for n in cells), indexing="ij"), -1)
number = np.arange(grid[..., 0].size).reshape(grid.shape[:3])
at_rest = jnp.asarray(grid.reshape(-1, 3) / cells[1])

parts = []
for order in itertools.permutations(range(3)):
    corner, ways = np.zeros(3, int), [np.zeros(3, int)]
    for axis in order:
        corner = corner + np.eye(3, dtype=int)[axis]
        ways.append(corner)
    corners = [number[tuple(slice(w, w + n) for w, n in zip(way, cells, strict=True))].ravel() for way in ways]
    even = np.linalg.det(np.stack(ways[1:])) > 0
    parts.append(np.stack(corners if even else [corners[k] for k in (0, 2, 1, 3)], -1))
tetrahedra = jnp.asarray(np.concatenate(parts), jnp.int32)

edges = jnp.swapaxes(at_rest[tetrahedra[:, 1:]] - at_rest[tetrahedra[:, :1]], 1, 2)
inverse, volume = jnp.linalg.inv(edges), jnp.linalg.det(edges) / 6
up = jnp.array([0.0, 0.0, 1.0])
free = (at_rest[:, 0] > 0).astype(float)[:, None]
print(f"{len(at_rest)} points, {len(tetrahedra)} tetrahedra, volume {float(volume.sum()):.2f}")

# %% [markdown]
# ## Its energy
#
# `f` says how a tetrahedron is stretched, beside its shape at rest. The energy of rubber grows with the lengths of `f`
# and with the change of its volume (a stable Neo-Hookean solid, after Smith, de Goes and Kim). A second loop adds the
# height of each point.


# %%
@qd.jit
def energy(x, stiffness, pull):
    out = qd.zeros((), x.dtype)
    for e in qd.range(tetrahedra.shape[0], name="elastic"):
        first = x[tetrahedra[e, 0]]
        sides = jnp.stack([x[tetrahedra[e, k]] - first for k in (1, 2, 3)], axis=1)
        f = sides @ inverse[e]
        squares = jnp.sum(f * f)
        bulk = jnp.dot(f[:, 0], jnp.cross(f[:, 1], f[:, 2])) - 1 - 0.75 / 4
        out[()] += stiffness * volume[e] * (squares / 2 + 2 * bulk**2 - jnp.log(squares + 1) / 2)
    for i in qd.range(x.shape[0], name="gravity"):
        out[()] += pull * jnp.dot(x[i], up)
    return out


stiffness, pull = 1.0, 1.2e-4
pattern = qd.sparsity(energy)(at_rest, stiffness, pull)
print(f"{pattern.nse} of {at_rest.size**2} second derivatives, in blocks of {pattern.block}")

fig, plot = plt.subplots(figsize=(4, 4))
plot.plot(pattern.col[::3], pattern.row[::3], ",")
plot.set(title="second derivatives that may differ from 0", xticks=[], yticks=[])
plot.invert_yaxis()
plot.set_aspect("equal")
plt.show()

# %% [markdown]
# ## Newton's method in one `jax.jit`
#
# Each step computes the second derivatives, with those of each tetrahedron projected so that no direction has negative
# curvature, solves for the step by conjugate gradients, and takes half of it, a quarter, and so on, until the energy
# falls. Clamped points stay where they are. All of it is one compiled function: nothing leaves it but the result.


# %%
def solve(values, right):
    matrix = pattern.to_bcsr(values)
    diagonal = jnp.zeros(right.size).at[pattern.row].add(jnp.where(pattern.row == pattern.col, values, 0.0))
    diagonal = diagonal.reshape(right.shape)

    def apply(v):
        return free * (matrix @ (free * v).ravel()).reshape(v.shape)

    return cg(apply, free * right, tol=1e-6, maxiter=400, M=lambda v: free * v / diagonal)[0]


@jax.jit
def settle(x, stiffness, pull):
    def one_step(state):
        x, count, energies = state
        value, slope = jax.value_and_grad(energy)(x, stiffness, pull)
        step = solve(qd.sparse_hessian(energy, pattern, psd=True)(x, stiffness, pull), -slope)

        def falls(size):
            return energy(x + size * step, stiffness, pull) < value

        size = jax.lax.while_loop(lambda s: ~falls(s) & (s > 1e-3), lambda s: s / 2, 1.0)
        x = jnp.where(falls(size), x + size * step, x)
        return x, count + 1, energies.at[count].set(value)

    return jax.lax.fori_loop(0, 16, lambda _, state: one_step(state), (x, 0, jnp.zeros(16)))


settled, _, energies = settle(at_rest, stiffness, pull)
slope = jnp.abs(free * jax.grad(energy)(settled, stiffness, pull)).max()
print("energies:", np.asarray(energies[:8]))
print(f"largest force left on a free point: {float(slope):.1e}")
assert slope < 1e-9

# %%
sides = np.concatenate([np.asarray(tetrahedra)[:, k] for k in ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3))])
_, first, times = np.unique(np.sort(sides, axis=1), axis=0, return_index=True, return_counts=True)
surface = sides[first[times == 1]]  # a side of one tetrahedron alone is outside
across = np.linalg.norm(np.asarray(settled - at_rest), axis=1)[surface].mean(axis=1)

fig = plt.figure(figsize=(10, 3.8))
bars: Any = fig.add_axes((-0.02, -0.15, 0.68, 1.3), projection="3d")  # Matplotlib's types know no axes in space
colours = plt.cm.plasma(across / across.max())
looks: list[tuple[Any, dict[str, Any]]] = [
    (at_rest, {"facecolors": (0.5, 0.5, 0.5, 0.04), "edgecolors": (0, 0, 0, 0.12)}),
    (settled, {"facecolors": colours, "edgecolors": (1, 1, 1, 0.5)}),
]
for shape, style in looks:
    bars.add_collection3d(Poly3DCollection(np.asarray(shape)[surface], linewidths=0.4, **style))
bars.set(xlim=(0, 4), ylim=(-1.5, 2.5), zlim=(-2, 2))
bars.set_box_aspect((1, 1, 1), zoom=1.45)
bars.view_init(14, -70)
bars.set_axis_off()
plot = fig.add_axes((0.72, 0.17, 0.26, 0.7))
plot.semilogy(np.asarray(energies[:10] - energies[-1]), "o-", color="tab:purple")
plot.set(title="energy above the lowest", xlabel="step")
plt.show()

# %% [markdown]
# ## What a stiffer bar would do
#
# Where the bar rests depends on its stiffness. There the forces stay 0, so the change of the position solves one more
# system with the same matrix, whose right side is the change of the forces. Differences say the same.


# %%
@jax.jit
def by_stiffness(x, stiffness, pull):
    _, forces = jax.jvp(lambda s: jax.grad(energy)(x, s, pull), (stiffness,), (1.0,))
    return solve(qd.sparse_hessian(energy, pattern)(x, stiffness, pull), -forces)


tip = int(jnp.argmax(at_rest[:, 0]))
change = by_stiffness(settled, stiffness, pull)[tip, 2]
above, below = (settle(settled, stiffness + h, pull)[0][tip, 2] for h in (0.01, -0.01))
print(f"the tip rises by {float(change):.3f} per unit of stiffness; by differences {float((above - below) / 0.02):.3f}")
np.testing.assert_allclose(change, (above - below) / 0.02, rtol=1e-3)
