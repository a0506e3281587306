# ruff: noqa: E501
"""Programs that are refused, called as users call them: the whole text of each error, and that the next call works.

Other texts are in `tests/mistakes`; what tracing alone refuses is in `tests/trace/test_refusals_*.py`, what import does
in `tests/importer/test_refusals.py`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api.messages import good, text_of

X = np.ones(4, np.float32)


def traced_float_bound(x):
    for i in qd.range(x[0]):
        x[i] = 1.0
    return x


def unknown_primitive(x):
    for i in qd.range(4):
        x[i] = jax.lax.rng_uniform(x[i], 1.0, ())
    return x


def carried(x):
    s = 0.0
    for i in qd.range(4):
        s = s + x[i]
    return s


def breaks(x):
    for i in qd.range(4):
        x[i] = 1.0
        break
    return x


def returns(x):
    for i in qd.range(4):
        return x[i]


def loop_in_lax(x):
    def body(_, c):
        for i in qd.range(4):
            x[i] += c
        return c

    jax.lax.fori_loop(0, 3, body, 1.0)
    return x


@qd.jit
def storing(x, i):
    x[i] = 1.0
    return x


def stores_through_a_call(x):
    for i in qd.range(4):
        storing(x, i)
    return x


def large_value(x):
    for i in qd.range(4):
        x[i] = jnp.sort(jnp.arange(20_000_000.0) * i)[i]
    return x


def foreign_dtype(x):
    y = x[...].astype(jnp.float8_e4m3fn)
    for i in qd.range(4):
        x[i] = y[i].astype(jnp.float32)
    return x


TEXTS: dict[Any, tuple[type[qd.QdError], str]] = {
    traced_float_bound: (
        qd.TraceTypeError,
        """qd.range needs integer bounds, got stop of float32
  at FILE:1 in traced_float_bound
      for i in qd.range(x[0]):
help: convert it: `.astype(jnp.int32)`, or use // in place of /""",
    ),
    unknown_primitive: (
        qd.UnsupportedError,
        """the JAX primitive `rng_uniform` has no import rule
  at FILE:2 in unknown_primitive
      x[i] = jax.lax.rng_uniform(x[i], 1.0, ())
help: compute it outside of the loop, or teach it: qd.def_import_rule('rng_uniform', jnp_function)""",
    ),
    carried: (
        qd.TraceValueError,
        """`s` would carry a value from one iteration of the qd.range to the next
  at FILE:3 in carried
      s = s + x[i]
note: the qd.range is at FILE:2 in carried
note: its body is traced once for all iterations
help: iterations run in parallel: to sum over them, accumulate into a buffer made before the loop: `s = qd.zeros(())` and `s[()] += v`; what each one makes goes into its own element, `b[i] = v`, and a random key is made from the index, `jax.random.fold_in(key, i)`""",
    ),
    breaks: (
        qd.TraceValueError,
        """the body of a qd.range must run to its end, it was left early
  at FILE:3 in breaks
      break
note: the qd.range is at FILE:1 in breaks
help: a traced body runs once for all iterations: leave a loop with qd.break_if(condition), or put the rest of the body under `with qd.when(condition):`""",
    ),
    returns: (
        qd.TraceValueError,
        """the body of a qd.range must run to its end, it was left early
  at FILE:2 in returns
      return x[i]
note: the qd.range is at FILE:1 in returns
help: a traced body runs once for all iterations: leave a loop with qd.break_if(condition), or put the rest of the body under `with qd.when(condition):`""",
    ),
    loop_in_lax: (
        qd.UnsupportedError,
        """needs qd.range outside of `scan`, got it inside a lax loop or branch between tasks
  at FILE:6 in loop_in_lax
      jax.lax.fori_loop(0, 3, body, 1.0)
help: use a Python loop, qd.while_ or qd.when, or put the lax loop around the qd.jit function""",
    ),
    stores_through_a_call: (
        qd.TraceValueError,
        """a qd.jit function called inside a loop cannot store into its arguments: they are values, not the caller's memory
  at FILE:-4 in storing
      x[i] = 1.0
help: return the new value, or remove @qd.jit from the function: a plain one is given the buffers""",
    ),
    large_value: (
        qd.UnsupportedError,
        """needs at most 67108864 bytes of arrays private to an iteration at a time, got 160000000, the largest of them cell[f32,20000000]
  at FILE:2 in large_value
      x[i] = jnp.sort(jnp.arange(20_000_000.0) * i)[i]
help: keep the array in a buffer outside of the loop (qd.empty) and index it with the loop index""",
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
    for _ in range(2):  # the second call must not find anything that the first one left
        with pytest.raises(kind) as caught:
            qd.jit(function)(X)
        assert text_of(caught.value, function) == text
        np.testing.assert_array_equal(qd.jit(good)(X), X + 1)
