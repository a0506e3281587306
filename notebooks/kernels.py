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
# # How a function becomes kernels
#
# This notebook follows one function from Python to machine code, and looks at it at each stage: the graph, the passes,
# the tasks, their code, and what reverse mode adds. All of it is for reading, not for guessing: when a program is slow,
# these are the places to look at.

# %%
import html
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

import qdtrace as qd

# %% [markdown]
# ## The function
#
# The bright parts of a picture grow. Four loops: how far the brightest neighbour is above a pixel, up and down and to
# the sides, how fast the pixel changes, and one step with it. Written in this way each loop fills an array that the
# next one reads.


# %%
@qd.jit
def flow(u, rate):
    n, m = u.shape
    down, right = qd.empty((n, m), u.dtype), qd.empty((n, m), u.dtype)
    change, out = qd.empty((n, m), u.dtype), qd.empty((n, m), u.dtype)
    for i, j in qd.ndrange(n, m):
        highest = jnp.maximum(u[jnp.maximum(i - 1, 0), j], u[jnp.minimum(i + 1, n - 1), j])
        down[i, j] = jnp.maximum(highest - u[i, j], 0.0)
    for i, j in qd.ndrange(n, m):
        highest = jnp.maximum(u[i, jnp.maximum(j - 1, 0)], u[i, jnp.minimum(j + 1, m - 1)])
        right[i, j] = jnp.maximum(highest - u[i, j], 0.0)
    for i, j in qd.ndrange(n, m):
        change[i, j] = jnp.sqrt(down[i, j] ** 2 + right[i, j] ** 2 + 1e-12)
    for i, j in qd.ndrange(n, m):
        out[i, j] = u[i, j] + rate * change[i, j]
    return out


size = 512
row, column = np.mgrid[0:size, 0:size] / size
picture = np.exp(-((np.hypot(row - 0.5, column - 0.5) - 0.3) ** 2) / 0.002) + 0.5 * (np.hypot(row - 0.3, column) < 0.2)
picture = jnp.asarray(picture, jnp.float32)
steps = jax.jit(lambda u: jax.lax.scan(lambda u, _: (flow(u, 0.6), u), u, length=40)[1])(picture)
figure, axes = plt.subplots(1, 3, figsize=(9, 3), constrained_layout=True)
for axis, k in zip(axes, (0, 15, 39), strict=True):
    axis.imshow(steps[k], cmap="magma", vmin=0, vmax=1)
    axis.set_title(f"after {k} steps")
    axis.axis("off")
plt.show()
assert (steps[39] - steps[0]).min() >= 0
assert steps[39].max() < 1.01

# %% [markdown]
# ## The graph, as traced
#
# Nobody parses the Python code. The function ran once, with JAX's tracers for its values; loops left marks. What came
# of that is a small program: four tasks (`range_for`), loads, stores, arithmetic. Behind the `@` stands where a loop is
# from.

# %%
low = flow.lower(picture, 0.3)
print(low.graph("trace"))
assert low.graph("trace").count("range_for") == 4

# %% [markdown]
# ## After the passes
#
# The four loops have become one. An iteration reads only what it wrote itself in the loop before, so they can be
# joined, and then nobody needs `down`, `right` and `change` in memory: stores are forwarded to loads, and the arrays
# are gone.

# %%
print(low.graph())
assert low.graph().count("range_for") == 1
assert low.graph().count("buffer") == 1

# %% [markdown]
# The bytes tell what that is worth. A stage of the pipeline, and each pass in it, has a name; `graph` and `traffic`
# take it. A pass that a program has no need of does nothing.

# %%
stages = ("trace", "canonical", "joined", "final")
loops = [low.graph(stage).count("range_for") for stage in stages]
lines = [len(low.graph(stage).splitlines()) for stage in stages]
megabytes = [low.traffic(stage).total / 1e6 for stage in stages]
figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), constrained_layout=True)
for axis, values, title in zip(axes, (loops, lines, megabytes), ("tasks", "lines", "megabytes moved"), strict=True):
    axis.bar(stages, values, color=["tab:blue"] * 3 + ["tab:orange"])
    axis.set_title(title)
plt.show()
print("before:", low.traffic("trace"))
print("after: ", low.traffic())
assert low.traffic().total < 0.4 * low.traffic("trace").total

# %% [markdown]
# Does it matter? An option keeps tasks apart; both are timed in this run.


# %%
def best_time(f, *args):
    jax.block_until_ready(f(*args))
    times = []
    for _ in range(20):
        began = time.perf_counter()
        jax.block_until_ready(f(*args))
        times.append(time.perf_counter() - began)
    return min(times)


apart = qd.jit(flow.__wrapped__, options={"fuse_tasks": "off"})
large = jnp.tile(picture, (4, 4))
joined_time, apart_time = best_time(flow, large, 0.3), best_time(apart, large, 0.3)
print("tasks:", len(flow.lower(large, 0.3).tasks), "and", len(apart.lower(large, 0.3).tasks))
print(f"joined {1e3 * joined_time:.2f} ms, apart {1e3 * apart_time:.2f} ms, ratio {apart_time / joined_time:.1f}")
np.testing.assert_allclose(flow(large, 0.3), apart(large, 0.3), atol=1e-6)
assert len(apart.lower(large, 0.3).tasks) == 4

# %% [markdown]
# Which task takes the time says `qd.profile`: time, bytes, and how near that is to the speed of a plain copy.

# %%
profile = qd.profile(apart)(large, 0.3)
print(profile)
assert [row.iterations for row in profile.rows] == [large.size] * 4
profile.plot()
plt.show()

# %% [markdown]
# ## When loops are not joined
#
# Here the second loop reads what *other* iterations of the first one wrote. No thread may begin before all have ended,
# so there are two tasks, and `twice` stays in memory. The report page (below) says so for each pair of loops.


# %%
@qd.jit
def shifted(x):
    twice, out = qd.empty(x.shape, x.dtype), qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        twice[i] = 2 * x[i]
    for i in qd.range(x.shape[0]):
        out[i] = twice[x.shape[0] - 1 - i] + x[i]
    return out


line = jnp.arange(1000.0)
np.testing.assert_allclose(shifted(line), 2 * line[::-1] + line)
print([task.name for task in shifted.lower(line).tasks])
assert len(shifted.lower(line).tasks) == 2

# %% [markdown]
# ## The page
#
# `report` writes all of it on one page: what each pass changed, which loops were joined and why not, how each launch
# was vectorised. It is complete in itself, so it can be mailed. Scroll in it:

# %%
with TemporaryDirectory() as folder:
    page = shifted.lower(line).report(Path(folder) / "shifted.html").read_text()
words = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))
assert "shifted" in words
frame = f'<iframe srcdoc="{html.escape(page)}" width="100%" height="420" style="border: 1px solid grey"></iframe>'
display({"text/html": frame}, raw=True)

# %% [markdown]
# ## Code
#
# A task becomes a function in LLVM's language: here the arithmetic of one vector of pixels. XLA calls the machine code
# with the arrays' addresses; there is no Python in between.

# %%
text = low.as_text("llvm")
vectors = [line for line in text.splitlines() if re.search(r"<\d+ x float>", line) and "sqrt" in line]
print(*vectors[:4], sep="\n")
print(f"... {len(text.splitlines())} lines in all")
assert vectors
for task in low.tasks:
    print(f"{task.name}: {task.reason}")

# %% [markdown]
# The reason says how many elements go through the processor at once, and what kind of loop it found. Three loops, three
# reasons: one without an inner loop, one whose inner loops have the same length in all lanes, and one whose lanes
# differ.


# %%
def powers(x, kind):
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        v, k = qd.local(x[i]), qd.local(0)
        if kind == "straight":
            v.value = v * v
        elif kind == "even":
            for _ in qd.range(100):
                v.value = 0.5 * (v + x[i] / v)
        else:
            for _ in qd.while_(lambda: (jnp.abs(v * v - x[i]) > 1e-5 * x[i]) & (k.value < 100)):
                v.value = 0.5 * (v + x[i] / v)
                k += 1
        out[i] = v
    return out


positive = jnp.logspace(-3.0, 6.0, 100_000)
kinds = [qd.jit(lambda x, kind=kind: powers(x, kind)).lower(positive).tasks[0].reason for kind in
         ("straight", "even", "uneven")]
print(*kinds, sep="\n")
assert "divergent" in kinds[2]
assert "divergent" not in kinds[0] + kinds[1]

# %% [markdown]
# ## What reverse mode keeps
#
# To go back through a loop one needs the values on the way. Keeping all of them takes memory that grows with the number
# of iterations; here it does not grow without end. The table says what one lane keeps for a loop of at most n
# iterations: all states where they are few, then some of them, from which the others are computed again.


# %%
def orbit(x, n):
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        v, k = qd.local(x[i]), qd.local(0)
        for _ in qd.while_(lambda: (k.value < n) & (jnp.abs(v.value) < 1e3)):
            v.value = jnp.sin(v) * 1.5 + x[i]
            k += 1
        out[i] = v
    return out


points = jnp.linspace(0.1, 0.9, 4096)
limits = (10, 100, 1000, 10_000, 100_000, 1_000_000)


def gradient_up_to(n):
    return qd.jit(jax.grad(lambda x: jnp.sum(qd.jit(lambda x: orbit(x, n))(x)))).lower(points)


gradients = [gradient_up_to(n) for n in limits]
kept = [sum(choice.nbytes for choice in gradient.storage) for gradient in gradients]
for n, nbytes, gradient in zip(limits, kept, gradients, strict=True):
    print(f"{n:>9,}: {nbytes:>7,} bytes a lane. {gradient.storage[0].reason}")
assert kept[-1] < 0.1 * 4 * limits[-1]

plt.figure(figsize=(6, 3.4), constrained_layout=True)
plt.loglog(limits, [4 * n for n in limits], ":", color="grey", label="every state")
plt.loglog(limits, kept, "o-", label="kept")
plt.xlabel("iterations at most")
plt.ylabel("bytes of a lane")
plt.legend()
plt.show()
print(gradients[-1].memory_analysis())

# %% [markdown]
# Some loops keep nothing. A loop whose derivative needs no old state, like a linear recurrence, only counts.


# %%
@qd.jit
def decay(x):
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.range(1000):
            v.value = 0.999 * v + 0.001
        out[i] = v
    return out


back = qd.jit(jax.grad(lambda x: jnp.sum(decay(x)))).lower(points)
print(*back.storage, sep="\n")
print(back.memory_analysis())
assert back.memory_analysis()["stack_per_lane"] == 0

# %% [markdown]
# Read on: `ARCHITECTURE.md` follows a program through the same stages with the names of the source files; `HACKING.md`,
# "See the graph", lists what `Lowered` can show.
