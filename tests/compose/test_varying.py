"""Array code between loops under `jax.shard_map`, whose types say what differs among devices: values and gradients."""

from tests.api.programs import in_process

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
import qdtrace as qd
from jax import lax
from jax.sharding import PartitionSpec as P
from qdtrace.compose import by_xla
by_xla._LONG = {"sort": ("dimension", 1, 2), "cumsum": ("axis", 1, 2)}
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

def doubled(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = 2 * x[i]
    return out

@jax.custom_jvp
def own(a):
    return jnp.where(a > 1, a, 0.0)
own.defjvp(lambda p, t: (own(*p), 3.0 * t[0] * p[0]))

@jax.custom_vjp
def pulled(a):
    return jnp.where(a > 1, a, 0.0)
pulled.defvjp(lambda a: (pulled(a), a), lambda a, t: (3.0 * t * a,))

CASES = {
    "a mean in a loop": lambda a: lax.fori_loop(0, 3, lambda i, b: b - 0.1 * lax.pmean(b, "d") * a, a),
    "an exchange in a loop": lambda a: lax.scan(lambda b, _: (lax.ppermute(b, "d", [(0, 1), (1, 0)]) * a, b), a + 0 *
        lax.axis_index("d"), None, length=3)[0],
    "a sum while it is small": lambda a: lax.stop_gradient(
        lax.while_loop(lambda b: lax.psum(b.sum(), "d") < 40, lambda b: 2 * b, a + 1)) * a,
    "a sum in a branch": lambda a: lax.cond(lax.psum(a.sum(), "d") > 3, lambda b: b * lax.pmean(b, "d"), jnp.cos, a),
    "made again": lambda a: jax.checkpoint(lambda b: jnp.sin(b) * jnp.arange(2.0))(a),
    "a rule": lambda a: own(a) * own(jnp.arange(2.0)),
    "a rule of JAX": lambda a: jax.nn.relu(a - 3) + jax.nn.silu(a),
    "a slope in it": lambda a: jax.grad(lambda b: (jax.nn.relu(b - 3) ** 2 * jnp.arange(2.0)).sum())(a),
    "a rule in a loop": lambda a: lax.fori_loop(0, 2, lambda i, b: own(b) + a, a),
    "constants": lambda a: jnp.where(a > 3, a, 0.0),
    "a function of jit": lambda a: jax.jit(lambda b: lax.psum(b, "d") * jnp.sin(b))(a),
    "a loop": lambda a: lax.fori_loop(0, 3, lambda i, b: b * 1.5 + i, a),
    "a while loop": lambda a: lax.stop_gradient(lax.while_loop(lambda b: b.sum() < 40, lambda b: 2 * b, a + 1)) * a,
    "a branch": lambda a: lax.cond(a[0] > 3, lambda b: jnp.sin(b), lambda b: -b, a),
    "a sum": lambda a: lax.psum(a, "d") + a,
    "a mean": lambda a: a - lax.pmean(a, "d"),
    "an exchange": lambda a: lax.ppermute(a, "d", [(0, 1), (1, 0)]),
    "all": lambda a: lax.all_gather(a, "d").sum(0) * a,
    "long sorts and totals": lambda a: jax.jit(lambda b, t: jnp.sort(b * t) + jnp.cumsum(b + t))(a, jnp.arange(2.0)),
    "the number": lambda a: a * (1.0 + lax.axis_index("d")),
}
x = jnp.arange(4.0)
for name, behind in CASES.items():
    def spread(f):
        return jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    got, want = spread(qd.jit(lambda x: behind(doubled(x)[...]))), spread(lambda x: behind(2 * x))
    for make in (jax.jit, lambda f: jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))):
        np.testing.assert_allclose(make(got)(x), make(want)(x), rtol=1e-5, atol=1e-5, err_msg=name)
total = jax.shard_map(
    qd.jit(lambda x: lax.psum(doubled(x)[...].sum(), "d")), mesh=mesh, in_specs=P("d"), out_specs=P()
)
print(total(x))

run = qd.jit(lambda x: pulled(doubled(x)[...]))
print((spread(run)(x) == pulled(2 * x)).all())
for checked in (False, True):
    f = jax.shard_map(run, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=checked)
    try:
        print((jax.grad(lambda x: f(x).sum())(x) == 12 * x).all())
    except qd.UnsupportedError as error:
        print(str(error).splitlines()[0][:60], "help: " + error.help)
"""


def test_over_two_devices() -> None:
    out = in_process(SCRIPT, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    total, value, slope, refused = out.splitlines()
    assert (total, value, slope) == ("12.0", "True", "True")
    assert refused.startswith("the derivative rule of `pulled` between loops is of types")
    assert "check_vma=False" in refused
