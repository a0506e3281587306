# ruff: noqa: E501
"""Bad indices, stores, values and shapes: the whole text of each error, and that the next call works."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api.messages import good, text_of

X = np.ones(4, np.float32)
M = np.ones((4, 3), np.float32)


def too_many_indices(x):
    for i in qd.range(4):
        x[i, 0] = 1.0
    return x


def string_stored(x):
    for i in qd.range(4):
        x[i] = "a"
    return x


def complex_stored(x):
    for i in qd.range(4):
        x[i] = 1j
    return x


def float_into_int(x):
    n = qd.zeros((4,), jnp.int32)
    for i in qd.range(4):
        n[i] = x[i]
    return n


def float_index(x):
    for i in qd.range(4):
        x[i * 0.5] = 1.0
    return x


def out_of_bounds(x):
    for i in qd.range(4):
        x[4] = i
    return x


def out_of_bounds_between_loops(x):
    x[-5] = 1.0
    return x


def out_of_bounds_row(x):
    return jnp.sum(x[7])


def large_value(x):
    for i in qd.range(4):
        x[i] = jnp.sort(jnp.arange(20_000_000.0) * i)[i]
    return x


def whole_large_buffer(x):
    big = qd.zeros(1000)
    for i in qd.range(4):
        x[i] = big.sum()
    return x


def store_into_a_value(x):
    y = jnp.zeros(4)
    for i in qd.range(4):
        y[i] = x[i]
    return x


def store_into_a_loaded_row(m):
    for i in qd.range(4):
        row = m[i]
        row[0] = 1.0
    return m


def mismatched_where(x):
    for i in qd.range(4):
        x[i] = jnp.where(x[0:3] > 0, x[0:2], 0.0)[0]
    return x


def vector_into_scalar(x):
    for i in qd.range(4):
        x[i] = x[0:3]
    return x


def wrong_whole_store(x):
    x[...] = jnp.zeros(3)
    return x


def mask_index(x):
    for i in qd.range(4):
        x[x > 0] = i
    return x


def mask_between_loops(x):
    x[x > 0] = 1.0
    return x


def traced_slice(x):
    for i in qd.range(3):
        x[i] = jnp.sum(x[i : i + 2])
    return x


def float_bits(x):
    for i in qd.range(4):
        qd.atomic_and(x, i, 1)
    return x


def traced_shape(x):
    return qd.zeros((x[0],))


def negative_shape(x):
    return qd.zeros(-3)


def no_dtype(x):
    return qd.zeros(3, "float33")


def foreign_dtype(x):
    y = x[...].astype(jnp.float8_e4m3fn)
    for i in qd.range(4):
        x[i] = y[i].astype(jnp.float32)
    return x


TEXTS: dict[Any, tuple[type[qd.QdError], str]] = {
    too_many_indices: (
        qd.TraceIndexError,
        """2 indices are too many for shape (4,)
  at FILE:2 in too_many_indices
      x[i, 0] = 1.0
help: give 1: `b[i]`""",
    ),
    string_stored: (
        qd.TraceTypeError,
        """a store needs a number or an array, got str
  at FILE:2 in string_stored
      x[i] = "a"
help: store the parts of a structure one by one""",
    ),
    complex_stored: (
        qd.TraceTypeError,
        """a store of complex64 into float32 would lose information
  at FILE:2 in complex_stored
      x[i] = 1j
help: convert it: `.astype(jnp.float32)`, or make the target with dtype=complex64""",
    ),
    float_into_int: (
        qd.TraceTypeError,
        """a store of float32 into int32 would lose information
  at FILE:3 in float_into_int
      n[i] = x[i]
help: convert it: `.astype(jnp.int32)`, or make the target with dtype=float32""",
    ),
    float_index: (
        qd.TraceTypeError,
        """the index of axis 0 must be an integer, got float32
  at FILE:2 in float_index
      x[i * 0.5] = 1.0
help: convert it: `.astype(jnp.int32)`""",
    ),
    out_of_bounds: (
        qd.TraceIndexError,
        """index 4 is out of bounds for axis 0 of shape (4,)
  at FILE:2 in out_of_bounds
      x[4] = i
help: write one from -4 to 3""",
    ),
    out_of_bounds_between_loops: (
        qd.TraceIndexError,
        """index -5 is out of bounds for axis 0 of shape (4,)
  at FILE:1 in out_of_bounds_between_loops
      x[-5] = 1.0
help: write one from -4 to 3""",
    ),
    out_of_bounds_row: (
        qd.TraceIndexError,
        """index 7 is out of bounds for axis 0 of shape (4, 3)
  at FILE:1 in out_of_bounds_row
      return jnp.sum(x[7])
help: write one from -4 to 3""",
    ),
    large_value: (
        qd.UnsupportedError,
        """needs at most 67108864 bytes of arrays private to an iteration at a time, got 160000000, the largest of them cell[f32,20000000]
  at FILE:2 in large_value
      x[i] = jnp.sort(jnp.arange(20_000_000.0) * i)[i]
help: keep the array in a buffer outside of the loop (qd.empty) and index it with the loop index""",
    ),
    whole_large_buffer: (
        qd.TraceTypeError,
        """inside a loop at most 256 elements may be used as one value, this buffer has 1000 (shape (1000,))
  at FILE:3 in whole_large_buffer
      x[i] = big.sum()
help: index it: `x[i]`, or use the whole array outside of the loop""",
    ),
    store_into_a_value: (
        qd.TraceTypeError,
        """a store needs a buffer or a cell, got a value
  at FILE:3 in store_into_a_value
      y[i] = x[i]
help: make a buffer of it in front of the loops, `y = qd.copy(y)`, or memory of one iteration, `y = qd.local(y)`; or make a new value: `y = y.at[i].set(v)`""",
    ),
    store_into_a_loaded_row: (
        qd.TraceTypeError,
        """a store needs a buffer or a cell, got a value
  at FILE:3 in store_into_a_loaded_row
      row[0] = 1.0
help: make a buffer of it in front of the loops, `row = qd.copy(row)`, or memory of one iteration, `row = qd.local(row)`; or make a new value: `row = row.at[0].set(v)`""",
    ),
    mismatched_where: (
        qd.TraceValueError,
        """Incompatible shapes for broadcasting: shapes=[(3,), (2,), ()]
  at FILE:2 in mismatched_where
      x[i] = jnp.where(x[0:3] > 0, x[0:2], 0.0)[0]""",
    ),
    vector_into_scalar: (
        qd.TraceTypeError,
        """a store needs a value of shape (), got (3,)
  at FILE:2 in vector_into_scalar
      x[i] = x[0:3]
help: store into as many elements as there are values, `b[i, :] = v`, or one of them, `b[i] = v[k]`""",
    ),
    wrong_whole_store: (
        qd.TraceTypeError,
        """a store needs a value of shape (4,), got (3,)
  at FILE:1 in wrong_whole_store
      x[...] = jnp.zeros(3)
help: store into as many elements as there are values, `b[i, :] = v`, or one of them, `b[i] = v[k]`""",
    ),
    mask_index: (
        qd.TraceTypeError,
        """the index of axis 0 must be a scalar, got shape (4,)
  at FILE:2 in mask_index
      x[x > 0] = i
help: index with its elements: `x[k[0], k[1]]`, or loop over them""",
    ),
    mask_between_loops: (
        qd.TraceTypeError,
        """an index of bools needs a static mask, got one that is being traced
  at FILE:1 in mask_between_loops
      x[x > 0] = 1.0
help: use `with qd.when(mask[i]):` in a loop, or jnp.where(mask, a, b)""",
    ),
    traced_slice: (
        qd.TraceTypeError,
        """the slice of axis 0 needs static integers
  at FILE:2 in traced_slice
      x[i] = jnp.sum(x[i : i + 2])
help: with a traced start, load the elements one by one: `jnp.stack([x[i + k] for k in range(m)])`""",
    ),
    float_bits: (
        qd.TraceTypeError,
        """qd.atomic_and needs a buffer of integers or bool, got float32
  at FILE:2 in float_bits
      qd.atomic_and(x, i, 1)""",
    ),
    traced_shape: (
        qd.TraceTypeError,
        """qd.zeros needs a shape of static integers, got a traced value
  at FILE:1 in traced_shape
      return qd.zeros((x[0],))
help: shapes come from `x.shape` or static arguments, not from traced values""",
    ),
    negative_shape: (
        qd.TraceValueError,
        """qd.zeros needs a shape without negative lengths, got (-3,)
  at FILE:1 in negative_shape
      return qd.zeros(-3)""",
    ),
    no_dtype: (
        qd.TraceTypeError,
        """qd.zeros needs a dtype, got 'float33'
  at FILE:1 in no_dtype
      return qd.zeros(3, "float33")""",
    ),
    foreign_dtype: (
        qd.TraceTypeError,
        """buffers and loops need one of bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, got float8_e4m3fn
  at FILE:2 in foreign_dtype
      for i in qd.range(4):
help: convert it with .astype outside of the function, or outside of the loop""",
    ),
}


@pytest.mark.parametrize("function", TEXTS, ids=lambda f: f.__name__)
def test_text_and_recovery(function: Any) -> None:
    kind, text = TEXTS[function]
    argument = M if "row" in function.__name__ else X
    for _ in range(2):  # the second call must not find anything that the first one left
        with pytest.raises(kind) as caught:
            qd.jit(function)(argument)
        assert text_of(caught.value, function) == text
        np.testing.assert_array_equal(qd.jit(good)(X), X + 1)
