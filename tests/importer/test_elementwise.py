"""Elementwise primitives against JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.ir.builder import Builder
from qdtrace.ir.program import Literal
from qdtrace.trace.importer.scalars import ScalarOps, constant
from tests.importer.harness import check, imported

RNG = np.random.default_rng(1)
X = RNG.normal(size=(6, 3)).astype(np.float32)
Y = RNG.normal(size=(6, 3)).astype(np.float32)
UNIT = RNG.uniform(-0.95, 0.95, size=(6, 3)).astype(np.float32)
POSITIVE = RNG.uniform(0.1, 5, size=(6, 3)).astype(np.float32)
ABOVE_ONE = POSITIVE + 1
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 3e38], np.float32)
INTS = RNG.integers(-50, 50, size=(8,)).astype(np.int32)
MORE = RNG.integers(1, 9, size=(8,)).astype(np.int32)
WORDS = RNG.integers(0, 2**32, size=(8,), dtype=np.uint64).astype(np.uint32)

EVERYWHERE = (
    "neg", "abs", "sign", "sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1", "logistic", "erf",
    "erfc", "floor", "ceil", "cbrt", "square", "asinh",
)  # fmt: skip
UNARY = [(name, X) for name in EVERYWHERE] + [
    ("sqrt", POSITIVE), ("rsqrt", POSITIVE), ("log", POSITIVE), ("log1p", POSITIVE), ("lgamma", POSITIVE),
    ("digamma", POSITIVE), ("asin", UNIT), ("acos", UNIT), ("atan", X), ("atanh", UNIT), ("acosh", ABOVE_ONE),
    ("erf_inv", UNIT), ("bessel_i0e", 8 * X), ("bessel_i1e", 8 * X),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x"), UNARY, ids=[n for n, _ in UNARY])
def test_unary(name, x):
    check(getattr(lax, name), x)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "atan2", "rem", "nextafter"])
def test_binary(name):
    check(getattr(lax, name), X, Y)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_with_special_values(name):
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    check(getattr(lax, name), a.ravel(), b.ravel())


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "rem", "max", "min", "and", "or", "xor"])
def test_integers(name):
    fn = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}.get(name) or getattr(lax, name)
    check(fn, INTS, MORE)


@pytest.mark.parametrize("name", ["shift_left", "shift_right_logical", "shift_right_arithmetic"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_shifts(name, dtype):
    check(getattr(lax, name), WORDS.astype(dtype), MORE.astype(dtype))


def test_bits():
    check(lambda w: (lax.population_count(w), lax.clz(w), ~w), WORDS)


@pytest.mark.parametrize("name", ["or", "and", "max", "min", "xor", "not"])
def test_bool(name):
    a = np.array([True, True, False, False])
    b = np.array([True, False, True, False])
    fns = {
        "or": jnp.logical_or, "and": jnp.logical_and, "max": jnp.maximum, "min": jnp.minimum, "xor": jnp.logical_xor,
        "not": lambda x, y: ~x,
    }  # fmt: skip
    check(fns[name], a, b)


def test_rounding():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 2.3], np.float32)
    to_even, away = lax.RoundingMethod.TO_NEAREST_EVEN, lax.RoundingMethod.AWAY_FROM_ZERO
    check(lambda v: (lax.round(v, to_even), lax.round(v, away)), x, exact=True)


def test_clamp_and_is_finite():
    check(lambda v: (lax.clamp(-0.5, v, 0.5), lax.is_finite(v)), X)
    check(lambda v: lax.is_finite(v), SPECIAL)


@pytest.mark.parametrize("y", [-3, -1, 0, 1, 2, 3, 4, 5, 7])
def test_integer_pow(y):
    check(lambda v: lax.integer_pow(v, y), X)


def test_pow_of_float_and_integer_exponents():
    check(lambda v, n: (lax.pow(v, n), v ** n.astype(v.dtype)), POSITIVE[:, 0], np.arange(6, dtype=np.int32))


def test_integer_power_of_integers():
    check(lambda v: v**3, INTS)


def test_python_division_and_modulo_follow_jax():
    check(lambda a, b: (a // b, a % b, jnp.divmod(a, -b)[1]), INTS, MORE)


@pytest.mark.parametrize("source", ["int32", "float32", "bool", "uint8"])
def test_conversions(source):
    values = np.array([0, 1, 3, 100]).astype(source)
    targets = ["int8", "int32", "uint8", "uint32", "float16", "bfloat16", "float32", "bool"]
    check(lambda v: tuple(v.astype(t) for t in targets), values)


@pytest.mark.parametrize(("source", "target"), [("float32", "int32"), ("uint32", "float32"), ("uint32", "uint8"),
                                                 ("float32", "uint16"), ("bfloat16", "int16")])  # fmt: skip
def test_bitcast(source, target):
    values = (RNG.normal(size=5) * 100).astype(source)
    check(lambda v: lax.bitcast_convert_type(v, jnp.dtype(target)), values, exact=True)


def test_bitcast_to_wider():
    check(lambda v: lax.bitcast_convert_type(v, jnp.uint32), WORDS.view(np.uint8).reshape(8, 4))


def test_half_precision_arithmetic():
    x = X.astype(np.float16)
    check(lambda v: (v * v + 1, jnp.exp(v), v.astype(jnp.bfloat16) * 3), x)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_select_of_several(which):
    index = np.full(6, which, np.int32)
    check(lambda i, x, y: lax.select_n(i, x, y, x + y), index, X[:, 0], Y[:, 0])


def test_scalar_predicate_chooses_whole_arrays():
    check(lambda i, x, y: lax.select(i > 2, x, y), np.arange(6, dtype=np.int32), X, Y)


FORMATS = (5, 10), (8, 7), (8, 23), (4, 3), (5, 2), (8, 10), (2, 1), (1, 3)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_reduce_precision_has_the_bits_of_jax(dtype):
    """Drawn from all bits: numbers of no format's range, subnormal ones, infinities, NaN."""
    size = jnp.dtype(dtype).itemsize
    drawn = RNG.integers(0, 2 ** (8 * size), 2000).astype(f"u{size}").view(jnp.dtype(dtype))
    near = (RNG.normal(size=500) * np.exp2(RNG.integers(-20, 12, 500))).astype(drawn.dtype)
    x = np.concatenate([drawn, near])

    def of_each(v):
        return [lax.reduce_precision(v, *bits) for bits in FORMATS]

    for bits, got, want in zip(FORMATS, qd.vmap(of_each)(x), jax.jit(of_each)(x), strict=True):
        differ = np.asarray(got).view(f"u{size}") != np.asarray(want).view(f"u{size}")
        assert not (differ & ~(jnp.isnan(got) & jnp.isnan(want))).any(), bits


@pytest.mark.full
def test_adjoints_of_reduce_precision_are_rounded():
    def f(v):
        return (3.3e-6 * lax.reduce_precision(v, 5, 10) + 1.3 * lax.reduce_precision(v * v, 5, 3)).sum()

    x = np.linspace(1, 2, 2000, dtype=np.float32).reshape(2, 1000)  # rows in memory, and in scalars
    for rows in (x, x[:, :7]):
        np.testing.assert_array_equal(qd.vmap(jax.grad(f))(rows), jax.vmap(jax.grad(f))(rows))


@pytest.mark.full
def test_float64_and_int64():
    with jax.enable_x64(True):
        x = RNG.normal(size=(4, 2))
        check(lambda v: (jnp.sin(v) / jnp.cosh(v) + lax.erf_inv(jnp.tanh(v)), v.astype(jnp.int64) * 3), x)
        check(lambda v: (lax.bessel_i0e(9 * v), lax.bessel_i1e(30 * v)), x)


@pytest.mark.full
def test_numpy_functions_of_jax():
    check(
        lambda x, y: (
            jnp.hypot(x, y), jnp.mod(x, 0.3), jnp.sinc(x), jnp.where(x > y, x, 2 * y), jnp.logaddexp(x, y),
            jnp.sign(x), jnp.trunc(3 * x), jnp.fmod(x, y), jnp.heaviside(x, 0.5), jnp.clip(x, -0.3, y),
        ),
        X, Y,
    )  # fmt: skip


ACTIVATIONS = (
    "relu", "gelu", "softplus", "silu", "softmax", "log_softmax", "elu", "sigmoid", "selu", "celu", "mish", "hard_tanh",
    "leaky_relu", "logsumexp", "standardize",
)  # fmt: skip


@pytest.mark.full
def test_activations():
    check(lambda x: tuple(getattr(jax.nn, name)(x) for name in ACTIVATIONS), X)


def test_complex_arithmetic():
    z = (X[:, 0] + 1j * Y[:, 0]).astype(np.complex64)
    w = (X[:, 1] - 2j * Y[:, 1]).astype(np.complex64)
    check(lambda a, b: (a + b, a - b, a * b, a / b, -a, jnp.conj(a), a.real, b.imag, jnp.abs(a), a == a, a != b), z, w)


COMPLEX = (
    "exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "log1p", "expm1", "arcsin", "arccos", "arctan",
    "arcsinh", "arccosh", "arctanh", "exp2", "log2",
)  # fmt: skip


@pytest.mark.parametrize("name", [*COMPLEX, "square", "sign", "reciprocal", "angle"])
def test_complex_functions(name):
    z = (X[:, 0] + 1j * Y[:, 0]).astype(np.complex64)
    check(getattr(jnp, name), z)


# off the axes; at a zero beside an infinity, far out, and beside the unit circle, where a logarithm is small
FAR = np.array(
    [2 - 1j, -3 + 0.5j, 90j, -90j, 90, -90, 1 + 1e-4j, -1 + 1e-4j, 1e-4 + 1j, 1e15 + 1e15j, 1e-4 - 1e-4j]
)  # fmt: skip


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_functions_keep_their_digits(name):
    z = FAR.astype(np.complex64)
    (got,) = imported(getattr(jnp, name), z)(z)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(z.astype(complex)).astype(np.complex64)
        error = np.abs(got - want)
    finite = np.isfinite(want)
    assert np.all(error[finite] <= 64 * np.finfo(np.float32).eps * np.abs(want)[finite])
    # an exponential of a large number overflows in f32 alone, in the same quadrant
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def test_logistic_of_complex_numbers_far_out():
    z = np.array([-80 + 1j, 80 - 2j, -5 - 3j, 0.5 + 0.1j], np.complex64)
    (got,) = imported(jax.nn.sigmoid, z)(z)
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-z.astype(complex))), rtol=1e-5)


@pytest.mark.full
def test_complex_powers_and_structure():
    z = (X[:, 0] + 1j * Y[:, 0]).astype(np.complex64)
    check(
        lambda a: (
            a**3,
            a**-2,
            a ** (0.5 + 1j),
            jnp.sum(jnp.stack([a, 2 * a])),
            jnp.array([a, 1j]) @ jnp.array([a, a]),
        ),
        z,
    )
    check(lambda x, y: lax.complex(x, y) * 1j, X, Y)
    check(lambda a: lax.fori_loop(0, 5, lambda k, c: c * a + k, a), z)


@pytest.mark.full
def test_derivatives_of_pure_functions():
    def f(v):
        return jnp.sum(jnp.sin(v) * jnp.exp(-v) + jax.nn.silu(v) ** 2)

    check(lambda v: (jax.grad(f)(v), jax.hessian(f)(v), jax.jvp(f, (v,), (jnp.ones_like(v),))[1]), X)


def test_vmap_inside():
    check(lambda v: jax.vmap(lambda a: jnp.sin(a) * a)(v), X)


def test_constants_fold_and_identities_leave_nothing():
    program = imported(lambda x: (x * 1 + (2 * 3 - 6).real) * jnp.float32(1), X[:, 0])
    assert program.count() == 2 + 1  # load, store, and `x + 0.0`, which is not an identity for -0.0
    integers = imported(lambda n: ((n + 0) * 1 - 0) | 0, INTS)
    assert integers.count("add", "mul", "sub") == 0


def test_zero_times_nan_is_kept():
    program = imported(lambda x: x * 0.0, SPECIAL)
    (got,) = program(SPECIAL)
    np.testing.assert_array_equal(np.isnan(got), ~np.isfinite(SPECIAL))


def test_equal_expressions_are_shared():
    program = imported(lambda x: jnp.sin(x) + jnp.sin(x) * jnp.sin(x), X[:, 0])
    assert program.count("sin") == 1


@pytest.mark.parametrize(("name", "sign"), [("min", True), ("max", False)])
@pytest.mark.parametrize("first", [0.0, -0.0])
def test_extremes_of_constant_zeros(name: str, sign: bool, first: float):
    folded = ScalarOps(Builder()).op(name, constant(np.float32(first)), constant(np.float32(-first)))
    assert isinstance(folded, Literal)
    assert np.signbit(folded.value) == sign
    (nan,) = {
        ScalarOps(Builder()).op(name, constant(np.float32(a)), constant(np.float32(b))).value.tobytes()
        for a, b in [(first, np.nan), (np.nan, first)]
    }
    assert np.isnan(np.frombuffer(nan, np.float32)[0])


@pytest.mark.full
def test_bessel_functions_of_large_arguments():
    x = np.array([1e30, 1e37, 1e38, 3.4e38, np.inf, -np.inf, np.nan, 0.0, -0.0, 9.99, 10.01], np.float32)
    for fn in (lax.bessel_i0e, lax.bessel_i1e, jnp.i0):
        check(fn, np.concatenate([x, -x]), atol=1e-44)
    (ours,) = imported(lax.bessel_i1e, x)(x)
    np.testing.assert_array_equal(np.signbit(ours[-4:-2]), [False, True])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_upper_half_of_products(dtype):
    with jax.enable_x64(True):
        info = np.iinfo(dtype)
        edges = np.array([info.min, info.max, 0, 1, info.min + 1, info.max - 1, info.max // 2 + 1], dtype)
        values = np.concatenate([edges, RNG.integers(info.min, info.max, 20, dtype=dtype, endpoint=True)])
        x, y = (np.ravel(v) for v in np.meshgrid(values, values))
        check(lax.mulhi, x, y)
        (high,) = imported(lax.mulhi, x, y)(x, y)
        exact = [(int(a) * int(b)) >> info.bits for a, b in zip(x, y, strict=True)]
        np.testing.assert_array_equal(high, np.array(exact, dtype))


@pytest.mark.parametrize("name", ["eq_to_p", "lt_to_p", "le_to_p"])
def test_total_order(name: str):
    values = np.array([1.0, np.nan, -np.inf, 0.0, -0.0, -2.0, np.inf, 1e-40, -1e-40], np.float32)
    values = np.append(values, np.copysign(np.float32(np.nan), np.float32(-1)))
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    check(getattr(lax, name).bind, x, y, exact=True)
    check(getattr(lax, name).bind, np.arange(4, dtype=np.int8), np.array([0, 2, 2, 4], np.int8), exact=True)


def test_complex_zeros_and_infinities():
    z = np.array([1 + 2j, 1, -3j, 0, 2 - 1j], np.complex64)
    zero = np.array([0j, complex(-0.0, 0), 0, 0, complex(0, -0.0)], np.complex64)
    powers = np.array([0.5 - 0.5j, -1, 1j, 2, 0], np.complex64)
    far = np.array([complex(0, np.inf), complex(1, -np.inf), complex(-np.inf, 2)], np.complex64)
    check(lambda x, y: [x / y, lax.rsqrt(y), lax.integer_pow(y, -2)], z, zero)
    check(lax.pow, zero, powers)
    check(lax.atanh, far)
