"""Buffers, cells and atomics: refusals that `tests/mistakes` does not have, with their whole text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import TraceIndexError, TraceTypeError, TraceValueError, UnsupportedError

BIG = np.ones(5000, np.float32)
K = np.arange(4, dtype=np.int32)
M = np.ones((4, 3), np.float32)
X = np.ones(8, np.float32)


def out_of_bounds_negative(m):
    m[-5, 0] = 1


def two_dots(m):
    for i in qd.range(4):
        m[..., i, ...] = 1


def vector_index(m, k):
    for i in qd.range(4):
        qd.atomic_add(m, (k, i), 1)


def no_step(m):
    for i in qd.range(4):
        m[i] = m[i, ::0]


def wrong_shape(m):
    for i in qd.range(4):
        m[i] = jnp.ones(2)


def too_large_number(k):
    small = qd.zeros(3, jnp.int8)
    small[0] = 300


def store_whole_large(b, x):
    for i in qd.range(8):
        x[i] = jnp.sum(b)


def change_whole(x):
    for _ in qd.range(8):
        x += 1


def to_float(x):
    return float(x)


def as_list_index(x):
    return [1, 2][x]


def length_of_scalar(x):
    return len(qd.zeros(()))


def numpy_function(x):
    return np.sin(x)


def lax_function(x):
    x[0] = 1
    return lax.sin(x)


def vmap_over_a_buffer(x):
    x[0] = 1
    return jax.vmap(lambda v: v.at[()].add(2))(x)


def grad_of_a_buffer(x):
    x[0] = 1
    return jax.grad(lambda v: jnp.sum(v.at[0].set(2)[...]))(x)


def copy_in_loop(x):
    for _ in qd.range(8):
        qd.copy(x)


def negative_shape(x):
    qd.zeros(-1)


def no_dtype(x):
    qd.zeros(3, "nothing")


def vector_fill(x):
    qd.full(3, jnp.ones(3))


def local_of_tree(x):
    for _ in qd.range(8):
        qd.local({"a": 1})


def local_wrong_dtype(x):
    for _ in qd.range(8):
        qd.local(0.5, jnp.int32)


def cell_of_the_wrong_thread(x):
    for _ in qd.while_(lambda: x[0] < 3):
        c = qd.local(0.0)
        for i in qd.range(8):
            c += x[i]


def return_a_cell(x):
    for i in qd.range(8):
        c = qd.local(x[i])
    return c


def atomic_on_a_value(x):
    for i in qd.range(8):
        qd.atomic_add(x[i], 0, 1)


def atomic_or_on_float(x):
    for i in qd.range(8):
        qd.atomic_or(x, i, 1)


def atomic_add_on_bool(x):
    b = qd.zeros(8, bool)
    for i in qd.range(8):
        qd.atomic_add(b, i, True)


CASES = [
    (out_of_bounds_negative, TraceIndexError, (M,), """
index -5 is out of bounds for axis 0 of shape (4, 3)
  at FILE:1 in out_of_bounds_negative
      m[-5, 0] = 1
help: write one from -4 to 3
"""),
    (two_dots, TraceIndexError, (M,), """
an index may hold one `...`
  at FILE:2 in two_dots
      m[..., i, ...] = 1
"""),
    (vector_index, TraceTypeError, (M, K,), """
the index of axis 0 must be a scalar, got shape (4,)
  at FILE:2 in vector_index
      qd.atomic_add(m, (k, i), 1)
help: index with one element of it at a time, `x[k[j]]`, in a loop
"""),
    (no_step, TraceTypeError, (M,), """
the slice of axis 1 needs a step other than 0
  at FILE:2 in no_step
      m[i] = m[i, ::0]
help: leave it out for 1
"""),
    (wrong_shape, TraceTypeError, (M,), """
a store needs a value of shape (3,), got (2,)
  at FILE:2 in wrong_shape
      m[i] = jnp.ones(2)
help: store into as many elements as there are values, `b[i, :] = v`, or one of them, `b[i] = v[k]`
"""),
    (too_large_number, TraceTypeError, (K,), """
a store: 300 does not fit into int8
  at FILE:2 in too_large_number
      small[0] = 300
"""),
    (store_whole_large, TraceTypeError, (BIG, X,), """
inside a loop at most 256 elements may be used as one value, this buffer has 5000 (shape (5000,))
  at FILE:2 in store_whole_large
      x[i] = jnp.sum(b)
help: index it: `x[i]`, or use the whole array outside of the loop
"""),
    (change_whole, TraceValueError, (X,), """
a whole buffer cannot be changed inside a loop
  at FILE:2 in change_whole
      x += 1
help: change one element: `x[i] += v`
"""),
    (to_float, TraceTypeError, (X,), """
float() needs one concrete number, got a buffer of shape (8,)
  at FILE:1 in to_float
      return float(x)
help: use an element of it: `x[i].astype(jnp.float32)`
"""),
    (as_list_index, TraceTypeError, (X,), """
int() needs one concrete number, got a buffer of shape (8,)
  at FILE:1 in as_list_index
      return [1, 2][x]
help: use an element of it: `x[i]`
"""),
    (length_of_scalar, TraceTypeError, (X,), """
len() needs at least one axis, got a buffer of shape ()
  at FILE:1 in length_of_scalar
      return len(qd.zeros(()))
"""),
    (numpy_function, TraceTypeError, (X,), """
`np.sin` needs a static value, got one that is being traced
  at FILE:1 in numpy_function
      return np.sin(x)
help: write `jnp.sin(x)`
"""),
    (lax_function, TraceTypeError, (X,), """
jax.lax functions and transformations need values, got a buffer or a cell
  at FILE:2 in lax_function
      return lax.sin(x)
help: load from it: `x[i]`, `x[...]` or `c.value`
"""),
    (vmap_over_a_buffer, UnsupportedError, (X,), """
jax.vmap needs values, got a buffer
  at FILE:2 in <lambda>
      return jax.vmap(lambda v: v.at[()].add(2))(x)
help: give it the content: `jax.vmap(f)(x[...])`
"""),
    (grad_of_a_buffer, UnsupportedError, (X,), """
jax.grad needs values, got a buffer
  at FILE:2 in <lambda>
      return jax.grad(lambda v: jnp.sum(v.at[0].set(2)[...]))(x)
help: give it the content: `jax.grad(f)(x[...])`
"""),
    (copy_in_loop, TraceValueError, (X,), """
qd.copy makes a buffer, which needs to be done outside of loops and conditions
  at FILE:2 in copy_in_loop
      qd.copy(x)
help: move it in front of the loop; for memory of one iteration use qd.local(jnp.zeros(n))
"""),
    (negative_shape, TraceValueError, (X,), """
qd.zeros needs a shape without negative lengths, got (-1,)
  at FILE:1 in negative_shape
      qd.zeros(-1)
"""),
    (no_dtype, TraceTypeError, (X,), """
qd.zeros needs a dtype, got 'nothing'
  at FILE:1 in no_dtype
      qd.zeros(3, "nothing")
"""),
    (vector_fill, TraceTypeError, (X,), """
the fill value of qd.full needs a value of shape (), got (3,)
  at FILE:1 in vector_fill
      qd.full(3, jnp.ones(3))
"""),
    (local_of_tree, TraceTypeError, (X,), """
qd.local needs a number or an array, got dict
  at FILE:2 in local_of_tree
      qd.local({"a": 1})
help: store the parts of a structure one by one
"""),
    (local_wrong_dtype, TraceTypeError, (X,), """
the initial value of qd.local of float32 into int32 would lose information
  at FILE:2 in local_wrong_dtype
      qd.local(0.5, jnp.int32)
help: convert it: `.astype(jnp.int32)`, or make the target with dtype=float32
"""),
    (cell_of_the_wrong_thread, TraceValueError, (X,), """
a qd.local made outside of a parallel qd.range cannot be used in it
  at FILE:4 in cell_of_the_wrong_thread
      c += x[i]
note: the qd.range is at FILE:3 in cell_of_the_wrong_thread
note: the cell is made at FILE:2 in cell_of_the_wrong_thread
help: make it inside the loop, use a buffer, or run the loop in one thread: `qd.range(n, serial=True)`
"""),
    (return_a_cell, TraceValueError, (X,), """
a qd.local cannot be returned, it is gone with its iteration
  at FILE:0 in return_a_cell
      def return_a_cell(x):
help: store its value into a buffer
"""),
    (atomic_on_a_value, TraceTypeError, (X,), """
qd.atomic_add needs a buffer, got a traced value
  at FILE:2 in atomic_on_a_value
      qd.atomic_add(x[i], 0, 1)
help: array arguments of the qd.jit function and qd.zeros(...) are buffers; a loaded value is not
"""),
    (atomic_or_on_float, TraceTypeError, (X,), """
qd.atomic_or needs a buffer of integers or bool, got float32
  at FILE:2 in atomic_or_on_float
      qd.atomic_or(x, i, 1)
"""),
    (atomic_add_on_bool, TraceTypeError, (X,), """
qd.atomic_add needs a buffer of numbers, got bool
  at FILE:3 in atomic_add_on_bool
      qd.atomic_add(b, i, True)
"""),
]  # fmt: skip


@pytest.mark.parametrize(("function", "kind", "args", "expected"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_refused(refusal, function, kind, args, expected) -> None:
    assert refusal(kind, function, *args) == expected.strip("\n")
