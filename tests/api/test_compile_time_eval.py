"""`jax.ensure_compile_time_eval`, in which JAX runs operations on constants while it traces."""

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.compose import source_key

X = jnp.array([1.0, 2.0, 3.0])


def scaled():
    with jax.ensure_compile_time_eval():
        return qd.vmap(lambda a: a * 2)(X)


def test_a_call_inside_computes_constants() -> None:
    source_key._primitives.cache_clear()  # the first call of a process is inside
    np.testing.assert_array_equal(scaled(), [2.0, 4.0, 6.0])
    np.testing.assert_array_equal(jax.jit(lambda x: x + scaled())(X), [3.0, 6.0, 9.0])


def test_memory_and_loops_inside_of_a_traced_function() -> None:
    @qd.jit
    def sums(x):
        with jax.ensure_compile_time_eval():
            total, out = qd.zeros(()), qd.empty_like(x)
            for i in qd.range(x.shape[0]):
                cell = qd.local(0.0)
                for _ in qd.range(x[i].astype(int)):
                    cell += 1.0
                out[i] = cell
                total[()] += cell.value
        return out, total

    out, total = sums(X)
    assert (out.tolist(), float(total)) == ([1.0, 2.0, 3.0], 6.0)


def test_tables_that_lanes_and_bodies_make() -> None:
    def weighed(a):
        with jax.ensure_compile_time_eval():
            table = jnp.cumsum(jnp.ones(3))
            size = int(table[-1])
        return sum(a * table[k] for k in range(size))

    np.testing.assert_array_equal(qd.vmap(weighed)(X), 6 * X)
