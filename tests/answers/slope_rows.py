"""Answers that surprise in slopes: corners, ties, branches, complex numbers, updates, rules."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .rows import INF, LAX, NAN, NUMPY, ask, c64, f32, pairs
from .value_rows import ROWS

__all__ = ["POWERS_AT_0", "POWERS_SAID", "ROWS"]

# Slopes at corners.

for _name, _f, _x, _value, _slope in (
    ("clip, above", lambda x: jnp.clip(x, 0.0, 1.0), 1, 1, 0.5),
    ("clip, below", lambda x: jnp.clip(x, 0.0, 1.0), 0, 0, 0.5),
    ("clip to one number", lambda x: jnp.clip(x, 1.0, 1.0), 1, 1, 0.25),
    ("lax.clamp", lambda x: lax.clamp(np.float32(0), x, np.float32(1)), 1, 1, 0),
    ("maximum", lambda x: jnp.maximum(x, 0.0), 0, 0, 0.5),
    ("relu", jax.nn.relu, 0, 0, 0),
    ("relu6", jax.nn.relu6, 6, 6, 0),
    ("hard_tanh", jax.nn.hard_tanh, 1, 1, 1),
    ("hard_sigmoid", jax.nn.hard_sigmoid, 3, 1, 0),
    ("leaky_relu", jax.nn.leaky_relu, 0, 0, 1),
    ("abs", jnp.abs, 0, 0, 1),
    ("abs of NaN", jnp.abs, NAN, NAN, -1),
    ("sign", jnp.sign, 0, 0, 0),
    ("log-density of Laplace", jax.scipy.stats.laplace.logpdf, 0, -np.log(2), -1),
):
    ask(
        f"slope of {_name}",
        _f,
        f32(_x),
        value=[_value],
        slopes=[[_slope]],
        along=[_slope],
        source=f"{LAX} and jax/_src/nn/functions.py",
        said={
            "clip, above": "slopes at a bound of `clip`, `maximum`: 0.5; `lax.clamp`, `relu`: 0; `hard_tanh`: 1",
            "abs": "slope of `abs` at 0: 1, not 0 (so of L1 norms and `laplace.logpdf`); at NaN: -1",
        }.get(_name, ""),
    )
ask(
    "hypot",
    jnp.hypot,
    *pairs((0, 0), (1e30, 1e30), (1e-30, 1e-30), (INF, 1), (3, 4)),
    value=[0, 1.4142135e30, 1.4142135e-30, INF, 5],
    slopes=[[0.5, 1.0606601, -INF, NAN, 0.6], [0.5, 1.0606601, -INF, NAN, 0.8]],
    newer={"slopes": [[NAN, 0.70710677, 0.70710677, NAN, 0.6], [NAN, 0.70710677, 0.70710677, 0, 0.8]]},
    source=f"{NUMPY}/ufuncs.py: hypot",
    said="slopes of `hypot` in jax 0.10.2: 1.06 at (1e30, 1e30), -inf at (1e-30, 1e-30), 0.5 at the origin; "
    "in 0.12: 0.7071, 0.7071, NaN",
)
for _ord, _slope in ((None, NAN), (1, 1), (INF, 0.25), (-INF, 0.5)):
    ask(
        f"norm {_ord} of zeros",
        lambda v, o=_ord: jnp.linalg.norm(v, ord=o),
        np.zeros((1, 2), np.float32),
        value=[0],
        slopes=[[[_slope] * 2]],
        along=[2 * _slope],
        source=f"{NUMPY}/linalg.py: norm",
        said="slopes of norms at the origin: 2: NaN, 1: 1, inf: 0.25, -inf: 0.5" * (_ord is None),
    )
ask(
    "powers of zero",
    lambda x, y: x**y,
    *pairs((0, 1), (0, 0), (0, 2), (0, -1), (0, 0.5), (-1, 2)),
    value=[0, 1, 0, INF, 0, 1],
    slopes=[[1, NAN, 0, -INF, INF, -2], [0, 0, 0, NAN, 0, NAN]],
    along=[1, NAN, 0, NAN, INF, NAN],
    source=f"{LAX}: _pow_jvp_lhs and _pow_jvp_rhs",
    said="slopes of `x**y` at (0, 0): NaN by x, 0 by y",
)
ask(
    "logaddexp",
    jnp.logaddexp,
    *pairs((INF, INF), (-INF, -INF), (INF, -INF), (0, -INF)),
    value=[INF, -INF, INF, 0],
    slopes=[[1, NAN, 1, 1], [1, NAN, 0, 0]],
    along=[2, NAN, 1, 1],
    source=f"{NUMPY}/ufuncs.py: _logaddexp_jvp",
)
ask(
    "logsumexp",
    jax.nn.logsumexp,
    f32([-INF, -INF], [INF, 0], [0, 0]),
    value=[-INF, INF, np.log(2)],
    slopes=[[[NAN, NAN], [NAN, 0], [0.5, 0.5]]],
    along=[NAN, NAN, 1],
    source="jax/_src/ops/special.py: logsumexp",
)
ask(
    "xlogy", jax.scipy.special.xlogy, *pairs((0, 0)), value=[0], slopes=[[-INF], [NAN]], along=[NAN], source="xlogy_jvp"
)
ask(
    "kl_div",
    jax.scipy.special.kl_div,
    *pairs((0, 0), (0, 1), (1, 1)),
    value=[0, 1, 0],
    slopes=[[-1, -1, 0], [1, 1, 0]],
    newer={"slopes": [[0, 0, 0], [1, 1, 0]]},
    source="jax/_src/scipy/special.py: kl_div of rel_entr; in 0.12 _rel_entr_jvp, whose slope by q is 1 where p is 0",
)
ask(
    "prod of zeros",
    jnp.prod,
    f32([0, 2, 3], [0, 0, 3]),
    value=[0, 0],
    slopes=[[[6, 0, 0], [0, 0, 0]]],
    along=[6, 0],
    source=f"{LAX}: _reduce_prod_jvp_rule",
)
ask(
    "cumprod of zeros",
    lambda v: jnp.cumprod(v).sum(),
    f32([0, 2, 3], [0, 0, 3]),
    value=[0, 0],
    slopes=[[[9, 0, 0], [1, 0, 0]]],
    along=[9, 1],
    source="jax/_src/lax/control_flow/loops.py: cumprod",
)

# Ties and NaN.

_ONES = f32([1, 1, 1])
for _name, _f, _slope in (
    ("max", jnp.max, [1 / 3] * 3),
    ("sort", lambda v: jnp.sort(v)[-1], [0, 0, 1]),
    ("argmax", lambda v: v[jnp.argmax(v)], [1, 0, 0]),
    ("reduce_window", lambda v: lax.reduce_window(v, -INF, lax.max, (3,), (1,), "VALID")[0], [1, 0, 0]),
    ("lax.reduce", lambda v: lax.reduce(v, np.float32(-INF), lambda a, b: lax.max(a, b), (0,)), [0.25, 0.5, 0.25]),
    ("cummax", lambda v: lax.cummax(v)[-1], [0.25, 0.25, 0.5]),
):
    ask(
        f"ties of {_name}",
        _f,
        _ONES,
        value=[1],
        slopes=[[_slope]],
        along=[1],
        source=f"{LAX}: rules of maxima",
        said="three equal maxima: `max` shares (1/3 each), `sort` and `argmax` take one, `lax.cummax` 1/4, 1/4, 1/2"
        * (_name == "max"),
    )
ask(
    "ties of updates",
    lambda v: jnp.ones(1, np.float32).at[jnp.zeros(3, int)].max(v)[0],
    _ONES,
    value=[1],
    slopes=[[[0.25] * 3]],
    along=[0.75],
    source="jax/_src/lax/slicing.py: _scatter_extremal_jvp",
)
for _name, _f in (("max", jnp.max), ("min", jnp.min)):
    ask(
        f"{_name} of NaN",
        _f,
        f32([NAN, 1, 2]),
        value=[NAN],
        slopes=[[[NAN] * 3]],
        along=[NAN],
        compiled={"slopes": [[[0] * 3]]},
        source=f"{LAX}: _reduce_chooser_jvp_rule divides 0 by 0; XLA compiles it to 0",
        said="gradients of `max` and `min` where one element is NaN: NaN, as eager; `jax.jit` gives 0"
        * (_name == "max"),
    )

# Branches.

for _name, _f, _value, _slope in (
    ("cond, sqrt", lambda x: lax.cond(x > 0, jnp.sqrt, lambda x: 0 * x, x), [0, 2], [0, 0.25]),
    ("cond, log", lambda x: lax.cond(x > 0, jnp.log, lambda x: 0 * x, x), [0, np.log(4)], [0, 0.25]),
    (
        "switch",
        lambda x: lax.switch((x > 0).astype(int), [lambda x: 0 * x, lambda x: 1 / x], x),
        [0, 0.25],
        [0, -0.0625],
    ),
):
    ask(
        f"a batch of {_name}",
        _f,
        f32(0, 4),
        value=_value,
        slopes=[_slope],
        along=_slope,
        source="jax/_src/lax/control_flow/conditionals.py: the branch not taken gets no slope",
        said="slopes of a batched `cond` where the other branch has none: those of the one taken; of `where`: NaN"
        * (_name == "cond, sqrt"),
    )
ask(
    "a batch of where",
    lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0),
    f32(0, 4),
    value=[0, 2],
    slopes=[[NAN, 0.25]],
    along=[0, 0.25],
    source=f"{LAX}: select is linear in both sides, and 0 times inf is NaN",
)

# Complex numbers.


ask(
    "abs of an infinite number",
    jnp.abs,
    c64(complex(NAN, INF), 3 + 4j),
    value=[INF, 5],
    compiled={"value": {"older": [NAN, 5]}},
    source="XLA: hypot; C99 says inf",
    said="`abs(complex(nan, inf))`: inf, as in C and jax 0.12; jax 0.10.2 gives NaN",
)
ask(
    "sqrt below the cut",
    jnp.sqrt,
    c64(complex(-1, -0.0)),
    value=[-1j],
    compiled={"value": [1j]},
    source="XLA: sqrt of complex numbers",
    said="`sqrt(-1 - 0j)`: -1j, as NumPy; JAX gives 1j, though its `log` is on the other side of the cut",
)
ask("log below the cut", jnp.log, c64(complex(-1, -0.0)), value=[-np.pi * 1j], source="XLA: log of complex numbers")
ask(
    "gradient of abs**2",
    lambda z: jnp.abs(z) ** 2,
    c64(1 + 2j),
    value=[5],
    slopes=[[2 - 4j]],
    source="convention of JAX",
)
ask("gradient of abs at 0", jnp.abs, c64(0), value=[0], slopes=[[0]], source=f"{LAX}: _abs_jvp_rule")
ask(
    "gradient of sign",
    lambda z: jnp.sign(z).real,
    c64(3 + 4j),
    value=[0.6],
    slopes=[[0]],
    newer={"slopes": [[0.128 + 0.096j]]},
    source=f"{LAX}: sign has no rule for complex numbers in 0.10.2",
)

# Updates.

for _name, _value, _of_x, _of_v in (
    ("set", 23, [0, 2, 0], [0, 1, 3, 0]),
    ("add", 34, [1, 2, 3], [1, 1, 3, 0]),
    ("min", 14, [0.5, 2, 3], [0.5, 0, 0, 0]),
    ("max", 23, [0, 2, 0], [0, 1, 3, 0]),
):
    ask(
        f"indices that repeat, {_name}",
        lambda x, v, n=_name: (getattr(x.at[jnp.array([0, 0, -1, 5])], n)(v) * jnp.arange(1.0, 4)).sum(),
        f32([1, 2, 3]),
        f32([1, 4, 5, 6]),
        value=[_value],
        slopes=[[_of_x], [_of_v]],
        source="jax/_src/lax/slicing.py: scatter",
        said="updates at an index that repeats: the last `set` stays and has the slope; an index outside is dropped"
        * (_name == "set"),
    )

# Functions with rules.


@jax.custom_batching.custom_vmap
def _other_in_a_batch(x: Any) -> Any:
    return 2 * x


@_other_in_a_batch.def_vmap
def _(axis_size: int, in_batched: Any, x: Any) -> Any:
    return 5 * x, True


ask(
    "custom_vmap",
    _other_in_a_batch,
    f32(3),
    value=[6],
    compiled={"value": [15]},
    source="jax/_src/custom_batching.py",
    said="`jax.custom_batching.custom_vmap`: the function, not its rule: a lane is no batch",
)
ask(
    "probabilities between integers",
    lambda x: jax.scipy.stats.poisson.logpmf(x, 1.0),
    f32(1.5),
    value=[-INF],
    source="jax/_src/scipy/stats/poisson.py",
)
ask(
    "probabilities of binom between integers",
    lambda x: jax.scipy.stats.binom.logpmf(x, 3, 0.5),
    f32(1.5),
    value=[-0.857047],
    source="jax/_src/scipy/stats/binom.py",
    rtol=1e-5,
    said="`poisson.logpmf(1.5)` is -inf, `binom.logpmf(1.5, ...)` a number (SciPy: -inf)",
)

POWERS_AT_0 = [
    (0.0, [1, NAN, NAN, NAN, NAN]),
    (1.0, [0, 1, NAN, NAN, NAN]),
    (2.0, [0, 0, 2, NAN, NAN]),
    (3.0, [0, 0, 0, 6, NAN]),
    (2, [0, 0, 2, 0, 0]),
]
"""An exponent, and the derivatives of its power at 0, by order."""
POWERS_SAID = (
    "derivatives at 0 of `x**2.0` from the third, of `x**1.0` from the second, of `x**0.0` from the first: NaN; "
    "of `x**2`: right"
)
