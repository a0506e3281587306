"""Answers that surprise in values: integers, indices, rounding, sorting, random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .rows import INF, LAX, NAN, NUMPY, ROWS, ask, f32

__all__ = ["ROWS"]

# Integers.

for _dtype, _of_seven in (("int8", -1), ("int32", -1), ("uint8", 255), ("uint32", 4294967295)):
    _signed = _dtype.startswith("i")
    _points = np.array([7, 0, -7 if _signed else 9, np.iinfo(_dtype).min], _dtype), np.zeros(4, _dtype)
    ask(f"lax.div by zero, {_dtype}", lax.div, *_points, value=[_of_seven] * 4, source="XLA: integer division")
    ask(f"lax.rem by zero, {_dtype}", lax.rem, *_points, value=_points[0].tolist(), source="XLA: integer division")
    ask(
        f"// by zero, {_dtype}",
        lambda a, b: a // b,
        *_points,
        value=[-2, -1, -2, -2] if _signed else [_of_seven] * 4,
        source=f"{NUMPY}/ufuncs.py: floor_divide",
        said="integers `x // 0`: -2, or -1 where x is 0; of unsigned ones all bits; `x % 0` is 0" * (_dtype == "int32"),
    )
    ask(f"% by zero, {_dtype}", lambda a, b: a % b, *_points, value=[0] * 4, source=f"{NUMPY}/ufuncs.py: remainder")
ask(
    "powers of integers",
    lambda a, b: a**b,
    np.array([3, 2, -1, -1, 1, 0], np.int32),
    np.array([65, -1, -1, -2, -5, -1], np.int32),
    value=[3, 0, -1, 1, 1, 0],
    source=f"{NUMPY}/ufuncs.py: _pow_int_int, six bits of the exponent",
    said="integers to the power of an integer array: six bits of the exponent count (`3**65` is 3), and `2**-1` is 0",
)
ask(
    "to int8",
    lambda x: x.astype(jnp.int8),
    f32(300, -300, NAN, INF, -INF, 1.9, -1.9),
    value=[127, -128, 0, 127, -128, 1, -1],
    source="XLA: convert saturates",
    said="floats to integers: saturate, and NaN is 0",
)
ask("to uint8", lambda x: x.astype(jnp.uint8), f32(300, -300, NAN, -1.5), value=[255, 0, 0, 0], source="XLA: convert")
ask(
    "to int32",
    lambda x: x.astype(jnp.int32),
    f32(3e9, -3e9, NAN),
    value=[2147483647, -2147483648, 0],
    source="XLA: convert",
)

# Narrow indices.

_ROWS200 = np.arange(400, dtype=np.float32).reshape(2, 200)
ask(
    "take with an index of int8",
    jnp.take,
    _ROWS200,
    np.array([-1, 100], np.int8),
    value=[NAN, 300],
    source=f"{NUMPY}/indexing.py: -1 + 200 wraps in int8",
    said="`jnp.take(x, k)` with k = -1 of int8 and 200 elements: NaN, and `x[k]` is the first element (200 is no int8)",
)
ask(
    "a scalar index of int8",
    lambda x, k: x[k],
    _ROWS200,
    np.array([-1, 100], np.int8),
    value=[0, 300],
    is_checked=True,
    source=f"{NUMPY}/indexing.py: a dynamic slice",
)
ask(
    "take_along_axis of int8",
    lambda x, k: jnp.take_along_axis(x, k, 0)[0],
    _ROWS200,
    np.array([[-1], [100]], np.int8),
    value=[199, 300],
    source=f"{NUMPY}/indexing.py: take_along_axis widens",
)
ask(
    "fori_loop from int8",
    lambda k: lax.fori_loop(k, 200, lambda _, s: s + 1, 0.0),
    np.zeros(1, np.int8),
    value=[0],
    source="jax/_src/lax/control_flow/loops.py: bounds have one dtype",
    said="`lax.fori_loop(k, 200, ...)` from k of int8: no iteration, as 200 is no int8",
)

# Gathers.

ask(
    "a promised scalar index",
    lambda x, k: x.at[k].get(mode="promise_in_bounds"),
    np.array([[1, 2, 3]] * 3, np.float32),
    np.array([5, -1, 2], np.int32),
    value=[3, 3, 3],
    source=f"{NUMPY}/indexing.py: a dynamic slice clamps",
)
for _dtype, _fill in (("uint8", 255), ("int8", -128), ("bool", True), ("complex64", complex(NAN, 0)), ("float32", NAN)):
    ask(
        f"what fills, {_dtype}",
        lambda x, k: x.at[k].get(mode="fill")[0],
        np.ones((2, 3), _dtype),
        np.array([[7], [1]], np.int32),
        value=[_fill, np.ones((), _dtype)],
        source=f"{LAX}: _get_min_identity and _gather_fill",
    )

# Floats.

ask(
    "f32 by bf16 and back",
    lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    f32(1.000244, 1.005),
    value=[1.0, 1.0078125],
    source="XLA: no excess precision on CPUs",
)
ask(
    "reduce_precision of small numbers",
    lambda x: lax.reduce_precision(x, 5, 10),
    f32(1e-5, 6.2e-5, 65519, 65520),
    value=[0, 6.198883056640625e-05, 65504, INF],
    source="XLA: ReducePrecision flushes numbers below the smallest normal one of the format",
    said="`lax.reduce_precision(x, 5, 10)` below 6.1e-5: 0, where `astype(float16)` keeps the number",
)
ask(
    "reduce_precision to bf16 of small numbers",
    lambda x: lax.reduce_precision(x, 8, 7),
    f32(3e38),
    value=[3.00405527047391e38],
    source="XLA: ReducePrecision",
)
ask(
    "adding a constant and taking it away",
    lambda x: (x + np.float32(12582912)) - np.float32(12582912),
    f32(1.3, 2.6),
    value=[1, 3],
    compiled={"value": {"older": [1.3, 2.6]}},
    source="XLA folds the constants in jax 0.10.2, not in 0.12",
    said="`(x + c) - c`, `(x * 1e30) * 1e-30`: as eager; `jax.jit` of jax 0.10.2 folds the constants",
)
ask(
    "multiplying by constants",
    lambda x: (x * np.float32(1e30)) * np.float32(1e-30),
    f32(1e10, 2),
    value=[INF, 2],
    compiled={"value": {"older": [1e10, 2]}},
    source="XLA folds the constants in jax 0.10.2, not in 0.12",
)
ask(
    "multiplying bf16 by constants",
    lambda x: (x * jnp.bfloat16(1.203125)) * jnp.bfloat16(1.296875),
    np.array([0.126, 0.6406], jnp.bfloat16),
    value=[0.197265625, 1.0],
    compiled={"value": [0.1962890625, 0.99609375]},
    source="rules/floats.py: float_mul_constants; XLA folds so in f16 and f32, not in bf16",
    said="`(x * 1.2) * 1.3`: one product, as `jax.jit`, also of bf16, where JAX has two. Two without `fast_math`",
)
ask(
    "interp at a knot beside an infinity",
    lambda x: jnp.interp(x, jnp.array([0.0, 1, 2]), jnp.array([0.0, 1, INF])),
    f32(1, 0.5, 2),
    value=[NAN, 0.5, INF],
    source=f"{NUMPY}/lax_numpy.py: _interp multiplies 0 by inf",
    said="`jnp.interp` at a knot whose right neighbour is infinite: NaN (NumPy: the knot's value)",
)
ask(
    "discriminant of a double root",
    lambda b: b * b - 4 * (b / 2) * (b / 2) > -1e-7,
    f32(0.3, 0.7),
    value=[True, True],
    source="rounding of a fused multiply and add",
    said="`cross` of parallel vectors, `b*b - 4*a*c` of a double root: the rounding of a product, as `jax.jit`; "
    "its square root may be NaN. Without `fast_math` 0",
)

# Sorting.

ask(
    "top_k of zeros and NaN",
    lambda x: lax.top_k(x, 3)[1],
    f32([-0.0, 0, NAN], [0, -0.0, 1], [NAN, -INF, np.copysign(NAN, -1)]),
    value=[[2, 1, 0], [2, 0, 1], [0, 1, 2]],
    source="XLA: the total order of IEEE 754",
    said="`lax.top_k`: NaN first, -NaN last, 0.0 before -0.0; `argsort(descending=True)`: NaN first, zeros are equal",
)
ask(
    "argsort in falling order",
    lambda x: jnp.argsort(x, descending=True),
    f32([-0.0, 0, NAN], [0, -0.0, 1], [3, NAN, 5]),
    value=[[2, 0, 1], [2, 0, 1], [1, 2, 0]],
    source=f"{NUMPY}/sorting.py",
)

# Random numbers.

_SEEDS = np.array([0, 5], np.uint32)
ask(
    "fold_in and split",
    lambda s: jnp.all(
        jax.random.key_data(jax.random.fold_in(jax.random.key(s), 1))
        == jax.random.key_data(jax.random.split(jax.random.key(s), 3)[1])
    ),
    _SEEDS,
    value=[True, True],
    source="jax/_src/random/threefry2x32.py: partitionable keys",
)
ask(
    "five numbers begin with three",
    lambda s: (
        jnp.max(jnp.abs(jax.random.normal(jax.random.key(s), (5,))[:3] - jax.random.normal(jax.random.key(s), (3,))))
        < 1e-6
    ),
    _SEEDS,
    value=[True, True],
    source="jax/_src/random/threefry2x32.py: partitionable keys",
)
