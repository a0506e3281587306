"""Direct calls of functions that print: they have no effect of JAX, and look at the records themselves."""

import functools
import os
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.compose import record_thread
from tests import fresh

X = jnp.arange(4.0)
LINES = [f"{k} {float(k)}" for k in range(4)]


def doubled(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        jax.debug.print("{} {}", i, x[i])
        out[i] = 2 * x[i]
    return out


double = qd.jit(doubled)


@qd.jit
def only_tells(x):
    for i in qd.range(x.shape[0]):
        jax.debug.print("{} {}", i, x[i])


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def effects_of(f, *args):
    return f._specialised()[0].trace(*args).jaxpr.effects


@pytest.mark.parametrize("f", [double, only_tells])
def test_a_direct_call_has_no_effect_and_prints_before_it_returns(capsys, f):
    assert not effects_of(f, X)
    for _ in range(3):
        f(X)
        assert lines_of(capsys) == LINES
    jax.effects_barrier()
    assert lines_of(capsys) == []


def test_results_are_those_of_the_function():
    assert isinstance(double(X), jax.Array)
    assert only_tells(X) is None
    np.testing.assert_array_equal(double(X), 2 * X)


def test_calls_of_other_compilers_keep_the_effect(capsys):
    assert jax.make_jaxpr(double)(X).effects
    assert jax.eval_shape(double, X).shape == (4,)
    assert lines_of(capsys) == []
    jax.jit(only_tells)(X)
    jax.effects_barrier()
    assert lines_of(capsys) == LINES
    compiled = double.lower(X).compile()
    compiled(X).block_until_ready()
    jax.effects_barrier()
    assert lines_of(capsys) == LINES
    with jax.disable_jit():
        double(X)
    assert lines_of(capsys) == LINES


@pytest.mark.full
def test_a_function_that_calls_another_one(capsys):
    @qd.jit
    def outer(x):
        for i in qd.range(x.shape[0]):
            jax.debug.print("before {}", i)
            x[i] = x[i] + 1
        only_tells(x)
        y = double(x)
        for i in qd.range(x.shape[0]):
            x[i] = y[i]
        return x

    y = outer(X[:2])
    jax.block_until_ready(y)
    jax.effects_barrier()
    np.testing.assert_array_equal(y, [2, 4])
    lines = lines_of(capsys)
    assert lines == ["before 0", "before 1", "0 1.0", "1 2.0", "0 1.0", "1 2.0"]


@pytest.mark.full
def test_segments_in_order_with_prints_of_jax_between(capsys):
    @qd.jit
    def f(x, large):
        for i in qd.range(2):
            jax.debug.print("first {}", x[i])
        total = jnp.sum(x[...])
        if large:
            jax.debug.print("between {}", jnp.sum(jnp.arange(100.0)) + total)
        for i in qd.range(2):
            jax.debug.print("second {}", x[i] + total)
        return x

    f = qd.jit(f._function, static_argnames="large")
    f(X, large=False)
    assert lines_of(capsys) == ["first 0.0", "first 1.0", "second 6.0", "second 7.0"]
    jax.block_until_ready(f(X, large=True))
    jax.effects_barrier()
    assert lines_of(capsys) == ["first 0.0", "first 1.0", "between 4956.0", "second 6.0", "second 7.0"]


def test_donated_arguments_and_static_ones(capsys):
    f = qd.jit(lambda x, n: doubled(x) if n else x, donate_argnums=0, static_argnums=1)
    x = jnp.arange(4.0)
    y = f(x, 1)
    assert x.is_deleted()
    assert lines_of(capsys) == LINES
    np.testing.assert_array_equal(y, 2 * X)
    assert f(y, 0) is not None
    assert lines_of(capsys) == []


@pytest.mark.full
def test_derivatives_and_batches_that_are_not_compiled(capsys):
    loss = lambda x: double(x).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(loss)(X), [2] * 4)
    assert lines_of(capsys) == LINES
    jax.jvp(double, (X,), (X,))
    assert lines_of(capsys) == LINES
    jax.vmap(double)(X.reshape(2, 2))
    assert lines_of(capsys) == ["0 0.0", "1 1.0", "0 2.0", "1 3.0"]
    jax.vmap(jax.grad(loss))(X.reshape(2, 2))
    assert lines_of(capsys) == ["0 0.0", "1 1.0", "0 2.0", "1 3.0"]
    assert jax.hessian(loss)(X).shape == (4, 4)
    assert lines_of(capsys) == LINES


@jax.custom_vjp
def _ruled(x):
    return double(x)


_ruled.defvjp(lambda x: (double(x), x), lambda x, c: (2 * c,))


@pytest.mark.parametrize(
    ("run", "lines"),
    [
        (lambda x: jax.grad(lambda x: jax.checkpoint(double)(x).sum())(x), ["0 0.0", "1 1.0"] * 2),
        (lambda x: jax.grad(lambda x: _ruled(x).sum())(x), ["0 0.0", "1 1.0"]),
        (lambda x: jax.lax.cond(x[0] < 1, double, jnp.sin, x), ["0 0.0", "1 1.0"]),
        (lambda x: jax.lax.map(double, jnp.stack([x, x + 2])), ["0 0.0", "1 1.0", "0 2.0", "1 3.0"]),
        (lambda x: jax.lax.while_loop(lambda c: c[1] < 4, double, x), ["0 0.0", "1 1.0", "0 0.0", "1 2.0"]),
        (lambda x: jax.linearize(double, x)[1](x), ["0 0.0", "1 1.0"]),
        (lambda x: jax.vjp(double, x)[1](x), ["0 0.0", "1 1.0"]),
        (lambda x: jax.jacfwd(double)(x), ["0 0.0", "1 1.0"]),
        (lambda x: jax.vmap(jax.vmap(jax.grad(lambda x: double(x).sum())))(x[None, None]), ["0 0.0", "1 1.0"]),
        (lambda x: jax.core.eval_jaxpr(jax.make_jaxpr(double)(x).jaxpr, [], x), ["0 0.0", "1 1.0"]),
        (lambda x: jax.jit(lambda y: y + double(x))(x), ["0 0.0", "1 1.0"]),
    ],
    ids=["checkpoint", "rule", "cond", "map", "while", "linearize", "vjp", "jacobian", "batches", "jaxpr", "constants"],
)
def test_what_jax_runs_it_in(capsys, run, lines):
    jax.block_until_ready(run(X[:2]))
    jax.effects_barrier()
    assert lines_of(capsys) == lines


def test_an_error_of_a_callback_is_that_of_the_call(capsys):
    @qd.jit
    def f(x):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            jax.debug.callback(functools.partial(_refuse_from, 2), i)
            out[i] = x[i]
        return out

    with pytest.raises(ValueError, match="no 2"):
        f(X)
    jax.effects_barrier()
    assert double(X).tolist() == [0, 2, 4, 6]
    assert lines_of(capsys) == LINES


def _refuse_from(most, i):
    if i >= most:
        raise ValueError(f"no {i}")


@pytest.mark.full
def test_a_callback_may_call_compiled_functions():
    seen = []

    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            jax.debug.callback(lambda v: seen.append(float(double(jnp.array([v, v])).sum())), x[i])

    f(X)
    assert seen == [0, 4, 8, 12]


@pytest.mark.full
def test_a_failed_check_is_told_and_so_are_the_prints_of_other_calls(capsys):
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            qd.check(x[i] < 3, "too large")
            jax.debug.print("{} {}", i, x[i])
        return x

    f(X[:3])
    assert lines_of(capsys) == LINES[:3]
    with pytest.raises(qd.CheckError, match="too large"):
        f(X)
    f(X[:3])
    assert lines_of(capsys)[-3:] == LINES[:3]


def test_threads_print_each_their_own(capsys):
    threads = [threading.Thread(target=lambda k=k: [double(X[:k]) for _ in range(5)]) for k in (2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    lines = lines_of(capsys)
    assert sorted(lines) == sorted([*LINES[:2] * 5, *LINES[:3] * 5])


# -- calls of devices, which nobody waits for --------------------------------------------------------------------------


def test_what_is_shown_later_is_shown_in_order_before_the_barrier_ends():
    seen, goes_on = [], threading.Event()

    def first():
        goes_on.wait()
        seen.append(1)

    record_thread.show_later(first)
    record_thread.show_later(lambda: seen.append(2))
    assert record_thread.waits()
    assert seen == []
    goes_on.set()
    jax.effects_barrier()
    assert seen == [1, 2]
    assert not record_thread.waits()


def test_an_error_that_comes_later_is_that_of_the_next_call():
    record_thread.show_later(lambda: _refuse_from(0, 7))
    jax.effects_barrier()
    with pytest.raises(qd.QdError, match=r"a callback failed: ValueError\('no 7'\)"):
        double(X)
    assert double(X).tolist() == [0, 2, 4, 6]


def test_a_callback_that_waits_for_effects_does_not_wait_for_itself():
    seen = []
    show_later = record_thread.show_later
    show_later(lambda: (jax.effects_barrier(), show_later(lambda: None), jax.effects_barrier()))
    show_later(lambda: seen.append(1))
    jax.effects_barrier()
    assert seen == [1]


def test_records_of_a_device_are_shown_by_the_thread(capsys, monkeypatch):
    monkeypatch.setattr("qdtrace.compose.shown_records.waits", lambda: True)
    monkeypatch.setattr("qdtrace.compose.shown_records.is_here", lambda array: False)
    for _ in range(3):
        double(X)
    jax.effects_barrier()
    assert lines_of(capsys) == LINES * 3


AT_EXIT = """
import time, threading, jax, jax.numpy as jnp, qdtrace as qd
from qdtrace.compose import record_thread

@qd.jit
def f(x):
    for i in qd.range(x.shape[0]):
        jax.debug.print("{}", x[i])

f(jnp.arange(2))
record_thread.show_later(lambda: (time.sleep(0.2), print("later")))
threading.Thread(target=lambda: record_thread.show_later(lambda: print("last"))).start()
"""
SHARDS = """
import jax, jax.numpy as jnp, numpy as np, qdtrace as qd
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

@qd.jit
def f(x):
    for i in qd.range(x.shape[0]):
        jax.debug.print("{} {}", i, x[i])
        x[i] = 2 * x[i]
    return x

mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(np.arange(4.0, dtype=np.float32), NamedSharding(mesh, P("d")))
assert f(x).tolist() == [0, 2, 4, 6]
print("together")
assert jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x).tolist() == [0, 2, 4, 6]
jax.effects_barrier()
"""


def _printed(tmp_path, program, **env):
    file = tmp_path / "program.py"
    file.write_text(program)
    env = {**os.environ, "PYTHONPATH": str(Path(qd.__file__).parent.parent), **env}
    done = fresh.run([sys.executable, str(file)], env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_nothing_is_lost_at_the_end_of_the_process(tmp_path):
    assert _printed(tmp_path, AT_EXIT) == ["0", "1", "later", "last"]


def test_a_call_over_several_devices_prints_once(tmp_path):
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    lines = _printed(tmp_path, SHARDS, **flags)
    at = lines.index("together")
    assert lines[:at] == LINES
    assert sorted(lines[at + 1 :]) == ["0 0.0", "0 2.0", "1 1.0", "1 3.0"]
