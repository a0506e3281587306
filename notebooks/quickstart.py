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
# # Quickstart
#
# qdtrace runs Python loops over elements as native code inside of JAX programs. This notebook goes from the
# installation to a fused step, its graph, its gradient, many runs at once, and a Newton iteration per element. It
# takes less than a minute on a CPU.
#
# Install it from a checkout; the extra `demo` brings what the figures and the optimiser need:
#
# ```
# pip install '.[demo]'
# ```

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import qdtrace as qd

# %% [markdown]
# ## A step of a string
#
# The points of a string have a displacement `u` and a velocity `v`; waves run along it with the speed `c`, which may
# differ from point to point. Both ends are fixed. One step of time takes three loops.
#
# Under `@qd.jit` a function is ordinary Python that runs once, with JAX's tracers. Each outermost `qd.range` is a
# parallel loop, one thread an element; any `jnp` code may stand in it. `qd.when` is a branch, `qd.local` a variable
# that a branch or an inner loop may change. The function itself is pure: `v[i] += ...` changes the buffer of this
# call, not the caller's array.


# %%
@qd.jit
def step(u, v, c, dt=0.5):
    n = u.shape[0]
    force, moved = qd.empty(n, u.dtype), qd.empty(n, u.dtype)
    for i in qd.range(n):
        left, right = qd.local(0.0), qd.local(0.0)
        with qd.when(i > 0):
            left.value = u[i - 1]
        with qd.when(i < n - 1):
            right.value = u[i + 1]
        force[i] = c[i] ** 2 * (left - 2 * u[i] + right)
    for i in qd.range(n):
        v[i] += dt * force[i]
    for i in qd.range(n):
        moved[i] = u[i] + dt * v[i]
    return moved, v


n = 200
x = jnp.linspace(0.0, 1.0, n)
pluck = jnp.exp(-(((x - 0.2) / 0.04) ** 2))
speed = 1 - 0.35 * jnp.exp(-(((x - 0.6) / 0.08) ** 2))  # slower around 0.6
moved, v = step(pluck, jnp.zeros(n), speed)

# %% [markdown]
# ## Its graph
#
# `lower` shows what becomes of a call. The three loops are one task: `force` has no memory any more, and each array
# is read once and written once. `traffic` counts the bytes, before any pass and after all of them.

# %%
low = step.lower(pluck, jnp.zeros(n), speed)
print(low.graph())
print("traced:   ", low.traffic("trace"))
print("optimised:", low.traffic())
print(low.tasks[0].reason)

# %% [markdown]
# `low.graph("trace")` is the graph as traced, and `low.report("page.html")` a page with all stages.
#
# ## Inside of JAX
#
# The step is a JAX function: it goes into `jax.jit`, `jax.lax.scan` and the rest. Here 700 steps, and two points of
# the string that record what passes.

# %%
sensors = jnp.array([20, 180])


def run(u, c, steps=700):
    def advance(state, _):
        u, v = state
        u, v = step(u, v, c)
        return (u, v), u

    return jax.lax.scan(advance, (u, jnp.zeros_like(u)), None, length=steps)[1]


def record(u, c):
    return run(u, c)[:, sensors]


history = jax.jit(run)(pluck, speed)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), constrained_layout=True)
axes[0].imshow(history.T, aspect="auto", origin="lower", cmap="RdBu", vmin=-1, vmax=1, extent=(0, 700, 0, 1))
axes[0].set(title="a string, slower around 0.6", xlabel="step", ylabel="x")
axes[1].plot(history[:, sensors])
axes[1].set(title="recorded at two points", xlabel="step", ylabel="displacement")
plt.show()

# %% [markdown]
# ## Its gradient
#
# `jax.grad`, `jax.jvp`, `jax.hessian` and their combinations work as for any JAX function. There is nothing to
# declare: no tape, no list of variables that need a gradient. `qd.check_grads` holds derivatives against differences
# of values; it is silent when they agree.


# %%
def loss(c):
    return jnp.sum((record(pluck, c) - recorded) ** 2)


recorded = record(pluck, speed)
uniform = jnp.ones(n)
qd.check_grads(loss, (uniform,), order=1, modes=("fwd", "rev"))

# %% [markdown]
# A derivative has a graph as well. That of one step is again one task: it computes anew what it needs of the step, in
# registers, and walks back.


# %%
def swing(c, u, v):
    return jnp.sum(step(u, v, c)[0] ** 2)


slopes = qd.jit(jax.grad(swing)).lower(speed, pluck, jnp.zeros(n))
print(slopes.graph().split("program ")[-1])

# %% [markdown]
# How fast are waves at each point? The two records say it. The descent begins with a uniform string and never sees
# `speed`; each iteration goes through 700 steps forward and back.

# %%
iterations = 600
optimiser = optax.adam(0.01)


@jax.jit
def improve(c, memory):
    value, gradient = jax.value_and_grad(loss)(c)
    change, memory = optimiser.update(gradient, memory)
    return c + change, memory, value


found, memory, losses = uniform, optimiser.init(uniform), []
for _ in range(iterations):
    found, memory, value = improve(found, memory)
    losses.append(float(value))

figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), constrained_layout=True)
axes[0].semilogy(losses)
axes[0].set(title="descent", xlabel="iteration", ylabel="sum of squared differences")
axes[1].plot(x, speed, label="true")
axes[1].plot(x, found, "--", label="found from two records")
axes[1].plot(x[sensors], speed[sensors], "o", color="black", label="sensors")
axes[1].set(title="speed of waves", xlabel="x")
axes[1].legend()
plt.show()
assert losses[-1] < 1e-3 * losses[0]
assert jnp.abs(found - speed).mean() < 0.25 * jnp.abs(uniform - speed).mean()

# %% [markdown]
# ## Many initial conditions
#
# `jax.vmap` of the whole simulation plucks the string at 128 places at once. The batch becomes one more axis of each
# task; `speed`, which all runs share, is not copied.

# %%
places = jnp.linspace(0.1, 0.9, 128)
plucks = jnp.exp(-(((x - places[:, None]) / 0.04) ** 2))
records = jax.jit(jax.vmap(record, in_axes=(0, None)))(plucks, speed)
np.testing.assert_allclose(records[5], record(plucks[5], speed), atol=1e-5)

plt.figure(figsize=(6, 3.5), constrained_layout=True)
plt.imshow(records[:, :, 1], aspect="auto", origin="lower", cmap="RdBu", vmin=-1, vmax=1, extent=(0, 700, 0.1, 0.9))
plt.title("what the right sensor records")
plt.xlabel("step")
plt.ylabel("plucked at")
plt.show()

# %% [markdown]
# ## A Newton iteration per element
#
# `qd.vmap` makes a parallel loop of a JAX function of one element, control flow included. Kepler's equation E - e sin
# E = M gives the place E of a planet on an orbit of eccentricity e at the time M; Newton's method solves it, in more
# steps the longer the orbit. Under `jax.vmap` all elements iterate until the last has finished. Here each stops by
# itself.


# %%
def kepler(e, m):
    def moving(state):
        _, change, steps = state
        return (jnp.abs(change) > 1e-5) & (steps < 50)

    def newton(state):
        place, _, steps = state
        change = (place - e * jnp.sin(place) - m) / (1 - e * jnp.cos(place))
        return place - change, change, steps + 1

    place, _, steps = jax.lax.while_loop(moving, newton, (m + 0.85 * e, jnp.float32(1), 0))
    return place, steps


e, m = jnp.meshgrid(jnp.linspace(0.0, 0.97, 1000), jnp.linspace(0.0, np.pi, 1000))
e, m = e.ravel(), m.ravel()
solve, batched = jax.jit(qd.vmap(kepler)), jax.jit(jax.vmap(kepler))
place, steps = solve(e, m)
np.testing.assert_allclose(place, batched(e, m)[0], atol=1e-5)


def best_time(f):
    times = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(f(e, m))
        times.append(time.perf_counter() - began)
    return min(times)


ours, theirs = best_time(solve), best_time(batched)
print(f"a million orbits: qd.vmap {1e3 * ours:.1f} ms, jax.vmap {1e3 * theirs:.1f} ms")

# %% [markdown]
# `jax.grad` goes through the loop as well, which JAX alone does not do in reverse where the number of iterations is
# unknown. It is the derivative of the steps that were taken: as the loop ends when a step is short, not when the
# equation nearly holds, the derivative has converged too. Its closed form is sin E / (1 - e cos E).

# %%
gradient = jax.grad(lambda e, m: jnp.sum(qd.vmap(kepler)(e, m)[0]))
slope = jax.jit(gradient)(e, m)
exact = jnp.sin(place) / (1 - e * jnp.cos(place))
print(f"largest difference from the closed form: {jnp.abs(slope - exact).max():.1e}")
np.testing.assert_allclose(slope, exact, rtol=1e-5, atol=1e-5)

print("kept for the way back:", qd.jit(gradient).lower(e, m).storage[0].reason)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), constrained_layout=True)
for axis, values, title in ((axes[0], steps, "Newton steps"), (axes[1], slope, "dE/de by jax.grad")):
    image = axis.imshow(values.reshape(1000, 1000), aspect="auto", origin="lower", extent=(0, 0.97, 0, np.pi))
    axis.set(title=title, xlabel="eccentricity e", ylabel="mean anomaly M")
    figure.colorbar(image, ax=axis)
plt.show()

# %% [markdown]
# Read on: `docs/language.md` has the whole language on one page, `README.md` what can be differentiated;
# `make demo` fits a model of lynx and hare to counts, through an adaptive solver. More notebooks:
#
# - `batching`: lanes and lock-step, batches of batches, gradients of batches
# - `million_odes`: Diffrax in lanes, and a fit from many starts
# - `physics`: a creature learns to walk, a block of jelly is aimed
# - `rendering`: signed distances, gradients of images, a shape from images
# - `sparse`: ragged rows, a graph, finite elements
# - `chains`: NUTS without waiting
# - `kernels`: from Python to machine code, stage by stage
# - `coming_from`: programs of Taichi, Warp, Numba and Pallas side by side with ours
