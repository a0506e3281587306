# ruff: noqa: E501
"""Bad loops, and Python on traced values: the whole text of each error, and that the next call works."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api.messages import good, text_of

X = np.ones(4, np.float32)
M = np.ones((4, 3), np.float32)


def float_bound(x):
    for i in qd.range(x.shape[0] / 2):
        x[i] = 1.0
    return x


def traced_float_bound(x):
    for i in qd.range(x[0]):
        x[i] = 1.0
    return x


def array_bound(x):
    for i in qd.range(jnp.arange(3)):
        x[i] = 1.0
    return x


def no_bound(x):
    for i in qd.range():
        x[i] = 1.0
    return x


def zero_step(x):
    for i in qd.range(0, 4, 0):
        x[i] = 1.0
    return x


def large_bound(x):
    for i in qd.range(2**40):
        x[i] = 1.0
    return x


def unknown_primitive(x):
    for i in qd.range(4):
        x[i] = jax.lax.rng_uniform(x[i], 1.0, ())
    return x


def callback(x):
    for i in qd.range(4):
        x[i] = jax.pure_callback(abs, jax.ShapeDtypeStruct((), jnp.float32), x[i])
    return x


def python_if(x):
    for i in qd.range(4):
        if x[i] > 0:
            x[i] = 1.0
    return x


def python_while(x):
    while x[0] > 0:
        x[0] -= 1
    return x


def python_float(x):
    for i in qd.range(4):
        x[i] = float(x[i])
    return x


def numpy_function(x):
    for i in qd.range(4):
        x[i] = np.sin(x[i])
    return x


def carried(x):
    s = 0.0
    for i in qd.range(4):
        s = s + x[i]
    return s


def used_after_the_loop(x):
    for i in qd.range(4):
        y = x[i]
    x[0] = y
    return x


def returned_from_the_loop(x):
    for i in qd.range(4):
        y = x[i]
    return y


def breaks(x):
    for i in qd.range(4):
        x[i] = 1.0
        break
    return x


def returns(x):
    for i in qd.range(4):
        return x[i]


def continues(x):
    for i in qd.range(4):
        with qd.when(x[i] > 0):
            continue
        x[i] = 1.0
    return x


def enumerates(x):
    for k, i in enumerate(qd.range(4)):
        x[i] = k
    return x


def cell_between_loops(x):
    c = qd.local(0.0)
    for i in qd.range(4):
        c += x[i]
    return c


def buffer_in_a_loop(x):
    for i in qd.range(4):
        y = qd.zeros(3)
        x[i] = y[0]
    return x


def break_of_threads(x):
    for i in qd.range(4):
        qd.break_if(x[i] > 0)
    return x


def lone_otherwise(x):
    for i in qd.range(4):
        with qd.otherwise():
            x[i] = 1.0
    return x


def number_as_condition(x):
    for i in qd.range(4):
        with qd.when(x[i]):
            x[i] = 1.0
    return x


def value_as_while(x):
    for _ in qd.while_(x[0] > 0):
        x[0] -= 1
    return x


def returns_text(x):
    return {"x": x, "name": "abc"}


def gradient_of_a_buffer(x):
    return jax.grad(lambda v: jnp.sum(v.at[0].set(2.0)[...]))(x)


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


TEXTS: dict[Any, tuple[type[qd.QdError], str]] = {
    float_bound: (
        qd.TraceTypeError,
        """qd.range needs integer bounds, got stop of float
  at FILE:1 in float_bound
      for i in qd.range(x.shape[0] / 2):
help: convert it: `.astype(jnp.int32)`, or use // in place of /""",
    ),
    traced_float_bound: (
        qd.TraceTypeError,
        """qd.range needs integer bounds, got stop of float32
  at FILE:1 in traced_float_bound
      for i in qd.range(x[0]):
help: convert it: `.astype(jnp.int32)`, or use // in place of /""",
    ),
    array_bound: (
        qd.TraceTypeError,
        """qd.range needs scalar bounds, got stop of shape (3,)
  at FILE:1 in array_bound
      for i in qd.range(jnp.arange(3)):
help: use qd.ndrange for several indices, or `x.shape[0]` for the length of an array""",
    ),
    no_bound: (
        qd.TraceTypeError,
        """qd.range needs 1 to 3 bounds, got 0
  at FILE:1 in no_bound
      for i in qd.range():
help: write qd.range(stop), qd.range(start, stop) or qd.range(start, stop, step)""",
    ),
    zero_step: (
        qd.TraceValueError,
        """qd.range needs a step that is not zero
  at FILE:1 in zero_step
      for i in qd.range(0, 4, 0):
help: leave it out to count by 1, or write -1""",
    ),
    large_bound: (
        qd.TraceValueError,
        """qd.range needs bounds that fit into int32, got 1099511627776
  at FILE:1 in large_bound
      for i in qd.range(2**40):
help: turn on 64-bit integers: jax.config.update('jax_enable_x64', True)""",
    ),
    unknown_primitive: (
        qd.UnsupportedError,
        """the JAX primitive `rng_uniform` has no import rule
  at FILE:2 in unknown_primitive
      x[i] = jax.lax.rng_uniform(x[i], 1.0, ())
help: compute it outside of the loop, or teach it: qd.def_import_rule('rng_uniform', jnp_function)""",
    ),
    callback: (
        qd.UnsupportedError,
        """`pure_callback` calls Python, which a loop body cannot do
  at FILE:2 in callback
      x[i] = jax.pure_callback(abs, jax.ShapeDtypeStruct((), jnp.float32), x[i])
help: call it outside of the loop, on whole arrays""",
    ),
    python_if: (
        qd.TraceTypeError,
        """`if` needs a static value, got one that is being traced
  at FILE:2 in python_if
      if x[i] > 0:
help: write `with qd.when(x[i] > 0):`, or `jnp.where(x[i] > 0, a, b)` for a value""",
    ),
    python_while: (
        qd.TraceTypeError,
        """`while` needs a static value, got one that is being traced
  at FILE:1 in python_while
      while x[0] > 0:
help: write `for _ in qd.while_(lambda: x[0] > 0):`, with what changes in a qd.local or a buffer; or lax.while_loop""",
    ),
    python_float: (
        qd.TraceTypeError,
        """`float` needs a static value, got one that is being traced
  at FILE:2 in python_float
      x[i] = float(x[i])
help: write `x[i].astype(float)`""",
    ),
    numpy_function: (
        qd.TraceTypeError,
        """`np.sin` needs a static value, got one that is being traced
  at FILE:2 in numpy_function
      x[i] = np.sin(x[i])
help: write `jnp.sin(x[i])`""",
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
    used_after_the_loop: (
        qd.TraceValueError,
        """a value made inside the qd.range is used outside of it
  at FILE:3 in used_after_the_loop
      x[0] = y
note: the qd.range is at FILE:1 in used_after_the_loop
note: made by `qd.load` at FILE:2 in used_after_the_loop
note: used by `qd.store`
help: store it in a buffer, or in a qd.local made before the loop or condition""",
    ),
    returned_from_the_loop: (
        qd.TraceValueError,
        """a value made inside the qd.range is returned from the function
  at FILE:2 in returned_from_the_loop
      y = x[i]
note: the qd.range is at FILE:1 in returned_from_the_loop
note: made by `qd.load` at FILE:2 in returned_from_the_loop
help: store it in a buffer, or in a qd.local made before the loop or condition""",
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
    continues: (
        qd.TraceValueError,
        """a `continue` under qd.when would hold whatever the condition is
  at FILE:3 in continues
      continue
note: the qd.when is at FILE:2 in continues
note: the code after it would never be traced
help: use qd.continue_if(condition)""",
    ),
    enumerates: (
        qd.TraceValueError,
        """a qd.range needs to stand in a `for` statement of its own, not in enumerate, zip, list or a comprehension
  at FILE:1 in enumerates
      for k, i in enumerate(qd.range(4)):
help: write `for i in qd.range(...):`; the body is traced once, and i is the index of every iteration""",
    ),
    cell_between_loops: (
        qd.TraceValueError,
        """a qd.local belongs to one iteration, it needs to be made inside a loop
  at FILE:1 in cell_between_loops
      c = qd.local(0.0)
help: outside of loops use a buffer: `s = qd.zeros(())`, then `s[()] += v` in the loop""",
    ),
    buffer_in_a_loop: (
        qd.TraceValueError,
        """qd.zeros makes a buffer, which needs to be done outside of loops and conditions
  at FILE:2 in buffer_in_a_loop
      y = qd.zeros(3)
help: move it in front of the loop; for memory of one iteration use qd.local(jnp.zeros(n))""",
    ),
    break_of_threads: (
        qd.TraceValueError,
        """qd.break_if cannot leave an outermost qd.range, whose iterations run in parallel
  at FILE:2 in break_of_threads
      qd.break_if(x[i] > 0)
note: the qd.range is at FILE:1 in break_of_threads
help: put the rest of the body under `with qd.when(condition):`, or run the loop in one thread: `qd.range(n, serial=True)`""",
    ),
    lone_otherwise: (
        qd.TraceValueError,
        """qd.otherwise needs to stand directly after a qd.when
  at FILE:2 in lone_otherwise
      with qd.otherwise():
help: move it behind the qd.when, with no loop or array operation between them""",
    ),
    number_as_condition: (
        qd.TraceTypeError,
        """qd.when needs a scalar bool, got float32 of shape ()
  at FILE:2 in number_as_condition
      with qd.when(x[i]):
help: compare it with something: `x[i] > 0`""",
    ),
    value_as_while: (
        qd.TraceTypeError,
        """qd.while_ needs a function of no arguments, got a traced value
  at FILE:1 in value_as_while
      for _ in qd.while_(x[0] > 0):
help: write `qd.while_(lambda: c.value > 0)`: the condition is evaluated anew before each iteration""",
    ),
    returns_text: (
        qd.TraceTypeError,
        """a qd.jit function needs to return arrays, numbers or pytrees of them, got str
  at FILE:0 in returns_text
      def returns_text(x):
help: return the parts that are arrays""",
    ),
    gradient_of_a_buffer: (
        qd.UnsupportedError,
        """jax.grad needs values, got a buffer
  at FILE:1 in <lambda>
      return jax.grad(lambda v: jnp.sum(v.at[0].set(2.0)[...]))(x)
help: give it the content: `jax.grad(f)(x[...])`""",
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
