"""Whole programs: traced, imported and interpreted, against the same Python run eagerly on NumPy buffers."""

import functools

import jax
import numpy as np
import pytest

from tests.importer import eager, qd
from tests.importer.bodies import BODIES
from tests.importer.tasks import run_traced


def cast(args, dtype):
    return [a.astype(dtype) if a.dtype.kind == "f" else a for a in args]


def eagerly(fn, args):
    buffers = [eager.Buffer(a) if a.ndim else jax.numpy.asarray(a) for a in args]
    for b, a in zip(buffers, args, strict=True):
        if isinstance(b, eager.Buffer):
            b.dtype = a.dtype
    out = fn(eager, *buffers)
    return [o.content for o in (out if isinstance(out, tuple) else (out,))]


@functools.cache
def oracle(name):
    """The result in double precision."""
    fn, args = BODIES[name]
    with jax.enable_x64(True):
        return eagerly(fn, args)


@pytest.mark.sample(2, full=4)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.full
def test_body(name, dtype):
    fn, args = BODIES[name]
    with jax.enable_x64(dtype is np.float64):
        got = run_traced(lambda *a: fn(qd, *a), *cast(args, dtype))
    for g, w in zip(got if isinstance(got, tuple) else (got,), oracle(name), strict=True):
        assert g.dtype == (dtype if name != "random_walks" else np.float32)
        # rounding in another order, amplified by conditions and by loops: ten roundings at most on x86-64
        scale = 32 * np.finfo(g.dtype).eps
        np.testing.assert_allclose(g, w, rtol=scale, atol=scale)


# What the scalar form of each body needs at most; a change that doubles one is worth a look.
MOST_EQUATIONS = {
    "material_points_2d": 900,
    "clamped_singular_values": 900,
    "mass_spring": 130,
    "n_body": 60,
    "random_walks": 2000,
    "order_statistics": 400,
}


@pytest.mark.parametrize("name", MOST_EQUATIONS)
def test_size_of_the_graph(name):
    fn, args = BODIES[name]
    programs = []
    run_traced(lambda *a: fn(qd, *a), *cast(args, np.float32), programs=programs)
    assert sum(1 for p in programs for _ in p.all_eqns) <= MOST_EQUATIONS[name]
