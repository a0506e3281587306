"""Programs that the trace cache found do what traced ones do: results, errors, derivatives, transformations of JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.compose.traces import BASE, FILE, HEAD, LOOP, X, is_found, module, plain, run, same

ROOT = Path(__file__).parents[2]

RESULTS = {
    "argument as it is": "    return {'x': x, 'y': (y, None)}",
    "buffer twice": "    return [y, y]",
    "nothing else": "    return y",
    "tuple": "    return (y,)",
}


@pytest.mark.parametrize("returned", RESULTS)
def test_results_have_their_tree(kept_traces, returned):
    text = HEAD + "def f(x, z):\n    y = qd.zeros(x.shape[0], x.dtype)\n" + LOOP + "y[i] = x[i] + z[i]\n"
    text += RESULTS[returned]
    expected = plain(module(text).f, X, X * 2)
    for k in range(2):
        result, work = run(module(text).f, X, X * 2)
        assert same(result, expected)
        assert is_found(work) == bool(k)


def test_captured_arrays_come_back(kept_traces):
    text = HEAD + "a = jnp.arange(500.0)\ndef f(x):\n" + LOOP + "x[i] = x[i] + a[70 * i]\n    return x"
    expected = plain(module(text).f, X)
    for k in range(2):
        result, work = run(module(text).f, X)
        assert same(result, expected)
        assert is_found(work) == bool(k)


def test_a_check_that_fails_names_its_line(kept_traces):
    text = HEAD + "def f(x, k):\n" + LOOP + "x[i] = x[i + k]\n    return x"
    run(module(text).f, X, 0)
    _, work = run(module(text).f, X, 0)
    assert is_found(work)
    told = []
    for on in (True, False):
        with qd.options(offline_cache=on), pytest.raises(qd.BoundsError, match=f"{FILE}:7 in f") as error:
            qd.jit(module(text).f)(X, 3)
        told.append(str(error.value))
    assert told[0] == told[1]


WAVES = (
    HEAD
    + """
def f(x):
    y = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        y[i] = jnp.sin(x[i]) * x[i] + a
    z = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        z[i] = y[i] * y[(i + 1) % x.shape[0]]
    return z
"""
)
TRANSFORMED = {
    "grad": lambda g: jax.grad(lambda x: g(x).sum())(X),
    "jit of grad": lambda g: jax.jit(jax.grad(lambda x: g(x).sum()))(X),
    "grad of grad": lambda g: jax.grad(lambda x: jax.grad(lambda x: g(x).sum())(x).sum())(X),
    "jvp": lambda g: jax.jvp(g, (X,), (jnp.ones_like(X),))[1],
    "vmap": lambda g: jax.vmap(g)(jnp.stack([X, 2 * X])),
    "grad of vmap": lambda g: jax.grad(lambda x: jax.vmap(g)(x).sum())(jnp.stack([X, 2 * X])),
    "vmap of grad": lambda g: jax.vmap(jax.grad(lambda x: g(x).sum()))(jnp.stack([X, 2 * X])),
    "linearize": lambda g: jax.linearize(g, X)[1](X),
    "scan": lambda g: jax.lax.scan(lambda c, _: (g(c), c.sum()), X, None, 3)[1],
    "checkpoint": lambda g: jax.grad(lambda x: jax.checkpoint(g)(x).sum())(X),
    "lower": lambda g: (g.lower(X).graph("trace"), g.lower(X).graph())[0] and X,
}


@pytest.mark.parametrize("kind", TRANSFORMED)
def test_transformations_of_a_found_program(kept_traces, kind):
    """In a process where derivatives are not on disk, and in one where they are."""
    transformed = TRANSFORMED[kind]
    with qd.options(offline_cache=False):
        expected = np.asarray(transformed(qd.jit(module(WAVES, a=1.0).f)))
    run(module(WAVES, a=1.0).f, X)
    for k in range(3):
        before = qd.stats()
        result = np.asarray(transformed(qd.jit(module(WAVES, a=1.0).f)))
        work = qd.stats() - before
        assert np.allclose(result, expected, rtol=1e-6)
        assert work.hits["traces"] >= 1
        assert not k or work.derivations == 0


def test_gradients_of_a_found_program_have_lines(kept_traces):
    run(module(WAVES, a=1.0).f, X)
    graph = qd.jit(jax.grad(lambda x: qd.jit(module(WAVES, a=1.0).f)(x).sum())).lower(X).graph()
    expected = qd.jit(jax.grad(lambda x: qd.jit(module(WAVES, a=1.0).f)(x).sum()))
    with qd.options(offline_cache=False):
        assert graph == expected.lower(X).graph()


def test_a_derivative_of_what_changed_since_is_refused(kept_traces):
    run(module(WAVES, a=1.0).f, X)
    m = module(WAVES, a=1.0)
    g = qd.jit(m.f)
    g(X)
    m.a = 2.0
    with pytest.raises(qd.TraceValueError) as error:
        jax.grad(lambda x: g(x).sum())(X)
    assert str(error.value) == (
        "f: the program that was read from disk has no derivative there, and is another one now\n"
        "help: change what it uses after its first derivative, or set the option offline_cache_traces=False"
    )


def test_equal_programs_with_other_derivatives(kept_traces):
    """The graph of both is the same; a rule of JAX makes the difference."""
    text = HEAD + "def f(x):\n" + LOOP + "x[i] = HOW(x[i]) * x[i]\n    return x"
    stopped, plain_one = text.replace("HOW", "jax.lax.stop_gradient"), text.replace("HOW", "")
    for one in (stopped, plain_one):
        run(module(one).f, X)
    for _ in range(2):
        grads = [np.asarray(jax.grad(lambda x, t=t: qd.jit(module(t).f)(x).sum())(X)) for t in (stopped, plain_one)]
        assert np.array_equal(grads[0], X)
        assert np.array_equal(grads[1], 2 * X)


def test_another_process_finds_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        BASE + "import sys\nx = jnp.linspace(0.5, 2, 7)\ng = qd.jit(f)\nprint(g(x).sum())\n"
        "print(jax.grad(lambda x: g(x).sum())(x).sum())\ns = qd.stats()\n"
        "print(s.traces, s.hits.get('traces', 0), 'qdtrace.trace.trace' in sys.modules)\n"
    )
    env = {
        **os.environ,
        "QD_OFFLINE_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
    }
    env |= {"QD_OFFLINE_CACHE": "1", "QD_OFFLINE_CACHE_PASSES": "1", "PYTHONHASHSEED": "random"}

    def told():
        return subprocess.run(
            [sys.executable, program], env=env, check=True, capture_output=True, text=True
        ).stdout.split()

    first, second = told(), told()
    assert first[2:] == ["1", "0", "True"]
    assert second == [*first[:2], "0", "1", "False"]
