"""JAX around a `qd.jit` function: transformations, devices, donation, what retraces and what does not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api.programs import add, affine, arange, in_process


# ---------------------------------------------------------------------- transformations
@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_debug_nans() -> None:
    @qd.jit
    def logs(x):
        for i in qd.range(x.shape[0]):
            x[i] = jnp.log(x[i])
        return x

    x = arange(4)
    with jax.debug_nans(True):
        np.testing.assert_array_equal(logs(x + 1)[0], 0)
        with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in logs"):
            logs(x - 1)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"invalid value \(inf\) encountered in logs"):
        logs(x)
    assert np.isneginf(logs(x)[0])


def shifted_log(x):
    return jnp.log(x - 20)


@pytest.mark.parametrize(
    "function",
    [jax.jit(shifted_log), qd.jit(lambda x: qd.vmap(shifted_log)(x[...])), lambda x: jnp.std(x[...] - jnp.inf)],
    ids=["jit", "qd.jit", "function of jnp"],
)
@pytest.mark.parametrize(
    "around",
    [
        lambda f: f, jax.jit, lambda f: lambda x: jax.vmap(f)(x[None]), lambda f: jax.grad(lambda x: f(x).sum()),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    ],
    ids=["direct", "jit", "vmap", "grad", "jvp"],
)  # fmt: skip
def test_debug_nans_of_calls_in_array_code(function: Any, around: Any) -> None:
    @qd.jit
    def f(x):
        between = function(x[...])
        for i in qd.range(x.shape[0]):
            x[i] += 1
        return x * between

    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        around(f)(arange(4))


@pytest.mark.parametrize(
    "context",
    [
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.numpy_rank_promotion("raise"),
        jax.checking_leaks,
        lambda: jax.enable_checks(True),
        lambda: jax.transfer_guard("disallow"),
    ],
    ids=["strict promotion", "no rank promotion", "leaks", "checks", "transfers"],
)
@pytest.mark.usefixtures("young_heap")
def test_strict_modes_of_jax(context: Any) -> None:
    @qd.jit
    def f(x, s):
        total = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            c = qd.local(x[i])
            for _ in qd.range(3):
                c += s
            with qd.when(c.value > 2):
                total[()] += c.value
            x[i] = c.value
        half = total[()] / 2
        for i in qd.range(x.shape[0]):
            x[i] = x[i] - half
        return x, total

    x, s = jnp.arange(4.0), jnp.float32(2)
    with context():
        got, total = f(x, s)
    np.testing.assert_array_equal(got, np.arange(4) + 6 - 15)
    assert float(total) == 30


@pytest.mark.cpu
def test_export() -> None:
    from jax import export

    x = arange(5)
    checks = [export.DisabledSafetyCheck.custom_call("qdtrace_program")]
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


@pytest.mark.full
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


@pytest.mark.full
def test_scan_carries_are_updated_in_place() -> None:
    @jax.jit
    def f(x):
        return jax.lax.fori_loop(0, 3, lambda _, c: affine(c), x)

    text = f.lower(jax.ShapeDtypeStruct((1 << 20,), jnp.float32)).compile().memory_analysis()
    assert text.temp_size_in_bytes < 1 << 20  # no second array of 4 MiB
    np.testing.assert_array_equal(f(jnp.zeros(5)), np.full(5, 7))


# ---------------------------------------------------------------------- caches
@pytest.mark.full
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
