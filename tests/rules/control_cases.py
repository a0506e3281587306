"""Cases of rules for control flow, calls and functions with rules of their own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .points import COMPLEX, FLOATS, between
from .table import SCALAR, SMALL, array, case, without

INEXACT = (*FLOATS[2:], *COMPLEX)
V, ONE = array("n", points=between(-1, 1)), array()
TAME = array(points=between(-1, 1))
SIZES = (SCALAR, *SMALL)
SUMS = "rounding of the steps before"


def _body(c: Any, v: Any) -> Any:
    return c * v + c, jnp.stack([c, v])


def _halved(x: Any) -> Any:
    """A loop whose number of steps depends on the operand, with an array as state."""
    size = lambda s: jnp.sum(jnp.abs(s))  # noqa: E731
    return lax.while_loop(lambda s: size(s) > 0.5, lambda s: s * (s.dtype.type(0.5) - s / 8), x)


case("cond", lambda c, x, y: lax.cond(c, lambda a, b: a * b, lambda a, b: a - b, x, y), array(dtype=np.bool_), V, V,
     sizes=SIZES)  # fmt: skip
case("cond", lambda i, x: lax.switch(i, [lambda v: v, lambda v: v * v, lambda v: -v], x),
     array(dtype=np.int32, points=between(-1, 5)), V, sizes=SIZES)  # fmt: skip
case("while", _halved, V, sizes=SIZES, among=INEXACT, ulps=512, why=SUMS)
case("while", lambda x: lax.fori_loop(0, jnp.asarray(5), lambda k, s: s * x + s, x), V, sizes=SIZES, among=INEXACT)
case("scan", lambda c, x: lax.scan(_body, c, x), TAME, V, sizes=SMALL, ulps=512, why=SUMS)
case("scan", lambda c, x: lax.scan(lambda s, v: (s * v, s), c, x, reverse=True), V, array(7, points=between(-1, 1)),
     sizes=SMALL, ulps=512, why=SUMS)  # fmt: skip
case("scan", lambda x: lax.fori_loop(0, 9, lambda k, s: s.at[k % s.shape[0]].multiply(s[0]), x),
     array("n+1", points=between(-1, 1)), sizes=SMALL, ulps=512, why=SUMS)  # fmt: skip
case("jit", lambda x, y: jax.jit(lambda a, b: a * b + b)(x, y), array("n"), array("n"), sizes=SIZES)
case("remat2", lambda x: jax.checkpoint(lambda v: v * v * v)(x), array("n"), sizes=SIZES)
case("custom_vmap_call", lambda x: jax.custom_batching.sequential_vmap(lambda v: v * v)(x), V, sizes=SIZES)
case("platform_index", lambda x: lax.platform_dependent(x, cpu=lambda v: v * v, default=lambda v: v), V, sizes=SIZES)


@jax.custom_jvp
def ruled(x: Any, y: Any) -> Any:
    """A product with an untrue slope."""
    return x * y


ruled.defjvp(lambda p, t: (ruled(*p), 3 * t[0] * p[1] + t[1] * p[0]))


@jax.custom_vjp
def backward(x: Any, y: Any) -> Any:
    """A product with an untrue backward function."""
    return x * y


backward.defvjp(lambda x, y: (x * y, (x, y)), lambda r, g: (3 * g * r[1], g * r[0]))
case("custom_jvp_call", ruled, array("n"), array("n"), sizes=SIZES, among=(*FLOATS, *COMPLEX))
case("custom_jvp_call", lambda x: jax.nn.relu(x) + jax.nn.softplus(x), array("n"), sizes=SIZES, among=FLOATS)
case("custom_vjp_call custom_lin", backward, array("n"), array("n"), sizes=SIZES, among=(*FLOATS, *COMPLEX))


def _solved(a: Any, b: Any) -> Any:
    return lax.custom_linear_solve(lambda v: a * v, b, lambda _, c: c / a, lambda _, c: c / a)


case("custom_linear_solve", _solved, array("n", points=between(0.5, 2)), array("n"), sizes=SIZES,
     among=("float32", "float64", *COMPLEX))  # fmt: skip
case("pure_callback", lambda x: jax.pure_callback(lambda v: v, x, x, vmap_method="expand_dims"), ONE, sizes=(SCALAR,))

without("closed_call eval_jaxpr call_hi_primitive", "what other supported releases of JAX wrap jaxprs in")
without("debug_callback debug_print", "an effect: tests/printing")
without("io_callback", "an effect: tests/importer/test_refusals.py")
without(
    "qd_accum qd_accum_along qd_alloc qd_assign qd_atomic qd_buffer qd_check qd_inside qd_lget qd_load qd_local "
    "qd_lset qd_reach qd_read qd_store",
    "a marker of this package: tests/importer/test_markers.py, tests/autodiff",
)
