"""Cases of rules that work number by number."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import ad_util
from jax._src.lax import lax as private
from jax.ad_checkpoint import checkpoint_name

from .points import COMPLEX, FLOATS, SIGNED, UNSIGNED, between
from .table import OTHER_RELEASE, SCALAR, SIZES, array, case, elementwise, without

CANCELS = "real formulas of complex functions cancel digits near their zeros"
ZEROS = "near its zeros XLA gives roundings of one"
SERIES = "a hundred steps of a series or a continued fraction, on another lgamma"
NUMBERS = (SCALAR, *SIZES)
FEW = (SCALAR, 2, 17, 0, 1, 16, 40)
"""Sizes for functions whose code is long."""

elementwise("acos acosh asin atanh", ulps=512, why=CANCELS, cut="real")
elementwise("asinh atan", ulps=512, why=CANCELS, cut="imaginary")
elementwise("log log1p log2 rsqrt sqrt", ulps=256, why=CANCELS, cut="real")
elementwise("cos cosh exp exp2 expm1 logistic sin sinh tan tanh", ulps=256, why=CANCELS)
elementwise("abs cbrt ceil clz conj erf erfc floor is_finite neg population_count sign square real imag")
elementwise("erf_inv", ulps=512, why="steep near the ends of its domain")
elementwise("lgamma digamma", ulps=512, why=ZEROS, sizes=FEW, costly=True,
            differs="the slope of digamma at infinity is NaN in JAX, and zero here")  # fmt: skip
elementwise("bessel_i0e bessel_i1e", sizes=FEW, costly=True, ulps=256, why="another series than JAX's")
elementwise("bitwise_not", rule="not")
elementwise("add sub mul max min eq ne ge gt le lt", 2)
elementwise("div atan2", 2, ulps=256, why=CANCELS)
elementwise("pow", 2, ulps=256, why=CANCELS, differs="where powers overflow XLA multiplies infinities by zeros")
elementwise("rem nextafter complex mulhi", 2)
for _power in (3, -2, 7):
    case("integer_pow", lambda x, y=_power: lax.integer_pow(x, y), array("n"), sizes=NUMBERS, ulps=256, why=CANCELS)
case("pow", lambda x: lax.pow(x, np.int32(3)), array("n"), sizes=NUMBERS, ulps=256, why=CANCELS)
elementwise("bitwise_and", 2, rule="and")
elementwise("bitwise_or", 2, rule="or")
elementwise("bitwise_xor", 2, rule="xor")
elementwise("shift_left shift_right_arithmetic shift_right_logical", 2, points=between(0, 7))
case("add_any", lambda x, y: ad_util.add_any_p.bind(x, y), array("n"), array("n"), sizes=NUMBERS)
for _name in ("eq_to", "lt_to", "le_to"):
    _primitive: Any = getattr(private, f"{_name}_p")
    case(_name, lambda x, y, p=_primitive: p.bind(x, y), array("n"), array("n"), sizes=NUMBERS,
         among=(*FLOATS, *SIGNED, *UNSIGNED))  # fmt: skip
for _method in lax.RoundingMethod:
    case("round", lambda x, m=_method: lax.round(2 * x, m), array("n"), sizes=NUMBERS)
case("clamp", lax.clamp, array("n"), array("n"), array("n"), sizes=NUMBERS)
case("clamp", lambda x: lax.clamp(x.dtype.type(0), x, x.dtype.type(1)), array("n"), sizes=NUMBERS)
_WHICH = array("n", dtype=np.bool_)
case("select_n", lax.select_n, _WHICH, array("n"), array("n"), sizes=NUMBERS)
_CHOICE = array("n", dtype=np.int32, points=between(0, 3), kinds=("argument", "memory", "view", "spread"))
case("select_n", lax.select_n, _CHOICE, array("n"), array("n"), array("n"), sizes=NUMBERS)
for _to in ("float16", "float32", "float64", "int32", "uint8", "bool", "complex64", "complex128"):
    _sources = (*FLOATS, *SIGNED, *UNSIGNED, "bool") if _to not in ("int32", "uint8", "bool") else (*SIGNED, *FLOATS)
    case(
        "convert_element_type", lambda x, d=_to: lax.convert_element_type(x, d), array("n", points=between(0, 9)),
        sizes=NUMBERS, among=_sources if "complex" not in _to else (*FLOATS, "complex64", "complex128"),
    )  # fmt: skip
case("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, np.uint32), array("n"), among=("float32", "int32"))
case("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, np.uint8), array("n"), sizes=(2, 17, 0, 40))
for _bits in ((5, 10), (8, 7), (8, 23), (4, 3), (8, 10)):
    case(
        "reduce_precision", lambda x, b=_bits: lax.reduce_precision(x, *b), array("n"),
        sizes=NUMBERS, among=("float32", "float64"),
    )  # fmt: skip
case("name", lambda x: checkpoint_name(x, "here") * 2, array("n"), sizes=NUMBERS)
case("copy", lambda x: jnp.copy(x), array("n"), sizes=NUMBERS)
case("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), array("n"), array(), sizes=NUMBERS)
case("device_put", lambda x: jax.device_put(x), array("n"), sizes=NUMBERS)
case("stop_gradient", lambda x: lax.stop_gradient(x) * x, array("n"), sizes=NUMBERS)
# a table that a lane looks numbers up in changes how its derivatives are made
_TABLE = np.linspace(1.0, 2.0, 20)
_PLACE = array(dtype=np.int32, points=between(0, 20), kinds=("argument", "view"))
case("stop_gradient", lambda x, i: lax.stop_gradient(x) * x * jnp.asarray(_TABLE.astype(x.dtype))[i], array("n"),
     _PLACE, sizes=NUMBERS, among=(*FLOATS, *COMPLEX))  # fmt: skip

# functions of more than one number, on the domains where both agree to many digits
_SHAPE, _POSITIVE = array("n", points=between(0.3, 4)), array("n", points=between(0.1, 5))
_LONG: dict[str, Any] = {"sizes": (SCALAR, 2, 17), "among": ("float32", "float64"), "why": SERIES, "costly": True}
case("igamma", lax.igamma, _SHAPE, _POSITIVE, ulps=4096, **_LONG)
case("igammac", lax.igammac, _SHAPE, _POSITIVE, ulps=4096, **_LONG)
case("igamma_grad_a", lax.igamma_grad_a, _SHAPE, _POSITIVE, ulps=1e5, **_LONG)
case("regularized_incomplete_beta", lambda x: lax.betainc(jnp.full_like(x, 1.5), jnp.full_like(x, 3), x),
     array("n", points=between(0.1, 0.9)), ulps=1e4, **_LONG)  # fmt: skip
case("zeta", lambda x: lax.zeta(jnp.full_like(x, 2.5), x), _POSITIVE, ulps=512, **_LONG)
case("polygamma", lambda x: lax.polygamma(jnp.full_like(x, 2), x), _POSITIVE, ulps=512, **_LONG)

without("polynomial one_minus_square", OTHER_RELEASE)
without("pvary reshard layout_constraint sharding_constraint", "says where an array is kept, and is the operand")
