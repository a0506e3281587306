"""Cases of rules that put elements together: sums, extremes, orders, contractions, windows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .points import FLOATS, SIGNED, UNSIGNED, between
from .table import MATRIX, SMALL, array, case

V, A = array("n"), array(2, "n")
TAME = between(-2, 2)
SPREADS = "JAX's derivatives of these go by associative_scan, which spreads NaN to elements that do not depend on it"
ORDER = "sums and products in another order than XLA's"
NEAR_ONE = array("n", points=between(0.5, 1.5))

for _rule, _fn in {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}.items():
    _sizes = (2, 17, 40, 1, 16, 256, 257, 5000) if _rule in ("max", "min") else (2, 17, 40, 0, 1, 16, 256, 257, 5000)
    _sizes = SMALL if _rule == "prod" else _sizes
    case(f"reduce_{_rule}", lambda x, f=_fn: f(x, axis=-1, **_promoted(f, x)), A, sizes=_sizes, ulps=512, why=ORDER)
    case(f"reduce_{_rule}", lambda x, f=_fn: f(x, axis=0, **_promoted(f, x)), A, sizes=SMALL, ulps=512, why=ORDER)
case("reduce_and", lambda x: lax.reduce(x, _all(x), lax.bitwise_and, (1,)), A)
case("reduce_or", lambda x: lax.reduce(x, x.dtype.type(0), lax.bitwise_or, (1,)), A)
case("reduce_xor", lambda x: lax.reduce(x, x.dtype.type(0), lax.bitwise_xor, (1,)), A)
case("argmax argmin", lambda x: (lax.argmax(x, 1, np.int32), lax.argmin(x, 0, np.int32)), array(2, "n+1"),
     among=(*FLOATS, *SIGNED, *UNSIGNED, "bool"))  # fmt: skip
case("cumsum cumprod", lambda x: (lax.cumsum(x, 1), lax.cumprod(x, 0)), A, sizes=SMALL, ulps=512, why=ORDER,
     differs=SPREADS)  # fmt: skip
case("cumsum", lambda x: lax.cumsum(x, reverse=True), V, sizes=(257, 256), ulps=512, why=ORDER, differs=SPREADS)
case("cummax cummin", lambda x: (lax.cummax(x, 1), lax.cummin(x, 0, reverse=True)), A, sizes=SMALL,
     differs=SPREADS)  # fmt: skip
case("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), A, sizes=SMALL, ulps=512, why=ORDER, differs=SPREADS,
     costly=True)  # fmt: skip
case("sort", lambda x: lax.sort(x), V, sizes=(2, 17, 0, 1, 16, 40, 256, 257))
case(
    "sort", lambda x, y: lax.sort((x, y), num_keys=1), array("n", dtype=np.int32, points=between(0, 3)), V, sizes=SMALL
)
case("sort", lambda x, y: lax.sort((x, y), num_keys=2), V, array("n"), sizes=SMALL)
case("top_k", lambda x: lax.top_k(x, 2), array(2, "n+1"), sizes=(2, 17, 1, 16, 40))
# which of two equal elements is taken is not said
case(
    "approx_top_k", lambda x: lax.approx_max_k(x, 1)[0], array("n+1", points=between(-2, 2)), sizes=SMALL, among=FLOATS
)
T = array("n", points=TAME)
case("dot_general", lambda x, y: lax.dot(x, y), T, T, ulps=1024, why=ORDER)
case("dot_general", lambda x, y: x @ y, array("n", 3, points=TAME), array(3, "n", points=TAME), sizes=SMALL,
     ulps=1024, why=ORDER)  # fmt: skip
_BATCHED = (((1,), (2,)), ((0,), (0,)))
case("dot_general", lambda x, y: lax.dot_general(x, y, _BATCHED), array(2, "n", 3, points=TAME),
     array(2, 3, "n", points=TAME), sizes=MATRIX, ulps=1024, why=ORDER)  # fmt: skip
_HALF = {"complex64": np.float32, "complex128": np.float64, "float64": np.float32, "float32": np.int32}
_M, _N = (array(*shape, points=TAME, dtype=lambda d: _HALF[d.name]) for shape in ((3, "n"), ("n",)))
case("dot_general", lambda x, y: lax.dot(x, y), _M, T, sizes=SMALL, among=(*_HALF,), ulps=1024, why=ORDER)
case("dot_general", lambda x, y: lax.dot(x, y, preferred_element_type=x.dtype), array(3, "n", points=TAME), _N,
     sizes=SMALL, among=(*_HALF,), ulps=1024, why=ORDER)  # fmt: skip
_WIDER = {"complex64": np.complex128, "float32": np.float64, "float16": np.float32}
case("dot_general", lambda x, y: lax.dot(x, y, preferred_element_type=_WIDER[x.dtype.name]), T, T, among=(*_WIDER,),
     ulps=1024, why=ORDER)  # fmt: skip
case("reduce", lambda x: lax.reduce(x, x.dtype.type(0), lambda a, b: a + b + a * b, (1,)),
     array(2, "n", points=between(-0.2, 0.2)), sizes=SMALL, ulps=512, why=ORDER)  # fmt: skip


def _promoted(fn: Any, x: Any) -> dict[str, Any]:
    """Keeps narrow numbers narrow."""
    return {"dtype": x.dtype} if fn in (jnp.sum, jnp.prod) and x.dtype != np.bool_ else {}


def _all(x: Any) -> Any:
    return x.dtype.type(True) if x.dtype == np.bool_ else np.array(-1).astype(x.dtype)[()]


UNORDERED = "which element of a window with a NaN is selected depends on the order of comparisons"
WINDOW: dict[str, Any] = {"window_dimensions": (3,), "window_strides": (2,), "padding": "SAME"}


def _pooled(x: Any, combine: Any) -> Any:
    start = {lax.add: 0, lax.max: -np.inf, lax.min: np.inf}.get(combine, 0)
    return lax.reduce_window(x, x.dtype.type(start), combine, **WINDOW)


def _own(a: Any, b: Any) -> Any:
    return a + b + a * b


case("reduce_window_sum", lambda x: _pooled(x, lax.add), V, sizes=SMALL, ulps=512, why=ORDER)
case("reduce_window_max", lambda x: _pooled(x, lax.max), V, sizes=SMALL, among=FLOATS)
case("reduce_window_min", lambda x: _pooled(x, lax.min), V, sizes=SMALL, among=FLOATS)
case(
    "reduce_window", lambda x: _pooled(x, _own), array("n", points=between(-0.2, 0.2)), sizes=SMALL, ulps=512, why=ORDER
)
case("select_and_scatter_add", lambda x: jax.grad(lambda v: jnp.sum(_pooled(v, lax.max) ** 2))(x), V, sizes=SMALL,
     among=FLOATS, differs=UNORDERED)  # fmt: skip
case("select_and_gather_add", lambda x, t: jax.jvp(lambda v: _pooled(v, lax.max), (x,), (t,))[1], V, V, sizes=SMALL,
     among=FLOATS, differs=UNORDERED)  # fmt: skip
case(
    "conv_general_dilated", lambda x, k: lax.conv_general_dilated(x, k, (1,), [(1, 0)], rhs_dilation=(2,)),
    array(1, 2, "n", points=TAME), array(3, 2, 2, points=TAME), sizes=(5, 17, 3, 40), ulps=1024, why=ORDER,
)  # fmt: skip
case("fft", lambda x: jnp.fft.fft(x), V, sizes=(2, 17, 1, 16, 40, 257), ulps=1024, why=ORDER,
     among=("float32", "float64", "complex64", "complex128"))  # fmt: skip
case("fft", lambda x: jnp.fft.irfft(x), array("n", points=TAME), sizes=(5, 17, 2), ulps=1024, why=ORDER,
     among=("complex64", "complex128"))  # fmt: skip
