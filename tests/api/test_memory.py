"""Memory of a call: what XLA allocates beside the arrays that the program names."""

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd

N = 1 << 20
BYTES = 4 * N


def analysis(f, *args, **settings):
    """XLA's plan of a jitted function."""
    return qd.jit(f, **settings).lower(*args).compile().memory_analysis()


def scaled_sum(x, y):
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] = 2 * x[i] + y[i]
    return out


def in_place(x):
    for i in qd.range(x.shape[0]):
        x[i] = x[i] + 1
    return x


def with_scratch(x):
    t = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        t[i] = x[i] * x[i]
    for i in qd.range(x.shape[0]):
        x[i] = t[(i * 7) % x.shape[0]]
    return x


def test_read_arguments_are_not_copied() -> None:
    plan = analysis(scaled_sum, jnp.zeros(N), jnp.zeros(N))
    assert plan.argument_size_in_bytes == 2 * BYTES
    assert plan.output_size_in_bytes == BYTES
    assert plan.temp_size_in_bytes < 0.1 * BYTES


def test_a_written_argument_costs_its_result_only() -> None:
    plan = analysis(in_place, jnp.zeros(N))
    assert plan.output_size_in_bytes == BYTES
    assert plan.temp_size_in_bytes < 0.1 * BYTES


def test_a_donated_argument_is_the_result() -> None:
    plan = analysis(in_place, jnp.zeros(N), donate_argnums=0)
    assert plan.alias_size_in_bytes == BYTES
    assert plan.temp_size_in_bytes < 0.1 * BYTES


def test_scratch_is_counted_once() -> None:
    named = 3 * BYTES  # x, its result, t
    plan = analysis(with_scratch, jnp.zeros(N))
    peak = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    assert peak <= 1.1 * named
    assert qd.jit(with_scratch).lower(jnp.zeros(N)).memory_analysis() == {
        "arguments": BYTES,
        "results": 0,
        "temporaries": BYTES,
        "stack_per_lane": 0,
        "stacks": 0,
        "kernel_scratch": 0,
    }


def test_a_chain_of_donated_calls_stays_in_one_place() -> None:
    step = qd.jit(in_place, donate_argnums=0)
    x = jnp.zeros(N)
    place = x.unsafe_buffer_pointer()
    for _ in range(3):
        x = step(x)
    assert x.unsafe_buffer_pointer() == place
    np.testing.assert_array_equal(x, np.full(N, 3, np.float32))


def test_a_loop_carries_in_place() -> None:
    run = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, c: qd.jit(in_place)(c), x), donate_argnums=0)
    plan = run.lower(jnp.zeros(N)).compile().memory_analysis()
    assert plan.temp_size_in_bytes < 0.1 * BYTES
