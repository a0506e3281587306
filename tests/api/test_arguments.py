"""Arguments of every kind: static, keyword, pytrees, foreign arrays, all dtypes, ranks, empty arrays, random keys."""

import copy
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api.programs import add, affine, arange, in_process


def test_static_arguments() -> None:
    def f(n, x, op="add"):
        for i in qd.range(n):
            x[i] = x[i] + n if op == "add" else x[i] * n
        return x

    x = arange(5)
    for g in (qd.jit(f, static_argnums=(0, 2)), qd.jit(f, static_argnames=("n", "op"))):
        np.testing.assert_array_equal(g(5, x), x + 5)
        np.testing.assert_array_equal(g(5, x, "mul"), x * 5)
        np.testing.assert_array_equal(g(3, x, op="add"), x + np.array([3, 3, 3, 0, 0]))
        np.testing.assert_array_equal(g(x=x, n=5, op="mul"), x * 5)
    g = qd.jit(f, static_argnums=0, static_argnames="op")  # given both, JAX takes each as it is
    np.testing.assert_array_equal(g(5, x, op="mul"), x * 5)


@pytest.mark.parametrize("value", [None, (), (1, 2), "abc", jnp.sin, np.float32, frozenset({1})])
def test_static_values_of_any_hashable_type(value: Any) -> None:
    seen = []

    @qd.jit(static_argnums=0)
    def f(value, x):
        seen.append(value)
        for i in qd.range(x.shape[0]):
            x[i] += 1
        return x

    np.testing.assert_array_equal(f(value, arange(3)), arange(3) + 1)
    assert all(v == value for v in seen)


@pytest.mark.full
def test_keywords_defaults_and_variadics() -> None:
    @qd.jit
    def f(x, scale=2.0, *rest, shift=0.0, **more):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * scale + shift
            for r in rest:
                x[i] += r[i]
            for m in more.values():
                x[i] += m[i]
        return x

    x = arange(4)
    np.testing.assert_array_equal(f(x), 2 * x)
    np.testing.assert_array_equal(f(x, 3.0, shift=1.0), 3 * x + 1)
    np.testing.assert_array_equal(f(x, 1.0, x, x, a=x, b=10 * x), 14 * x)
    np.testing.assert_array_equal(f(x=x, scale=np.float32(4)), 4 * x)


def test_methods() -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @qd.jit(static_argnums=0)
        def run(self, x):
            for i in qd.range(x.shape[0]):
                x[i] *= self.scale
            return x

        @staticmethod
        @qd.jit
        def double(x):
            return x * 2

        @classmethod
        @qd.jit(static_argnums=0)
        def name(cls, x):
            return x + len(cls.__name__)

    x = arange(4)
    np.testing.assert_array_equal(Model(3.0).run(x), 3 * x)
    np.testing.assert_array_equal(Model(5.0).run(x), 5 * x)
    np.testing.assert_array_equal(Model.double(x), 2 * x)
    np.testing.assert_array_equal(Model.name(x), x + 5)


@pytest.mark.full
def test_kinds_of_functions() -> None:
    def scaled(n, x):
        for i in qd.range(x.shape[0]):
            x[i] *= n
        return x

    class Scale:
        def __call__(self, x):
            return scaled(3, x)

        def method(self, x):
            return scaled(4, x)

    x = arange(4)
    partial = qd.jit(functools.partial(scaled, 2))
    np.testing.assert_array_equal(partial(x), 2 * x)
    assert partial.lower(x).name == "scaled"
    np.testing.assert_array_equal(qd.jit(Scale())(x), 3 * x)
    assert repr(qd.jit(Scale())) == "<qd.jit Scale>"
    np.testing.assert_array_equal(qd.jit(Scale().method)(x), 4 * x)
    np.testing.assert_array_equal(qd.jit(partial)(x), 2 * x)
    np.testing.assert_array_equal(qd.jit(jax.jit(functools.partial(scaled, 2)))(x), 2 * x)
    np.testing.assert_array_equal(qd.jit(qd.vmap(lambda v: v + 1))(x), x + 1)
    assert qd.jit(scaled).__name__ == "scaled"
    assert qd.jit(scaled).__wrapped__ is scaled


def test_recursion() -> None:
    @qd.jit(static_argnums=1)
    def factorial(x, n):
        if n == 0:
            return x
        y = factorial(x, n - 1)
        for i in qd.range(y.shape[0]):
            y[i] *= n
        return y

    np.testing.assert_array_equal(factorial(jnp.ones(3), 4), np.full(3, 24))


def test_results_of_any_kind() -> None:
    def f(x):
        return [x, (x, {"n": 1, "none": None}), 2.5, True, 1j, np.arange(3), x.shape]

    a, (b, tree), half, yes, i, table, shape = qd.jit(f)(arange(2))
    np.testing.assert_array_equal(a, b)
    assert (int(tree["n"]), tree["none"], float(half), bool(yes), complex(i)) == (1, None, 2.5, True, 1j)
    np.testing.assert_array_equal(table, np.arange(3))
    assert tuple(map(int, shape)) == (2,)


def test_arguments_that_the_function_changes_in_python() -> None:
    @qd.jit
    def f(tree):
        tree["new"] = copy.deepcopy(tree["x"])
        tree["new"][0] = 7
        tree["list"].append(copy.copy(tree["x"]))
        tree["list"][0][1] = 9
        return tree

    given = {"x": arange(3), "list": []}
    got = f(given)
    assert list(given) == ["x", "list"]
    assert given["list"] == []
    np.testing.assert_array_equal(got["x"], [0, 1, 2])
    np.testing.assert_array_equal(got["new"], [7, 1, 2])
    np.testing.assert_array_equal(got["list"][0], [0, 9, 2])


class Pair(NamedTuple):
    a: Any
    b: Any


@qd.dataclass
class Body:
    x: jax.Array
    v: jax.Array


def test_pytrees_in_and_out() -> None:
    @qd.jit
    def f(tree):
        pair, body, empty = tree["pair"], tree["body"], tree["none"]
        assert empty is None
        for i in qd.range(pair.a.shape[0]):
            pair.a[i] += pair.b["k"][i]
            body.x[i] += body.v[i]
        return body, (pair, [None, {"s": pair.b["s"] + 1}]), ()

    x = arange(3)
    tree = {"pair": Pair(x, {"k": 2 * x, "s": 4}), "body": Body(x, 3 * x), "none": None}
    body, (pair, rest), empty = f(tree)
    assert isinstance(body, Body)
    assert isinstance(pair, Pair)
    assert empty == ()
    np.testing.assert_array_equal(pair.a, 3 * x)
    np.testing.assert_array_equal(pair.b["k"], 2 * x)
    np.testing.assert_array_equal(body.x, 4 * x)
    np.testing.assert_array_equal(body.v, 3 * x)
    assert rest[0] is None
    assert int(rest[1]["s"]) == 5


@pytest.mark.full
def test_dataclass_through_transformations() -> None:
    @qd.jit
    def step(body):
        for i in qd.range(body.x.shape[0]):
            body.x[i] += body.v[i]
        return body

    body = Body(jnp.zeros(3), jnp.arange(3.0))
    out, _ = jax.lax.scan(lambda b, _: (step(b), None), body, None, length=4)
    np.testing.assert_array_equal(out.x, 4 * np.arange(3))
    many = jax.vmap(step)(Body(jnp.zeros((2, 3)), jnp.ones((2, 3))))
    np.testing.assert_array_equal(many.x, np.ones((2, 3)))


class Foreign:
    """An array of another library: it only speaks DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **settings: Any) -> Any:
        return self.array.__dlpack__(**settings)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.full
def test_foreign_arrays() -> None:
    x = arange(4)
    np.testing.assert_array_equal(affine(Foreign(x)), 2 * x + 1)
    np.testing.assert_array_equal(add(Foreign(x), jnp.ones(4)), x + 1)
    np.testing.assert_array_equal(add(x, y=Foreign(x)), 2 * x)
    np.testing.assert_array_equal(qd.vmap(jnp.square)(Foreign(x)), x * x)
    np.testing.assert_array_equal(qd.grad(lambda x: jnp.sum(x**2))(Foreign(x)), 2 * x)
    assert len(affine.lower(Foreign(x)).tasks) == 1
    np.testing.assert_array_equal(x, arange(4))


@pytest.mark.full
@pytest.mark.parametrize("row", [np.s_[::2], np.s_[::-1], np.s_[5:1:-2]])
def test_foreign_arrays_with_gaps_between_their_elements(row: slice) -> None:
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    for part in (x[row], x[:, ::2][row], x.T[::2]):
        np.testing.assert_array_equal(affine(Foreign(part)), 2 * part + 1)
        np.testing.assert_array_equal(qd.vmap(jnp.sum)(Foreign(part)), part.sum(1))
        np.testing.assert_array_equal(qd.grad(lambda x: jnp.sum(x**2))(Foreign(part)), 2 * part)


def test_a_foreign_array_that_cannot_be_read_is_refused() -> None:
    class Tracked(Foreign):
        def __dlpack__(self, **settings: Any) -> Any:
            raise RuntimeError("Can't export tensors that require gradient, use tensor.detach()")

    said = r"Tracked cannot be read by DLPack: Can't export(?s:.)*test_arguments(?s:.)*help: .*`t\.detach\(\)\.cont"
    for call in (affine, qd.vmap(jnp.square), qd.grad(jnp.sum)):
        with pytest.raises(qd.TraceTypeError, match=said):
            call(Tracked(np.ones(3, np.float32)))


DTYPES = ["int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64"]


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_arguments(dtype: str) -> None:
    x = jnp.arange(20).astype(dtype)
    got = affine(x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(got), np.asarray(2 * x + 1))
    scalar = qd.jit(lambda s, x: (s * 2, x[()] * 2 if x.ndim == 0 else x))(x[3], x[3])
    assert scalar[0].dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(scalar[0]), np.asarray(x[3] * 2))


def test_bool_arrays() -> None:
    @qd.jit
    def f(x, y):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] & ~y[i]
        return x, jnp.any(x[...])

    x, y = np.arange(20) % 2 == 0, np.arange(20) % 3 == 0
    got, some = f(x, y)
    assert got.dtype == np.bool_
    np.testing.assert_array_equal(got, x & ~y)
    assert bool(some)


@pytest.mark.full
def test_64_bit_inputs_without_the_mode() -> None:
    for x, dtype in ((np.arange(4.0), np.float32), (np.arange(4), np.int32), (np.arange(4) + 1j, np.complex64)):
        got = affine(x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, 2 * x + 1)
    assert qd.jit(lambda s: s + 1)(np.int64(3)).dtype == np.int32


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_64_bit_arrays_that_outlive_the_mode(dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.arange(3).astype(dtype)
    for call in (affine, qd.vmap(lambda v: v * 2), jax.jit(qd.vmap(lambda v: v * 2))):
        with pytest.raises(qd.TraceTypeError, match=f"at most 32 bits outside of the x64 mode, got {dtype}") as error:
            call(x)
        assert "help: call it where jax_enable_x64 is on" in str(error.value)


def test_64_bit_inputs_with_the_mode() -> None:
    in_process(
        """
        import jax, jax.numpy as jnp, numpy as np, qdtrace as qd

        @qd.jit
        def affine(x):
            for i in qd.range(x.shape[0]):
                x[i] = 2 * x[i] + 1
            return x

        for dtype in ("float64", "int64", "uint64", "complex128", "float32", "int32"):
            x = np.arange(20).astype(dtype)
            got = affine(x)
            assert got.dtype == dtype, got.dtype
            np.testing.assert_array_equal(got, 2 * x + 1)

        @qd.jit
        def scalars(x, n, s):
            total = qd.zeros((), float)
            for i in qd.range(n):
                total[()] += x[i] * s
            k = total[()]
            x[0] = k
            return x, total, n + 1, s

        x, total, n, s = scalars(np.arange(4.0), np.int64(4), 0.5)
        assert (total.dtype, n.dtype, s.dtype) == ("float64", "int64", "float64")
        assert float(total) == 3 and float(x[0]) == 3 and int(n) == 5

        @qd.jit
        def wide(x):
            big = qd.zeros((1,), int)
            for i in qd.range(np.int64(2**33), 2**33 + 4):
                big.at[0].max(i)
                x[i - 2**33] = i
            return x, big

        x, big = wide(np.zeros(4, np.int64))
        np.testing.assert_array_equal(x, 2**33 + np.arange(4))
        assert int(big[0]) == 2**33 + 3
        third = qd.vmap(lambda a: a / 3)(np.arange(5.0))
        np.testing.assert_array_equal(third, np.arange(5) / 3)
        """,
        JAX_ENABLE_X64="1",
    )


@pytest.mark.full
def test_weak_types_and_ranks() -> None:
    f = qd.jit(lambda s: s + 1)
    assert f(1).weak_type
    assert f(jnp.bfloat16(1)).dtype == jnp.bfloat16
    assert qd.jit(lambda s, x: s * x[...])(2, jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16

    @qd.jit
    def g(s, x):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * s
        return x

    assert g(2.0, jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16
    zero = qd.jit(lambda s: (s[()], s.shape, s.ndim)[0])(jnp.float32(3))
    assert zero.shape == ()


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (1, 0, 1)])
def test_arrays_without_elements(shape: tuple[int, ...]) -> None:
    @qd.jit
    def f(x):
        count = qd.zeros((), jnp.int32)
        for _ in qd.range(x.shape[0]):
            for j in qd.range(x.shape[1] if x.ndim > 1 else 0):
                count[()] += j
        return x, count

    x, count = f(np.zeros(shape, np.float32))
    assert x.shape == shape
    assert int(count) == 0


@pytest.mark.full
@pytest.mark.parametrize("typed", [False, True])
def test_random_keys(typed: bool) -> None:
    make = jax.random.key if typed else jax.random.PRNGKey

    @qd.jit
    def f(key, keys, x):
        own = key[...]  # a raw key is an array, which arrives as a buffer
        for i in qd.range(x.shape[0]):
            x[i] = jax.random.uniform(jax.random.fold_in(own, i)) + jax.random.uniform(keys[i])
        return x, key, keys

    key, keys = make(1), jax.random.split(make(2), 5)
    x, same, others = f(key, keys, np.zeros(5, np.float32))
    want = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)) + jax.random.uniform(keys[i]))(
        jnp.arange(5)
    )
    np.testing.assert_array_equal(x, want)
    assert jnp.all(same == key)
    assert jnp.all(others == keys)
    many = jax.vmap(lambda k: f(k, keys, jnp.zeros(5))[0])(keys)
    assert many.shape == (5, 5)
