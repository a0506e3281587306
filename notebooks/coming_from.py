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
# # Coming from Taichi, Warp, Numba or Pallas
#
# Four small programs, each as one would write it there and as one writes it here. Programs of the others stand as text,
# as they need not be installed; Pallas is a part of JAX, so its program runs. Behind each stands what has no
# counterpart.
#
# | here | Taichi | Warp | Numba | Pallas |
# |---|---|---|---|---|
# | `@qd.jit` | `@ti.kernel` | `@wp.kernel`, `wp.launch` | `@njit`, `@cuda.jit` | `pl.pallas_call` |
# | outermost `qd.range(n)` | outermost `for` | `wp.tid()` | `prange`, `cuda.grid(1)` | `pl.program_id(0)` |
# | arrays, local to the call | fields, global | `wp.array`, in place | arrays, in place | references to blocks |
# | `qd.local(0.0)` | a variable | a variable | a variable | a value, or scratch memory |
# | `qd.while_`, `qd.when` | `while`, `if` | `while`, `if` | `while`, `if` | `lax.while_loop`, `pl.when` |
# | `b[k] += v` | `b[k] += v` | `wp.atomic_add(b, k, v)` | `cuda.atomic.add(b, k, v)` | none |
# | `jax.grad` | `ti.ad.Tape` | `wp.Tape` | none | of most kernels a rule of one's own |
# | `jax.vmap` | one more loop | one more dimension | one more loop | `jax.vmap` |
#
# Two things differ from all of them. A function is pure: it takes arrays and gives arrays, and the caller's arrays stay
# what they are. And it is traced: Python runs once, so what differs from element to element is written in `qd`.

# %%
import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import qdtrace as qd

# %% [markdown]
# ## From Taichi
#
# Two substances spread and react, and make spots (the model of Gray and Scott). In Taichi, whose language Quadrants
# continues:
#
# ```
# u, v, next_u, next_v = (ti.field(ti.f32, (n, n)) for _ in range(4))
#
# @ti.func
# def spread(a, i, j):
#     return a[(i + 1) % n, j] + a[(i - 1) % n, j] + a[i, (j + 1) % n] + a[i, (j - 1) % n] - 4 * a[i, j]
#
# @ti.kernel
# def react(feed: ti.f32, kill: ti.f32):
#     for i, j in u:
#         r = u[i, j] * v[i, j] ** 2
#         next_u[i, j] = u[i, j] + 0.16 * spread(u, i, j) - r + feed * (1 - u[i, j])
#         next_v[i, j] = v[i, j] + 0.08 * spread(v, i, j) + r - (feed + kill) * v[i, j]
#
# for _ in range(3000):
#     react(0.035, 0.062)
#     u.copy_from(next_u)
#     v.copy_from(next_v)
# ```
#
# Here the fields are arguments and results, and the loop over time is JAX's. `spread` is a Python function; it needs no
# mark, as it is traced with the rest.


# %%
def spread(a, i, j):
    n = a.shape[0]
    return a[(i + 1) % n, j] + a[(i - 1) % n, j] + a[i, (j + 1) % n] + a[i, (j - 1) % n] - 4 * a[i, j]


@qd.jit
def react(u, v, feed, kill):
    next_u, next_v = qd.empty_like(u), qd.empty_like(v)
    for i, j in qd.ndrange(*u.shape):
        r = u[i, j] * v[i, j] ** 2
        next_u[i, j] = u[i, j] + 0.16 * spread(u, i, j) - r + feed * (1 - u[i, j])
        next_v[i, j] = v[i, j] + 0.08 * spread(v, i, j) + r - (feed + kill) * v[i, j]
    return next_u, next_v


@jax.jit
def spots(kill):
    n = 128
    seeds = jax.random.uniform(jax.random.key(3), (8, 8)) < 0.3
    v = 0.5 * jnp.kron(seeds, jnp.ones((n // 8, n // 8)))
    return jax.lax.fori_loop(0, 3000, lambda _, state: react(state[0], state[1], 0.035, kill), (1 - v, v))[1]


kills = jnp.array([0.058, 0.061, 0.064])
patterns = jax.vmap(spots)(kills)
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), constrained_layout=True)
for axis, pattern, kill in zip(axes, patterns, kills, strict=True):
    axis.imshow(pattern, cmap="magma")
    axis.set_title(f"kill = {kill:.3f}")
    axis.axis("off")
plt.show()
assert patterns.std(axis=(1, 2)).min() > 0.02

# %% [markdown]
# - **Easier here**: three parameters at once are `jax.vmap`; a gradient through all steps is `jax.grad`, without
#   `needs_grad`, a tape, or an array that holds every step.
# - **No counterpart here**: sparse fields that allocate themselves (`pointer`, `bitmasked`), layouts by SNodes, a
#   window (`ti.ui`), fields as global state. Random numbers are JAX's, with keys. `ti.static` is plain Python: a Python
#   loop or `if` runs when the function is traced.
#
# ## From Warp
#
# Balls fly through air; how must they start to hit a target? In Warp:
#
# ```
# @wp.kernel
# def fly(start: wp.array(dtype=wp.vec2), steps: int, dt: float, miss: wp.array(dtype=float)):
#     i = wp.tid()
#     x = wp.vec2(0.0, 0.0)
#     v = start[i]
#     for _ in range(steps):
#         v = v + dt * (wp.vec2(0.0, -9.8) - 0.1 * wp.length(v) * v)
#         x = x + dt * v
#     d = x - wp.vec2(5.0, 1.0)
#     wp.atomic_add(miss, 0, wp.dot(d, d))
#
# start = wp.array(velocities, dtype=wp.vec2, requires_grad=True)
# miss = wp.zeros(1, dtype=float, requires_grad=True)
# with wp.Tape() as tape:
#     wp.launch(fly, dim=n, inputs=[start, 100, 0.01], outputs=[miss])
# tape.backward(loss=miss)
# slope = start.grad
# ```
#
# Here a thread's number is the variable of the loop, and there is no launch. A vector is a row of an array. The loop
# carries two variables, so they are `qd.local`.


# %%
@qd.jit
def fly(start, steps, dt):
    miss, path = qd.zeros((), start.dtype), qd.empty((start.shape[0], 100, 2), start.dtype)
    for i in qd.range(start.shape[0]):
        x, v = qd.local(jnp.zeros(2)), qd.local(start[i])
        for k in qd.range(steps):
            v += dt * (jnp.array([0.0, -9.8]) - 0.1 * jnp.linalg.norm(v.value) * v)
            x += dt * v
            path[i, k] = x.value
        d = x - jnp.array([5.0, 1.0])
        miss[()] += jnp.dot(d, d)
    return miss, path


start = jnp.asarray(np.random.default_rng(0).normal([6, 6], 2, (20, 2)), jnp.float32)
slope_of = jax.jit(jax.grad(lambda start: fly(start, 100, 0.01)[0]))
better = start
for _ in range(60):
    better = better - 0.3 * slope_of(better)
misses = float(fly(start, 100, 0.01)[0]), float(fly(better, 100, 0.01)[0])
print("sum of squared distances:", misses)
assert misses[1] < 0.01 * misses[0]

figure, axes = plt.subplots(1, 2, figsize=(9, 3), constrained_layout=True, sharex=True, sharey=True)
for axis, velocities, title in ((axes[0], start, "before"), (axes[1], better, "after")):
    for line in fly(velocities, 100, 0.01)[1]:
        axis.plot(*line.T, color="tab:blue", linewidth=0.8)
    axis.plot(5, 1, "+", color="tab:red", markersize=14, markeredgewidth=3)
    axis.set_title(title)
plt.show()

# %% [markdown]
# - **Easier here**: the gradient is a function, so it has a gradient itself, a batch, and a place in an optimiser of
#   JAX. Intermediate states need no arrays and no care: nothing that reverse mode reads can be overwritten.
# - **No counterpart here**: meshes, ray queries, hash grids, volumes, `warp.fem`; tiles that a block of threads shares;
#   streams and graphs that are captured by hand (XLA does that).
#
# ## From Numba
#
# Points wander by a simple rule, and a picture counts where they have been. In Numba, on processors and on GPUs:
#
# ```
# @njit(parallel=True)
# def density(starts, steps, out):
#     for k in prange(starts.shape[0]):
#         x, y = starts[k]
#         for _ in range(steps):
#             x, y = math.sin(1.4 * y) - math.cos(2.3 * x), math.sin(2.4 * x) - math.cos(2.1 * y)
#             i, j = int((x + 2) * 75), int((y + 2) * 75)
#             out[i, j] += 1              # a race: some counts are lost
#
# @cuda.jit
# def density(starts, steps, out):
#     k = cuda.grid(1)
#     if k < starts.shape[0]:             # the last block is not full
#         ...
#             cuda.atomic.add(out, (i, j), 1)
# ```
#
# Here `out[i, j] += 1` loses nothing, on every device, and there are no blocks to fill. `x, y = ...` in an inner loop
# becomes two `qd.local`; both new values are computed before one is stored.


# %%
@qd.jit
def density(starts, steps):
    out = qd.zeros((300, 300), jnp.int32)
    for k in qd.range(starts.shape[0]):
        x, y = qd.local(starts[k, 0]), qd.local(starts[k, 1])
        for _ in qd.range(steps):
            new_x, new_y = jnp.sin(1.4 * y) - jnp.cos(2.3 * x), jnp.sin(2.4 * x) - jnp.cos(2.1 * y)
            x.value, y.value = new_x, new_y
            i, j = ((x + 2) * 75).astype(jnp.int32), ((y + 2) * 75).astype(jnp.int32)
            out[jnp.clip(i, 0, 299), jnp.clip(j, 0, 299)] += 1
    return out


starts = jnp.asarray(np.random.default_rng(1).uniform(-2, 2, (10_000, 2)), jnp.float32)
counts = density(starts, 500)
assert int(counts.sum()) == 10_000 * 500

plt.figure(figsize=(4.5, 4.5), constrained_layout=True)
plt.imshow(np.log1p(counts), cmap="inferno")
plt.axis("off")
plt.title("where points have been")
plt.show()

# %% [markdown]
# - **Easier here**: accumulation without a race; vectors of the processor also where loops differ in length;
#   derivatives.
# - **No counterpart here**: Python's own `if` and `while` on an element's value (`qd.when`, `qd.while_` instead), lists
#   and dictionaries in kernels, arrays changed in place for the caller, shared memory and `syncthreads`, calls of C
#   functions.
#
# ## From Pallas
#
# Softmax of rows. A Pallas kernel sees blocks of arrays, and says which block belongs to which program:


# %%
def block(x_ref, o_ref):
    x = x_ref[...]
    e = jnp.exp(x - x.max(axis=1, keepdims=True))
    o_ref[...] = e / e.sum(axis=1, keepdims=True)


def softmax_pallas(x):
    rows = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = pl.pallas_call(
        block, grid=(x.shape[0] // 8,), in_specs=[rows], out_specs=rows, out_shape=shape, interpret=True
    )
    return call(x)


# %% [markdown]
# Here a lane sees the whole array, and takes its row element by element. It needs one pass less: while it looks for the
# largest element it already adds up what it has seen, as often in attention.


# %%
@qd.jit
def softmax(x):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        largest, total = qd.local(x[i, 0]), qd.local(0.0)
        for k in qd.range(x.shape[1]):
            larger = jnp.maximum(largest, x[i, k])
            total.value = total * jnp.exp(largest - larger) + jnp.exp(x[i, k] - larger)
            largest.value = larger
        for k in qd.range(x.shape[1]):
            out[i, k] = jnp.exp(x[i, k] - largest) / total
    return out


x = jnp.asarray(np.random.default_rng(2).normal(0, 3, (64, 200)), jnp.float32)
np.testing.assert_allclose(softmax(x), softmax_pallas(x), rtol=1e-5, atol=1e-7)
pick = jnp.asarray(np.random.default_rng(3).normal(size=x.shape), jnp.float32)
ours = jax.grad(lambda x: jnp.vdot(softmax(x), pick))(x)
np.testing.assert_allclose(ours, jax.grad(lambda x: jnp.vdot(jax.nn.softmax(x), pick))(x), rtol=1e-3, atol=1e-6)

# %% [markdown]
# - **Easier here**: no blocks to choose, no padding of sizes that a block does not divide; control flow of each
#   element; derivatives of all orders; processors as well as GPUs.
# - **No counterpart here**: blocks in fast memory under your own control, matrix units (`jnp.dot` of tiles; whole
#   products belong to XLA, between the loops), asynchronous copies, TPUs.
#
# ## What hands do by habit
#
# Four habits of the other languages, and what is said here. Nothing is wrong silently.


# %%
def report(title, function, *arguments):
    try:
        function(*arguments)
    except qd.QdError as error:
        print(f"{title}\n    {str(error).splitlines()[0]}\n    {str(error).splitlines()[-1]}\n")
    else:
        raise AssertionError(f"{title}: no error")


@qd.jit
def branch(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        if x[i] > 0:
            out[i] = 1.0
    return out


@qd.jit
def carried(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        total = 0.0
        for k in qd.range(x.shape[0]):
            total = total + x[k]
        out[i] = total
    return out


@qd.jit
def before_first(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = x[i - 1]
    return out


line = jnp.array([1.0, -2.0, 3.0])
report("`if` on an element", branch, line)
report("a Python variable that a loop carries", carried, line)
report("an index before the first element", before_first, line)


# %% [markdown]
# The fourth: a kernel that changes its argument. The caller's array stays what it is; the result has to be returned.


# %%
@qd.jit
def double(x):
    for i in qd.range(x.shape[0]):
        x[i] = 2 * x[i]
    return x


doubled = double(line)
assert doubled.tolist() == [2.0, -4.0, 6.0]
assert line.tolist() == [1.0, -2.0, 3.0]
print(line, "->", doubled)
