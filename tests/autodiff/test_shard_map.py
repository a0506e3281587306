"""Derivatives of and in `jax.shard_map` over two devices, with and without its check of what varies."""

from tests.api.programs import in_process

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
import qdtrace as qd
from jax.sharding import PartitionSpec as P
mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

@qd.jit
def f(x, c):
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] = jnp.sin(x[i]) * c
    return out

@qd.jit
def loop(x, c):
    k = qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: k[()] < 3):
        for i in qd.range(x.shape[0]):
            x[i] = jnp.sin(x[i] * c)
        k[()] += 1
    return x

x = np.linspace(0, 1, 8).astype(np.float32)
want = jax.grad(lambda x, c: ((jnp.sin(x) * c) ** 2).sum(), (0, 1))(x, 2.0)
wanted = jax.grad(lambda x, c: (jnp.sin(c * jnp.sin(c * jnp.sin(c * x))) ** 2).sum(), (0, 1))(x, 2.0)
for check in (False, True):
    spread = dict(mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=check)
    outer = jax.shard_map(f, **spread)
    got = jax.jit(jax.grad(lambda x, c: (outer(x, c) ** 2).sum(), (0, 1)))(x, 2.0)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    inside = jax.shard_map(jax.grad(lambda x, c: (f(x, c) ** 2).sum()), **spread)
    np.testing.assert_allclose(inside(x, 2.0), want[0], rtol=1e-5)
    outer = jax.shard_map(loop, **spread)
    got = jax.jit(jax.grad(lambda x, c: (outer(x, c) ** 2).sum(), (0, 1)))(x, 2.0)
    for a, b in zip(got, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    print("right", check)
"""


def test_over_two_devices():
    out = in_process(SCRIPT, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert out.split("\n")[:2] == ["right False", "right True"]
