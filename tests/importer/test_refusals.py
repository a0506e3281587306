"""Primitives that cannot be imported are refused with the rule, the user's line and the fix; and can be taught."""

import inspect
import os
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import qdtrace as qd
from qdtrace.errors import TraceTypeError, TraceValueError, UnsupportedError
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.types import DType
from qdtrace.trace.importer import Importer, RefValue, def_import_rule
from qdtrace.trace.importer.registry import TAUGHT
from tests.importer.harness import check, imported

X = np.ones((2, 4), np.float32)


def unseeded(x):
    return jax.lax.rng_uniform(x[0], x[1], (4,))  # unseeded


def schur_of(x):
    return jax.lax.linalg.schur(x[:, None] * x)  # schur


def calls_python(x):
    return jax.pure_callback(lambda v: v, x, x)  # callback


def long_fft(x):
    return jnp.fft.fft(jnp.tile(x, 65)).real  # long fft


def perturbed(x):
    return jax.lax.linalg.tridiagonal_solve(x, x, x, x[:, None], perturb_singular=True)  # perturbed


def narrow(x):
    return x.astype(jnp.float8_e5m2).astype(jnp.float32)  # float8


def bytes_of(x):
    return jax.lax.bitcast_convert_type(jnp.tile(x, 100), jnp.uint8)  # bytes


def rbg_noise(x):
    return x + jax.random.uniform(jax.random.key(0, impl="rbg"))  # rbg


def root_of(x):
    y = x[0] * 2
    return jnp.sqrt(y)  # sqrt


def text_of(fn, *args, **options) -> str:
    """The message, with this file's name for its path."""
    with pytest.raises((UnsupportedError, TraceValueError)) as error:
        imported(fn, *args, **options)
    return str(error.value).replace(__file__, "here.py")


def line_of(marker: str) -> int:
    """The line of this file that ends with a comment."""
    with open(__file__) as source:
        return next(k for k, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}"))


def test_unknown_primitive():
    assert text_of(unseeded, X) == (
        "the JAX primitive `rng_uniform` has no import rule\n"
        f"  at here.py:{line_of('unseeded')} in unseeded\n"
        "      return jax.lax.rng_uniform(x[0], x[1], (4,))  # unseeded\n"
        "help: compute it outside of the loop, or teach it: qd.def_import_rule('rng_uniform', jnp_function)"
    )


def test_real_schur_form():
    assert text_of(schur_of, X) == (
        "`schur` in a loop body needs a complex matrix, got float32\n"
        f"  at here.py:{line_of('schur')} in schur_of\n"
        "      return jax.lax.linalg.schur(x[:, None] * x)  # schur\n"
        'help: jax.scipy.linalg.schur(a, output="complex"), or a.astype(complex)'
    )


@pytest.mark.parametrize("depth", [1, 3])
def test_the_line_is_the_users_where_a_library_is_between(depth):
    library: dict = {}
    source = "def helper(f, x, depth):\n    return f(x) if depth == 1 else helper(f, x, depth - 1)\n"
    exec(compile(source, os.path.join(sysconfig.get_path("purelib"), "library.py"), "exec"), library)
    call = lambda x: library["helper"](jax.lax.linalg.schur, x[:, None] * x, depth)[0]  # called  # noqa: E731
    assert f"  at here.py:{line_of('called  # noqa: E731')} in " in text_of(call, X)


@pytest.fixture
def double_p():
    primitive = Primitive("test_double")
    primitive.def_abstract_eval(lambda x, *, times: x)
    yield primitive
    TAUGHT.pop("test_double", None)


def test_teaching_a_primitive(double_p):
    f = lambda x: jnp.sin(double_p.bind(x, times=3))  # noqa: E731 - one expression
    assert "has no import rule" in text_of(f, X)
    def_import_rule(double_p, lambda x, *, times: x * times)
    (got,) = imported(f, X)(X)
    np.testing.assert_allclose(got, np.sin(3 * X), rtol=1e-6)


def test_teaching_several_results():
    primitive = Primitive("test_pair")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda x: [x, x])
    try:
        def_import_rule("test_pair", lambda x: (x + 1, x * 2))
        a, b = imported(lambda x: primitive.bind(x), X)(X)
    finally:
        TAUGHT.pop("test_pair")
    np.testing.assert_array_equal(a, X + 1)
    np.testing.assert_array_equal(b, X * 2)


def test_a_taught_rule_wins():
    try:
        def_import_rule("sin", lambda x, **_: x * 0 + 5)
        (got,) = imported(jnp.sin, X)(X)
    finally:
        TAUGHT.pop("sin")
    np.testing.assert_array_equal(got, np.full_like(X, 5))
    check(jnp.sin, X)


def test_teaching_nonsense():
    with pytest.raises(TraceTypeError) as error:
        def_import_rule(3, "x")  # type: ignore[arg-type]
    assert str(error.value) == (
        "def_import_rule needs a primitive (or its name) and a function, got int and str\n"
        "help: qd.def_import_rule(my_primitive_p, lambda x, **params: jnp.sin(x))"
    )


def test_calling_python():
    assert text_of(calls_python, X) == (
        "`pure_callback` calls Python, which a loop body cannot do\n"
        f"  at here.py:{line_of('callback')} in calls_python\n"
        "      return jax.pure_callback(lambda v: v, x, x)  # callback\n"
        "help: call it outside of the loop, on whole arrays"
    )


def test_long_transforms():
    assert text_of(long_fft, X) == (
        "`fft` in a loop body needs at most 256 points along an axis, got 260\n"
        f"  at here.py:{line_of('long fft')} in long_fft\n"
        "      return jnp.fft.fft(jnp.tile(x, 65)).real  # long fft\n"
        "help: compute it outside of the loop"
    )


def test_perturbed_tridiagonal_systems():
    assert text_of(perturbed, X).startswith(
        "the import rule of `tridiagonal_solve` does not work with perturb_singular=True, only with "
        "perturb_singular=False\n"
        f"  at here.py:{line_of('perturbed')} in perturbed\n"
    )


def test_dtype_without_a_graph_dtype():
    assert text_of(narrow, X) == (
        "needs one of bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, got float8_e5m2\n"
        f"  at here.py:{line_of('float8')} in narrow\n"
        "      return x.astype(jnp.float8_e5m2).astype(jnp.float32)  # float8\n"
        "help: convert it with .astype outside of the loop"
    )


def test_operation_that_needs_scalars():
    assert text_of(bytes_of, X) == (
        "bitcast_convert_type needs an array of at most 256 elements in a loop body, got 400\n"
        f"  at here.py:{line_of('bytes')} in bytes_of\n"
        "      return jax.lax.bitcast_convert_type(jnp.tile(x, 100), jnp.uint8)  # bytes\n"
        "help: compute it outside of the loop, or element by element"
    )


def test_other_random_generators():
    assert text_of(rbg_noise, X).startswith("needs threefry2x32 keys, got key<rbg>")


def test_buffer_where_a_value_is_needed():
    closed = jax.make_jaxpr(lambda x: x + 1)(X)
    importer = Importer(Builder())
    with pytest.raises(TraceValueError) as error:
        importer.jaxpr(closed, [RefValue(ref_var(DType.f32, X.shape))])
    assert "needs an array value, got a buffer" in str(error.value)
    assert "help: read it first: `b[...]` or `b[i]`" in str(error.value)


def test_buffers_swapped_by_a_loop():
    closed = jax.make_jaxpr(lambda a, b: jax.lax.fori_loop(0, 9, lambda k, s: (s[1], s[0]), (a, b)))(X, X)
    importer = Importer(Builder())
    with pytest.raises(TraceValueError) as error:
        importer.jaxpr(closed, [RefValue(ref_var(DType.f32, X.shape)) for _ in "ab"])
    assert "a loop must carry a buffer on unchanged, got another buffer in its place" in str(error.value)


def test_branch_that_chooses_a_buffer():
    closed = jax.make_jaxpr(lambda p, a, b: jax.lax.cond(p, lambda: a, lambda: b))(True, X, X)
    importer = Importer(Builder())
    predicate = np.empty((), object)
    predicate[()] = importer.load(ref_var(DType.bool, ()))
    with pytest.raises(UnsupportedError) as error:
        importer.jaxpr(closed, [predicate, *(RefValue(ref_var(DType.f32, X.shape)) for _ in "ab")])
    assert "a branch cannot choose between buffers" in str(error.value)


def test_locations_are_the_users_lines():
    program = imported(root_of, X).program
    (eqn,) = [e for e in program.tasks[0].body.eqns if e.primitive.name == "sqrt"]
    assert eqn.loc is not None
    assert (eqn.loc.file, eqn.loc.line, eqn.loc.function) == (__file__, line_of("sqrt"), "root_of")
    assert inspect.getsource(root_of).count("sqrt") == 2


@pytest.mark.parametrize("extreme", [jnp.argmax, jnp.argmin])
def test_places_of_complex_extremes(extreme):
    # JAX traces it, and compiles it for no device
    with pytest.raises(UnsupportedError, match="of complex numbers has no import rule"):
        qd.vmap(lambda x: extreme(x + 1j))(X)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_cumlogsumexp_of_integers(dtype):
    # JAX traces it, and fails to lower it
    text = text_of(lambda x: jax.lax.cumlogsumexp(jnp.stack([x, x]).astype(dtype))[1].astype(x.dtype), X)
    first, *_, fix = text.splitlines()
    assert first == f"`cumlogsumexp` needs floats, got {dtype}"
    assert fix == "help: convert its operand: x.astype(float)"
