"""Primitives that another package defines are imported by their implementation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray
from jax.extend.core import Primitive

from qdtrace.trace.compat import QD
from qdtrace.trace.importer.registry import TAUGHT
from tests.importer.harness import imported
from tests.importer.test_refusals import text_of

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)


def defined(name, impl, abstract, *, several=False):
    """A primitive as packages define them."""
    primitive = Primitive(name)
    primitive.multiple_results = several
    primitive.def_impl(impl)
    primitive.def_abstract_eval(abstract)
    return primitive


def like_first(*avals, **_):
    return ShapedArray(avals[0].shape, avals[0].dtype)


def compare(fn, plain):
    """The imported function against JAX's plain one."""
    program = imported(fn, X)
    want = jax.tree.leaves(jax.vmap(plain)(X))
    got = program(X)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-6)
    return program


def test_one_result_and_parameters():
    shifted = defined("shifted", lambda x, *, by: jnp.sin(x) + by, like_first)
    compare(lambda x: shifted.bind(x, by=2.0) * 2, lambda x: (jnp.sin(x) + 2) * 2)


def test_several_results():
    impl = lambda x, y: [x * y, jnp.cumsum(x)]  # noqa: E731
    both = defined("both", impl, lambda x, y: [like_first(x), like_first(x)], several=True)
    compare(lambda x: both.bind(x, x + 1), lambda x: (x * (x + 1), jnp.cumsum(x)))


def test_partial_application():
    scaled = defined("scaled", functools.partial(functools.partial(lambda k, x: x * k), 3.0), like_first)
    compare(lambda x: scaled.bind(x), lambda x: x * 3)


def test_a_number_of_python_stays_weak():
    half = defined("half", lambda x: x + jnp.bfloat16(1), lambda x: ShapedArray((), jnp.bfloat16))
    compare(lambda x: half.bind(2.0).astype(jnp.float32) * x, lambda x: 3 * x)


def test_an_array_that_it_updates_stays_in_memory():
    put = defined("put", lambda xs, x, i: xs.at[i].set(x), like_first)

    def fill(x, set_one):
        step = lambda k, xs: set_one(xs, x[k % 4] + k, k)  # noqa: E731
        return jax.lax.fori_loop(1, 40, step, jnp.zeros(40, x.dtype))

    program = compare(lambda x: fill(x, put.bind), lambda x: fill(x, put.impl))
    assert program.count("store") < 10  # its own row is stored, no copy of all


def test_the_name_of_a_primitive_of_jax_says_nothing():
    sine = defined("sin", lambda x: x * 7, like_first)
    compare(lambda x: sine.bind(x) + jnp.sin(x), lambda x: x * 7 + jnp.sin(x))


def test_a_taught_rule_wins():
    double = defined("double_of_test", lambda x: x * 2, like_first)
    TAUGHT["double_of_test"] = lambda x: x * 3
    try:
        compare(lambda x: double.bind(x), lambda x: x * 3)
    finally:
        del TAUGHT["double_of_test"]


def test_values_are_not_there():
    wants = defined("wants_values", lambda x: jnp.float32(float(x[0])), lambda x: ShapedArray((), jnp.float32))
    text = text_of(lambda x: wants.bind(x), X)
    assert text.startswith("the primitive `wants_values` has no import rule, and its implementation cannot be traced\n")
    assert "\n  at " in text
    assert "note: ConcretizationTypeError: " in text
    assert text.endswith(
        "help: compute it outside of the loop, or teach it: qd.def_import_rule('wants_values', jnp_function)"
    )


def test_another_shape_is_not_believed():
    wrong = defined("wrong_shape", lambda x: x[:2], like_first)
    text = text_of(lambda x: wrong.bind(x), X)
    assert text.startswith(
        "the implementation of the primitive `wrong_shape` gives float32[2], the equation float32[4]\n"
    )
    assert text.endswith("help: teach it: qd.def_import_rule('wrong_shape', jnp_function)")


@pytest.mark.parametrize("kind", ["without", "with_effect"])
def test_nothing_to_go_by(kind):
    primitive = Primitive(f"opaque_{kind}")
    primitive.def_abstract_eval(like_first)
    if kind == "with_effect":
        primitive.def_impl(lambda x: x)
        primitive.def_effectful_abstract_eval(lambda x: (like_first(x), {QD}))
    assert text_of(lambda x: primitive.bind(x), X).startswith(f"the JAX primitive `opaque_{kind}` has no import rule\n")
