"""JAX around a `qd.jit` function: transformations, arguments of every kind, what retraces and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

ROOT = Path(__file__).parents[2]


@qd.jit
def affine(x):
    """2 x + 1."""
    for i in qd.range(x.shape[0]):
        x[i] = 2 * x[i] + 1
    return x


@qd.jit
def add(x, y):
    for i in qd.range(x.shape[0]):
        x[i] += y[i]
    return x


def arange(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def in_process(script: str, **env: str) -> str:
    """Runs a script in a fresh Python; what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------------- transformations
def test_jit_and_lax_loops_around() -> None:
    x = arange(5)
    np.testing.assert_array_equal(jax.jit(affine)(x), 2 * x + 1)
    np.testing.assert_array_equal(jax.jit(lambda x: affine(x) + affine(x + 1))(x), 4 * x + 4)
    got, each = jax.lax.scan(lambda c, y: (affine(c) + y, c[0]), x, jnp.ones(3))
    want = x
    for _ in range(3):
        want = 2 * want + 2
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(each, [0, 2, 6])
    np.testing.assert_array_equal(jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, c: affine(c), x))(x), 4 * x + 3)
    got = jax.lax.while_loop(lambda c: c[0] < 20, affine, x)
    np.testing.assert_array_equal(got, 32 * x + 31)


@pytest.mark.parametrize("flag", [False, True])
def test_cond_and_switch_around(flag: bool) -> None:
    x = arange(5)
    f = jax.jit(lambda p, x: jax.lax.cond(p, affine, lambda x: x - 1, x))
    np.testing.assert_array_equal(f(flag, x), 2 * x + 1 if flag else x - 1)
    g = jax.jit(lambda k, x: jax.lax.switch(k, [affine, jnp.negative, lambda x: affine(affine(x))], x))
    np.testing.assert_array_equal(g(2 * flag, x), 4 * x + 3 if flag else 2 * x + 1)


def test_vmap_around() -> None:
    x = arange(4, 5)
    np.testing.assert_array_equal(jax.vmap(affine)(x), 2 * x + 1)
    np.testing.assert_array_equal(jax.vmap(affine, in_axes=1)(x), 2 * x.T + 1)
    np.testing.assert_array_equal(jax.vmap(affine, in_axes=1, out_axes=1)(x), 2 * x + 1)
    np.testing.assert_array_equal(jax.vmap(affine, out_axes=-1)(x), 2 * x.T + 1)
    np.testing.assert_array_equal(jax.vmap(add, in_axes=(0, None))(x, x[1]), x + x[1])
    np.testing.assert_array_equal(jax.vmap(add, in_axes=(None, 0))(x[1], x), x + x[1])
    np.testing.assert_array_equal(jax.jit(jax.vmap(add, in_axes=(0, 1)))(x, x.T), 2 * x)
    y = arange(2, 3, 4)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(affine))(y), 2 * y + 1)
    got = jax.vmap(jax.vmap(add, in_axes=(0, None)), in_axes=(0, 0))(y, y[:, 0])
    np.testing.assert_array_equal(got, y + y[:, :1])


def test_vmap_of_bounds_and_empty_batches() -> None:
    @qd.jit
    def count(n):
        out = qd.zeros((8,), jnp.int32)
        for i in qd.range(n):
            out[i] = i + 1
        return out

    got = jax.vmap(count)(jnp.arange(4))
    np.testing.assert_array_equal(got, np.where(np.arange(8) < np.arange(4)[:, None], np.arange(8) + 1, 0))
    assert jax.vmap(affine)(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_checkpoint_and_eval_shape() -> None:
    x = arange(5)
    np.testing.assert_array_equal(jax.checkpoint(affine)(x), 2 * x + 1)
    shape = jax.eval_shape(affine, x)
    assert (shape.shape, shape.dtype) == ((5,), np.float32)
    assert "qd_call" in str(jax.make_jaxpr(affine)(x))


def test_ahead_of_time() -> None:
    x = arange(5)
    compiled = jax.jit(affine).lower(x).compile()
    np.testing.assert_array_equal(compiled(x), 2 * x + 1)


def test_disable_jit() -> None:
    x = arange(5)
    with jax.disable_jit():
        np.testing.assert_array_equal(affine(x), 2 * x + 1)
        np.testing.assert_array_equal(jax.vmap(affine)(arange(2, 3)), 2 * arange(2, 3) + 1)
        np.testing.assert_array_equal(qd.vmap(jnp.square)(x), x * x)
        np.testing.assert_array_equal(jax.jit(lambda x: affine(affine(x)))(x), 4 * x + 3)


def test_export() -> None:
    from jax import export

    x = arange(5)
    text = jax.jit(affine).lower(x).as_text()
    (name,) = {part.split("(")[0] for part in text.split("@") if part.startswith("qdtrace_")}
    checks = [export.DisabledSafetyCheck.custom_call(name)]
    exported = export.export(jax.jit(affine), disabled_checks=checks)(x)
    np.testing.assert_array_equal(exported.call(x), 2 * x + 1)
    with pytest.raises(ValueError, match="custom calls whose targets have no compatibility guarantees"):
        export.export(jax.jit(affine))(x)


def test_closure_over_outer_tracers() -> None:
    table = np.arange(10, dtype=np.float32) ** 2

    @jax.jit
    def outer(x, scale):
        shift = jnp.sin(scale)

        @qd.jit
        def f(x):
            for i in qd.range(x.shape[0]):
                x[i] = x[i] * scale + table[3] + jnp.asarray(table)[i] + shift
            return x

        return f(x), f(x + 1)

    x = arange(5)
    a, b = outer(x, np.float32(0))
    np.testing.assert_array_equal(a, 9 + table[:5])
    np.testing.assert_array_equal(b, a)


def test_closure_over_tracers_of_vmap_and_scan() -> None:
    def outer(s):
        @qd.jit
        def f(x):
            for i in qd.range(x.shape[0]):
                x[i] += s
            return x

        return f(jnp.zeros(3))

    np.testing.assert_array_equal(jax.vmap(outer)(arange(4)), np.repeat(arange(4)[:, None], 3, 1))
    _, got = jax.lax.scan(lambda c, s: (c, outer(s)), 0, arange(4))
    np.testing.assert_array_equal(got, np.repeat(arange(4)[:, None], 3, 1))


# ---------------------------------------------------------------------- several devices
def test_shard_map_and_devices() -> None:
    out = in_process(
        """
        import jax, jax.numpy as jnp, numpy as np, qdtrace as qd
        from jax.sharding import Mesh, PartitionSpec as P, NamedSharding

        @qd.jit
        def f(x, y):
            for i in qd.range(x.shape[0]):
                x[i] = 2 * x[i] + y[()]
            return x

        one, two = jax.devices()
        mesh = Mesh(np.array([one, two]), ("d",))
        x = jnp.arange(8.0)

        def local(x):
            return f(x, jax.lax.axis_index("d").astype(jnp.float32)) + jax.lax.psum(x.sum(), "d")

        g = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
        want = 2 * np.arange(8) + np.repeat([0, 1], 4) + 28
        np.testing.assert_array_equal(g(x), want)
        np.testing.assert_array_equal(g(jax.device_put(x, NamedSharding(mesh, P("d")))), want)
        there = f(jax.device_put(x, two), jax.device_put(1.0, two))
        assert there.devices() == {two}
        np.testing.assert_array_equal(there, 2 * np.arange(8) + 1)
        try:
            f(jax.device_put(x, one), jax.device_put(1.0, two))
        except qd.BackendError as error:
            print(str(error).replace("TFRT_CPU_", "cpu:"))  # device names differ between versions of JAX
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert out.splitlines() == [
        "f: needs all arrays on one device, got cpu:0, cpu:1",
        "help: move them with jax.device_put",
    ]


# ---------------------------------------------------------------------- donation
def test_donation_makes_no_copy() -> None:
    def f(x, y):
        for i in qd.range(x.shape[0]):
            x[i] += y[i]
        return x

    for settings in ({"donate_argnums": 0}, {"donate_argnums": (0,)}, {"donate_argnames": "x"}):
        x, y = jnp.zeros(4096), jnp.ones(4096)
        at = x.unsafe_buffer_pointer()
        z = qd.jit(f, **settings)(x, y)
        assert z.unsafe_buffer_pointer() == at
        assert x.is_deleted()
        assert not y.is_deleted()
        np.testing.assert_array_equal(z, np.ones(4096))


def test_arguments_stay_when_not_donated() -> None:
    x = jnp.zeros(4096)
    y = affine(x)
    assert y.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
    np.testing.assert_array_equal(x, np.zeros(4096))
    numpy = np.zeros(4096, np.float32)
    affine(numpy)
    np.testing.assert_array_equal(numpy, np.zeros(4096))


def test_scan_carries_are_updated_in_place() -> None:
    @jax.jit
    def f(x):
        return jax.lax.fori_loop(0, 3, lambda _, c: affine(c), x)

    text = f.lower(jax.ShapeDtypeStruct((1 << 20,), jnp.float32)).compile().memory_analysis()
    assert text.temp_size_in_bytes < 1 << 20  # no second array of 4 MiB
    np.testing.assert_array_equal(f(jnp.zeros(5)), np.full(5, 7))


# ---------------------------------------------------------------------- arguments
def test_static_arguments() -> None:
    def f(n, x, op="add"):
        for i in qd.range(n):
            x[i] = x[i] + n if op == "add" else x[i] * n
        return x

    x = arange(5)
    for g in (
        qd.jit(f, static_argnums=(0, 2)),
        qd.jit(f, static_argnames=("n", "op")),
    ):
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


def test_foreign_arrays() -> None:
    x = arange(4)
    np.testing.assert_array_equal(affine(Foreign(x)), 2 * x + 1)
    np.testing.assert_array_equal(add(Foreign(x), jnp.ones(4)), x + 1)
    np.testing.assert_array_equal(add(x, y=Foreign(x)), 2 * x)
    np.testing.assert_array_equal(qd.vmap(jnp.square)(Foreign(x)), x * x)
    np.testing.assert_array_equal(qd.grad(lambda x: jnp.sum(x**2))(Foreign(x)), 2 * x)
    assert len(affine.lower(Foreign(x)).tasks) == 1
    np.testing.assert_array_equal(x, arange(4))


DTYPES = ["int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64"]


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


def test_64_bit_inputs_without_the_mode() -> None:
    for x, dtype in ((np.arange(4.0), np.float32), (np.arange(4), np.int32), (np.arange(4) + 1j, np.complex64)):
        got = affine(x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, 2 * x + 1)
    assert qd.jit(lambda s: s + 1)(np.int64(3)).dtype == np.int32


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


# ---------------------------------------------------------------------- caches
def test_what_traces_again() -> None:
    traces = []

    @qd.jit(static_argnames="n")
    def f(x, n=1):
        traces.append((x.shape, x.dtype, n))
        for i in qd.range(x.shape[0]):
            x[i] += n
        return x

    def count(*args: Any, **kwargs: Any) -> int:
        traces.clear()
        f(*args, **kwargs)
        return len(traces)

    x = jnp.zeros(4)
    assert count(x) == 1
    assert count(x) == 0
    assert count(np.ones(4, np.float32)) == 0
    assert count(x, n=1) == 0 or count(x, n=1) == 0  # JAX may tell a default from a keyword, once
    assert count(x, n=2) == 1
    assert count(jnp.zeros(5)) == 1
    assert count(jnp.zeros(4, jnp.int32)) == 1
    assert count(x) == 0
    with qd.options(fast_math=False):
        assert count(x) == 1
        assert count(x) == 0
        with qd.options(opt_level=0):
            assert count(x) == 1
    assert count(x) == 0
    with qd.options(fast_math=False):
        assert count(x) == 0


def test_inside_jit_traced_once() -> None:
    traces = []

    @qd.jit
    def f(x):
        traces.append(x.shape)
        for i in qd.range(x.shape[0]):
            x[i] += 1
        return x

    g = jax.jit(lambda x: f(f(f(x))))
    for _ in range(3):
        np.testing.assert_array_equal(g(jnp.zeros(3)), np.full(3, 3))
    assert len(traces) == 1


def test_options_of_a_function() -> None:
    @qd.jit(options={"opt_level": 0})
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * x[i] + x[i] * x[i]
        return x

    (program,) = f.lower(arange(4)).programs
    assert program.options.opt_level == 0
    with qd.options(opt_level=1, fast_math=False):
        (program,) = f.lower(arange(4)).programs
    assert (program.options.opt_level, program.options.fast_math) == (0, False)


def test_equal_functions_share_a_program() -> None:
    def make() -> Any:
        @qd.jit
        def same(x):
            for i in qd.range(x.shape[0]):
                x[i] += 7
            return x

        return same

    (a,), (b,) = (make().lower(arange(4)).programs for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
