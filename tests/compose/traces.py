"""Modules made anew of their source, as a new process has them, and calls that count what was found on disk."""

import types

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.compose.derivative import _derived, _eager, reached_by
from qdtrace.compose.linearised import linearised
from qdtrace.compose.residuals import keeping, residuals_of

FILE = "/somewhere/program.py"


def module(text, file=FILE, **names):
    """A module with that source, as a new process has it: other objects of the same content."""
    made = types.ModuleType("program")
    vars(made).update(names)
    exec(compile(text, file, "exec"), vars(made))
    return made


def run(f, *args, **settings):
    """Calls a function as a new process would, and returns its result with what was counted."""
    before = qd.stats()
    result = jax.tree.map(np.asarray, qd.jit(f, **settings)(*args))
    return result, qd.stats() - before


def plain(f, *args, **settings):
    """The result without a cache."""
    with qd.options(offline_cache=False):
        return jax.tree.map(np.asarray, qd.jit(f, **settings)(*args))


def forget():
    """Has the next trace of a function look on disk for what this process has derived."""
    jax.clear_caches()
    for made in (linearised, residuals_of, keeping, reached_by, _derived, _eager):
        made.cache_clear()


def is_found(work):
    return work.traces == 0 and work.hits.get("pure") == 1


def reasons(work):
    return {text.removeprefix("pure: ") for text in work.misses if text.startswith("pure: ")}


def same(a, b):
    leaves, tree = jax.tree.flatten(a)
    others, other = jax.tree.flatten(b)
    return tree == other and all(
        x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(leaves, others, strict=True)
    )


X = jnp.linspace(0.5, 2, 7)
HEAD = "import functools, os, random, time\nimport jax\nimport jax.numpy as jnp, numpy as np\nimport qdtrace as qd\n"
LOOP = "    for i in qd.range(x.shape[0]):\n        "

SMALL = """
import qdtrace as qd
def f(x, n=2):
    for i in qd.range(x.shape[0]):
        x[i] = x[i] * n
    return x
"""

BASE = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
import operator
import qdtrace as qd
SCALE = 2.0
DTYPE = jnp.float32
ORDERED = {"one": 1.0, "two": 2.0}
ZERO = 0.0
LIST = [3.0]
OTHER = [3.0]
TABLE = {"a": 1.0, "b": [1.0, 2.0]}
WEIGHTS = np.array([1.0, 2.0, 3.0], np.float32)
CONSTANTS = jnp.array([1.0, 2.0, 3.0])
OPERATIONS = {"first": lambda v: v + 1, "second": lambda v: v * 2}
def inner(v, by=3.0, *, more=0.5):
    return v * 1.5 + by + more
def middle(v):
    return inner(v)
def made(factor):
    def scaled(v):
        return v * factor
    return scaled
scaled = made(4.0)
partly = functools.partial(inner, by=7.0)
def deco(g):
    @functools.wraps(g)
    def wrapper(v):
        return g(v) + 0.25
    return wrapper
@deco
def decorated(v):
    return v * 2
def counting():
    n = 1.0
    def step(v):
        nonlocal n
        n = n + 1.0
        return v * n
    return step
def helper(v):
    count = counting()
    v = middle(v) * SCALE + TABLE["b"][1] + scaled(v) + partly(v) + decorated(v) + OPERATIONS["first"](v)
    v = v.astype(DTYPE).astype(jnp.float32) + [*ORDERED.values()][0] + jnp.copysign(1.0, ZERO)
    LIST.append(OTHER[0])
    v = v + len(OTHER)
    LIST.pop()
    return count(v) + count(v) + operator.add(v, WEIGHTS[1]) + (lambda u: u * 0.5)(v)
def f(x):
    for i in qd.range(x.shape[0]):
        x[i] = helper(x[i]) + CONSTANTS[i % 3] * jnp.sum(CONSTANTS)
    return x
"""
