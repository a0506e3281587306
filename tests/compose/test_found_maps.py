"""Functions of `qd.vmap` that the trace cache finds: by the mapped function, all axes, and the line of the call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.compose.traces import X, is_found, module, reasons, same

TEXT = """
import jax.numpy as jnp
SCALE = 2.0
def helper(v):
    return jnp.sin(v) * SCALE
def f(v, w):
    return jnp.where(v > 1, helper(v), w), v + w
"""
PAIR = jnp.stack([X, 2 * X])
AXES = {
    "both": lambda f: qd.vmap(f)(PAIR, PAIR + 1),
    "first": lambda f: qd.vmap(f, in_axes=(0, None))(X, 0.5),
    "second": lambda f: qd.vmap(f, in_axes=(None, 0))(0.5, X),
    "other results": lambda f: qd.vmap(f, out_axes=(0, 1))(PAIR, PAIR + 1),
    "columns": lambda f: qd.vmap(f, in_axes=1)(PAIR, PAIR + 1),
    "nested": lambda f: qd.vmap(qd.vmap(f))(PAIR, PAIR + 1),
    "nested columns": lambda f: qd.vmap(qd.vmap(f), in_axes=1)(PAIR, PAIR + 1),
    "named": lambda f: qd.vmap(f, axis_name="n")(PAIR, PAIR + 1),
}


def called(call, f):
    before = qd.stats()
    result = jax.tree.map(np.asarray, call(f))
    return result, qd.stats() - before


def test_axes_are_part_of_the_key(kept_traces):
    for call in AXES.values():
        result, work = called(call, module(TEXT).f)
        assert reasons(work) == {"not there"}
        with qd.options(offline_cache=False):
            assert same(result, called(call, module(TEXT).f)[0])
        again, work = called(call, module(TEXT).f)
        assert is_found(work)
        assert same(result, again)


@pytest.mark.parametrize("change", [("SCALE = 2.0", "SCALE = 3.0"), ("sin(v)", "cos(v)"), ("v + w", "v - w")])
def test_a_changed_function_is_traced(kept_traces, change):
    called(AXES["both"], module(TEXT).f)
    text = TEXT.replace(*change)
    result, work = called(AXES["both"], module(text).f)
    assert work.traces == 1
    with qd.options(offline_cache=False):
        assert same(result, called(AXES["both"], module(text).f)[0])


def test_a_bare_call_follows_what_changes_and_changes_back(kept_traces):
    """A kept function, of which a shape was found while something else was set."""
    m = module(TEXT)
    shapes = PAIR, PAIR[:, :3]
    for _ in range(2):
        for scale in (2.0, 5.0, 2.0):
            for x in shapes:
                m.SCALE = scale
                result = np.asarray(qd.vmap(m.f)(x, x)[0])
                with qd.options(offline_cache=False):
                    expected = np.asarray(jax.vmap(jax.vmap(m.f))(x, x)[0])
                assert np.allclose(result, expected, rtol=1e-5), scale  # two implementations of sin


def test_another_line_of_the_call_is_another_key(kept_traces):
    one = [
        lambda f: qd.vmap(f)(X, X),
        lambda f: qd.vmap(f)(X, X),
    ]
    for call in one:
        _, work = called(call, module(TEXT).f)
        assert (work.traces, reasons(work)) == (1, {"not there"})


@pytest.mark.parametrize("kind", ["grad", "jvp", "vmap"])
def test_transformations(kept_traces, kind):
    def total(f):
        return lambda x: qd.vmap(f)(x, x + 1)[0].sum()

    def run(f):
        g = total(f)
        if kind == "grad":
            return jax.grad(g)(X)
        return jax.jvp(g, (X,), (X,))[1] if kind == "jvp" else jax.vmap(g)(PAIR)

    with qd.options(offline_cache=False):
        expected = np.asarray(run(module(TEXT).f))
    for k in range(3):
        before = qd.stats()
        assert np.allclose(run(module(TEXT).f), expected, rtol=1e-6)
        work = qd.stats() - before
        assert bool(work.hits.get("traces")) == bool(k)
        assert k < 2 or work.derivations == 0


def test_objects_among_arguments_are_not_known(kept_traces):
    def f(v, how):
        return v * 2 if how == "double" else v

    _, work = called(lambda f: qd.vmap(f, in_axes=(0, None))(X, "double"), f)
    assert reasons(work) == {"Bound qdtrace.vmap_plan.Bound"}


def test_a_function_that_maps_is_traced_and_its_map_found(kept_traces):
    text = TEXT + "import qdtrace as qd\ndef g(x):\n    return qd.vmap(f)(x, x)[0]\n"
    for k in range(2):
        _, work = called(lambda g: qd.jit(g)(X), module(text).g)
        assert reasons(work) == {"function qdtrace.vmap.vmap", *([] if k else ["not there"])}
        assert bool(work.hits.get("traces")) == bool(k)
