"""Loops and conditions: refusals that `tests/mistakes` does not have, with their whole text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import TraceTypeError, TraceValueError

K = np.arange(4, dtype=np.int32)
M = np.ones((4, 3), np.float32)
X = np.ones(8, np.float32)


def vector_bound(k):
    for i in qd.range(k[...]):
        k[i] = 1


def bool_bound(x):
    for i in qd.range(x[0] > 0):
        x[i] = 1


def unsigned_bound(x):
    for i in qd.range(jnp.uint32(x.shape[0])):
        x[i] = 1


def wide_bound(x):
    for i in qd.range(2**31 + 5):
        x[i] = 1


def wide_product(x):
    for i, _ in qd.ndrange(2**16, 2**16):
        x[i] = 1


def empty_ndrange(x):
    for _ in qd.ndrange():
        x[0] = 1


def triple_in_ndrange(x):
    for i, _ in qd.ndrange((0, 3, 1), 4):
        x[i] = 1


def wrong_hint(x):
    for i in qd.range(8, block_dim=0):
        x[i] = 1


def wrong_refill(x):
    for i in qd.ndrange(8, refill=1):
        x[i] = 0.0
    return x


def wrong_name(x):
    for i in qd.range(8, name="two words"):
        x[i] = 1


def while_float(x):
    for _ in qd.while_(lambda: x[0]):
        x[0] = 1


def otherwise_twice(x):
    for i in qd.range(8):
        with qd.when(x[i] > 0):
            x[i] = 1
        with qd.otherwise():
            x[i] = 3
        with qd.otherwise():
            x[i] = 4


def when_entered_twice(x):
    for i in qd.range(8):
        w = qd.when(x[i] > 0)
        with w:
            x[i] = 1
        with w:
            x[i] = 2


def break_outside(x):
    qd.break_if(True)


def continue_outside(x):
    with qd.when(x[0] > 0):
        qd.continue_if(True)


def break_in_lax(x):
    def step(k, c):
        qd.break_if(c > 3)
        return c + 1.0

    for i in qd.range(8):
        for _ in qd.range(3):
            x[i] = lax.fori_loop(0, 3, step, x[i])


def leaks(x):
    for i in qd.range(8):
        v = x[i] * 2
    x[0] = v


HELD = []


def leaks_from_when(x):
    HELD.clear()
    for i in qd.range(8):
        with qd.when(i > 2):
            HELD.append(x[i] + 1)
        x[i] = HELD[0]


def leaks_cell(x):
    HELD.clear()
    for i in qd.range(8):
        with qd.when(i > 3):
            HELD.append(qd.local(0.0))
        x[i] = HELD[0].value


def swaps(x):
    y = qd.zeros(8)
    x[0] = 1
    return lax.fori_loop(0, 3, lambda k, c: (c[1], c[0]), (x, y))[0]


def scans_over(x):
    def step(c, b):
        return c + b[...], None

    x[0] = 1
    return lax.scan(step, 0.0, x)[0]


def chooses(x):
    y = qd.zeros(8)
    x[0] = 1
    z = lax.cond(x[0] > 0, lambda a, b: a, lambda a, b: b, x, y)
    z[0] = 1
    return z


def values_of_a_tree(x):
    for i in qd.range(8):
        x[i] = jax.tree.map(lambda a: a * 2, x)[0]


CASES = [
    (vector_bound, TraceTypeError, (K,), """
qd.range needs scalar bounds, got stop of shape (4,)
  at FILE:1 in vector_bound
      for i in qd.range(k[...]):
help: use qd.ndrange for several indices, or `x.shape[0]` for the length of an array
"""),
    (bool_bound, TraceTypeError, (X,), """
qd.range needs integer bounds, got stop of bool
  at FILE:1 in bool_bound
      for i in qd.range(x[0] > 0):
help: convert it: `.astype(jnp.int32)`, or use // in place of /
"""),
    (unsigned_bound, TraceTypeError, (X,), """
qd.range needs signed bounds, got stop of uint32
  at FILE:1 in unsigned_bound
      for i in qd.range(jnp.uint32(x.shape[0])):
help: convert it: `.astype(jnp.int32)`
"""),
    (wide_bound, TraceValueError, (X,), """
qd.range needs bounds that fit into int32, got 2147483653
  at FILE:1 in wide_bound
      for i in qd.range(2**31 + 5):
help: turn on 64-bit integers: jax.config.update('jax_enable_x64', True)
"""),
    (wide_product, TraceValueError, (X,), """
qd.ndrange needs bounds that fit into int32, got 4294967296
  at FILE:1 in wide_product
      for i, _ in qd.ndrange(2**16, 2**16):
help: turn on 64-bit integers: jax.config.update('jax_enable_x64', True)
"""),
    (empty_ndrange, TraceTypeError, (X,), """
qd.ndrange needs at least one length
  at FILE:1 in empty_ndrange
      for _ in qd.ndrange():
help: write qd.ndrange(n, m)
"""),
    (triple_in_ndrange, TraceTypeError, (X,), """
qd.ndrange needs n or (low, high) for each index, got (0, 3, 1)
  at FILE:1 in triple_in_ndrange
      for i, _ in qd.ndrange((0, 3, 1), 4):
help: of a range with a step give the number of its steps, and compute the index: `low + step * k`
"""),
    (wrong_hint, TraceTypeError, (X,), """
qd.range needs block_dim to be a positive integer, got 0
  at FILE:1 in wrong_hint
      for i in qd.range(8, block_dim=0):
"""),
    (wrong_refill, TraceTypeError, (X,), """
qd.ndrange needs refill to be True or False, got 1
  at FILE:1 in wrong_refill
      for i in qd.ndrange(8, refill=1):
"""),
    (wrong_name, TraceTypeError, (X,), """
qd.range needs name to be a word, got 'two words'
  at FILE:1 in wrong_name
      for i in qd.range(8, name="two words"):
"""),
    (while_float, TraceTypeError, (X,), """
qd.while_ needs a scalar bool, got float32 of shape ()
  at FILE:1 in while_float
      for _ in qd.while_(lambda: x[0]):
help: compare it with something: `x[i] > 0`
"""),
    (otherwise_twice, TraceValueError, (X,), """
qd.otherwise needs to stand directly after a qd.when
  at FILE:6 in otherwise_twice
      with qd.otherwise():
help: move it behind the qd.when, with no loop or array operation between them
"""),
    (when_entered_twice, TraceValueError, (X,), """
a qd.when can be entered once
  at FILE:5 in when_entered_twice
      with w:
help: write the call in the with statement
"""),
    (break_outside, TraceValueError, (X,), """
qd.break_if needs to be inside a loop
  at FILE:1 in break_outside
      qd.break_if(True)
"""),
    (continue_outside, TraceValueError, (X,), """
qd.continue_if needs to be inside a loop
  at FILE:2 in continue_outside
      qd.continue_if(True)
"""),
    (break_in_lax, TraceValueError, (X,), """
qd.break_if needs its loop in the same function, not outside of a lax loop or condition
  at FILE:2 in step
      qd.break_if(c > 3)
help: write the loop with qd.range or qd.while_, or use lax.while_loop with a flag in its carry
"""),
    (leaks, TraceValueError, (X,), """
a value made inside the qd.range is used outside of it
  at FILE:3 in leaks
      x[0] = v
note: the qd.range is at FILE:1 in leaks
note: made by `mul` at FILE:2 in leaks
note: used by `qd.store`
help: store it in a buffer, or in a qd.local made before the loop or condition
"""),
    (leaks_from_when, TraceValueError, (X,), """
a value made inside the qd.when is used outside of it
  at FILE:5 in leaks_from_when
      x[i] = HELD[0]
note: the qd.when is at FILE:3 in leaks_from_when
note: made by `add` at FILE:4 in leaks_from_when
note: used by `qd.store`
help: store it in a buffer, or in a qd.local made before the loop or condition
"""),
    (leaks_cell, TraceValueError, (X,), """
a qd.local made inside the qd.when is used outside of it
  at FILE:5 in leaks_cell
      x[i] = HELD[0].value
note: the qd.when is at FILE:3 in leaks_cell
note: made by `qd.local` at FILE:4 in leaks_cell
note: used by `qd.lget`
help: store it in a buffer, or in a qd.local made before the loop or condition
"""),
    (swaps, TraceValueError, (X,), """
the carry of `scan` holds a buffer that the body exchanges for another one
  at FILE:3 in swaps
      return lax.fori_loop(0, 3, lambda k, c: (c[1], c[0]), (x, y))[0]
help: give the function of JAX the content, `x[...]`; or pass each buffer through unchanged and copy values between them
"""),
    (scans_over, TraceValueError, (X,), """
a buffer cannot be scanned over
  at FILE:5 in scans_over
      return lax.scan(step, 0.0, x)[0]
help: give the function of JAX the content, `x[...]`; or pass each buffer through unchanged and copy values between them
"""),
    (chooses, TraceValueError, (X,), """
the branches of lax.cond give different buffers
  at FILE:3 in chooses
      z = lax.cond(x[0] > 0, lambda a, b: a, lambda a, b: b, x, y)
help: give the function of JAX the content, `x[...]`; or pass each buffer through unchanged and copy values between them
"""),
    (values_of_a_tree, TraceTypeError, (X,), """
`mul` needs values, got a whole buffer or a qd.local
  at FILE:2 in values_of_a_tree.<locals>.<lambda>
      x[i] = jax.tree.map(lambda a: a * 2, x)[0]
help: give an element, `x[i]`, or what a qd.local holds, `c.value`; or use the whole array outside of the loop
"""),
]  # fmt: skip


@pytest.mark.parametrize(("function", "kind", "args", "expected"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_refused(refusal, function, kind, args, expected) -> None:
    assert refusal(kind, function, *args) == expected.strip("\n")
