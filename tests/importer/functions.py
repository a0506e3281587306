"""Random functions of small arrays with the parameters that JAX primitives have: axes, orders, dimensions, modes, index
dtypes, directions, constants of every dtype.

All numbers are small integers, also in floats and complex numbers, so results are exact in any order of evaluation.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ROWS = 3
SHAPES = ((), (3,), (2, 3), (3, 2, 2), (5,), (3, 3))
DTYPES = (np.float32, np.int32, np.complex64)
INDEX_DTYPES = (np.int32, np.int8, np.uint8, np.uint32, np.int16)
MODES = ("clip", "fill", "promise_in_bounds", None)
MOST = 40
"""Most elements of a value; larger ones are not used on."""


def small(x: Any) -> Any:
    """The value with its numbers brought back to a few units, exactly."""
    if jnp.iscomplexobj(x):
        return lax.complex(small(x.real), small(x.imag))
    return lax.rem(x, np.asarray(8, x.dtype)) if x.dtype != np.bool_ else x


def index(x: Any, count: int, dtype: Any) -> Any:
    """Some elements of a value as indices, one without an axis for a count of 0; some are out of bounds."""
    found = jnp.real(x).reshape(-1).astype(np.int32).astype(dtype) - np.asarray(2, dtype)
    return found[:count] if count else found[0]


@dataclass
class Function:
    """Steps over a growing list of values, which are its results."""

    arguments: list[tuple[tuple[int, ...], Any]]
    steps: list[tuple[str, Any, tuple[int, ...]]] = field(default_factory=list)

    def __call__(self, *values: Any) -> list[Any]:
        pool = [jnp.asarray(v) for v in values]
        for _, fn, operands in self.steps:
            pool.append(small(fn(*(pool[k] for k in operands))))
        return pool[len(values) :]

    def __repr__(self) -> str:
        return f"{self.arguments} -> {'; '.join(f'{name}{operands}' for name, _, operands in self.steps)}"


class Generator:
    """Draws one function."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        arguments = [(self.one(SHAPES), self.one(DTYPES)) for _ in range(self.number(2, 4))]
        self.function = Function(arguments)
        self.pool = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arguments]

    def one(self, options: Any) -> Any:
        return self.random.choice(tuple(options))

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def operand(self, least_rank: int = 0, where: Any = lambda v: True) -> int | None:
        fitting = [k for k, v in enumerate(self.pool) if len(v.shape) >= least_rank and v.size <= MOST and where(v)]
        return self.one(fitting) if fitting else None

    def step(self) -> None:
        """Adds a step of a kind that fits; some draws fit no value and add nothing."""
        kind = self.one(KINDS)
        made = getattr(self, f"make_{kind}")()
        if made is None:
            return
        fn, *operands = made
        if any(k is None for k in operands):
            return
        self.function.steps.append((kind, fn, tuple(operands)))
        self.pool.append(jax.eval_shape(lambda *v: small(fn(*v)), *(self.pool[k] for k in operands)))

    # ------------------------------------------------------------------ structure
    def axis(self, k: int) -> int:
        return self.number(0, len(self.pool[k].shape) - 1)

    def permutation(self, k: int) -> tuple[int, ...]:
        rank = len(self.pool[k].shape)
        return tuple(self.random.sample(range(rank), rank))

    def axes(self, k: int) -> tuple[int, ...]:
        rank = len(self.pool[k].shape)
        return tuple(d for d in range(rank) if self.number(0, 1))

    def make_reshape(self) -> Any:
        k = self.operand()
        if k is None:
            return None
        size = self.pool[k].size
        target = self.one([(size,), (1, size), *[(n, size // n) for n in (2, 3) if size % n == 0]])
        if self.number(0, 1):
            return lambda x: x.reshape(target, order="F"), k
        order = self.permutation(k)
        return lambda x: lax.reshape(x, target, dimensions=order), k

    def make_transpose(self) -> Any:
        k = self.operand(1)
        if k is None:
            return None
        order = self.permutation(k)
        return lambda x: lax.transpose(x, order), k

    def make_rev(self) -> Any:
        k = self.operand()
        if k is None:
            return None
        axes = self.axes(k)
        return lambda x: lax.rev(x, axes), k

    def make_slice(self) -> Any:
        k = self.operand(1)
        if k is None:
            return None
        cut = []
        for n in self.pool[k].shape:
            start = self.number(0, n - 1) if n else 0
            cut.append((start, self.number(start, n), self.number(1, 3)))
        return lambda x: lax.slice(x, *zip(*cut, strict=True)), k

    def make_pad(self) -> Any:
        k = self.operand(1)
        if k is None:
            return None
        config = []
        for n in self.pool[k].shape:
            low, high, inner = self.number(-1, 2), self.number(-1, 2), self.number(0, 1)
            config.append((low, high, inner) if n >= 2 else (0, 1, 0))
        fill = self.number(-2, 2)
        return lambda x: lax.pad(x, np.asarray(fill).astype(x.dtype), config), k

    def make_join(self) -> Any:
        k = self.operand(1)
        if k is None:
            return None
        axis, stacks = self.axis(k), self.number(0, 1)
        join = jnp.stack if stacks else jnp.concatenate
        return lambda x: join([x, 2 * x, x], axis), k

    def make_broadcast(self) -> Any:
        k = self.operand()
        if k is None or len(self.pool[k].shape) > 1:
            return None
        shape, extent = self.pool[k].shape, self.number(1, 3)
        at = self.number(0, 1)
        target = (*shape, extent) if at else (extent, *shape)
        dims = tuple(d + (0 if at else 1) for d in range(len(shape)))
        return lambda x: lax.broadcast_in_dim(x, target, dims), k

    # ------------------------------------------------------------------ elementwise
    def make_constant(self) -> Any:
        k, name = self.operand(), self.one(("add", "sub", "mul"))
        constant = self.one((2, 3.0, 1j, 2 - 1j, np.float32(2), np.complex64(1 + 2j), np.int8(3), np.array([1j, 2])))
        fn = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply}[name]
        if np.ndim(constant) and k is not None:
            return lambda x: fn(x[..., None], constant), k
        return lambda x: fn(x, constant), k

    def make_both(self) -> Any:
        k = self.operand()
        if k is None:
            return None
        shape = self.pool[k].shape
        other = self.operand(0, lambda v: v.shape in (shape, ()))
        fn = self.one((jnp.add, jnp.multiply, lambda a, b: jnp.where(a == b, a, 1), jnp.subtract))
        return fn, k, other

    def make_convert(self) -> Any:
        k = self.operand(0, lambda v: v.dtype.kind != "c")
        dtype = self.one((*DTYPES, np.int8, np.uint16, np.float16, jnp.bfloat16, np.bool_))

        def convert(x: Any) -> Any:
            if np.dtype(dtype).kind == "u" and x.dtype.kind == "f":
                x = abs(x)  # what becomes of a negative float is not defined
            return lax.convert_element_type(x, dtype) + np.asarray(1, np.int32 if dtype == np.bool_ else dtype)

        return convert, k

    def make_integer_pow(self) -> Any:
        k, y = self.operand(0, lambda v: v.dtype != np.bool_), self.number(0, 4)
        return lambda x: lax.integer_pow(x, y), k

    def make_round(self) -> Any:
        k, method = self.operand(0, lambda v: v.dtype.kind == "f"), self.one(lax.RoundingMethod)
        return lambda x: lax.round(x * np.asarray(0.5, x.dtype), method), k

    def make_mulhi(self) -> Any:
        k = self.operand(0, lambda v: v.dtype.kind in "iu")
        return lambda x: lax.mulhi(x * np.asarray(77, x.dtype), ~x), k

    # ------------------------------------------------------------------ reductions, order
    def make_reduce(self) -> Any:
        k = self.operand(1)
        if k is None:
            return None
        axes, fn = self.axes(k), self.one((jnp.sum, jnp.max, jnp.min, jnp.prod))
        return lambda x: fn(x, axis=axes, initial=1), k

    def make_cumulative(self) -> Any:
        k = self.operand(1, lambda v: v.dtype != np.bool_)
        if k is None:
            return None
        axis, reverse = self.axis(k), bool(self.number(0, 1))
        fn = self.one((lax.cumsum, lax.cumprod, lax.cummax, lax.cummin))
        return lambda x: fn(x, axis=axis, reverse=reverse), k

    def make_arg(self) -> Any:
        k = self.operand(1, lambda v: v.dtype.kind != "c" and 0 not in v.shape)
        if k is None:
            return None
        axis, dtype, fn = self.axis(k), self.one((np.int32, np.int8, np.uint32)), self.one((lax.argmax, lax.argmin))
        return lambda x: fn(x, axis, dtype), k

    def make_sort(self) -> Any:
        k = self.operand(1)
        if k is None:
            return None
        axis, keys, stable = self.axis(k), self.number(1, 2), bool(self.number(0, 1))
        if keys == 2:
            return lambda x: lax.sort((x, lax.rev(x, (0,))), dimension=axis, num_keys=2)[1], k
        return lambda x: lax.sort(x, dimension=axis, is_stable=stable), k

    def make_top_k(self) -> Any:
        k = self.operand(1, lambda v: v.dtype.kind in "if" and min(v.shape) >= 2)
        if k is None:
            return None
        axis, count, which = self.axis(k), self.number(1, 2), self.number(0, 1)
        return lambda x: lax.top_k(x, count, axis=axis)[which], k

    def make_dot(self) -> Any:
        k = self.operand(1, lambda v: v.dtype.kind in "ifc")
        if k is None:
            return None
        axis, batch = self.axis(k), self.number(0, 1)
        batches = tuple(d for d in range(len(self.pool[k].shape)) if d != axis)[:batch]
        precision = self.one((None, lax.Precision.HIGHEST))
        numbers = (((axis,), (axis,)), (batches, batches))
        return lambda x: lax.dot_general(x, x, numbers, precision=precision), k

    # ------------------------------------------------------------------ indices
    def make_get(self) -> Any:
        k, at = self.operand(1, lambda v: v.size), self.operand(0, lambda v: v.size)
        count = self.number(0, 3)
        mode, dtype, fill = self.one(MODES), self.one(INDEX_DTYPES), self.one((None, 3, 0))
        axis = 0 if k is None else self.axis(k)
        fill = fill if mode == "fill" else None

        def get(x: Any, i: Any) -> Any:
            i = index(i, count, dtype)
            return x.at[(slice(None),) * axis + (i,)].get(mode=mode, fill_value=fill)

        return get, k, at

    def make_set(self) -> Any:
        k, at = self.operand(1, lambda v: v.size), self.operand(0, lambda v: v.size)
        count = self.number(0, 3)
        mode, dtype = self.one(MODES), self.one(INDEX_DTYPES)
        mode = "drop" if mode == "fill" else mode
        how = self.one(("set", "add", "mul", "min", "max", "apply"))
        if k is None or (how in ("min", "max") and self.pool[k].dtype == np.bool_):
            return None
        axis = self.axis(k)

        def change(x: Any, i: Any) -> Any:
            i = index(i, count, dtype)
            place = x.at[(slice(None),) * axis + (i,)]
            if how == "apply":
                return place.apply(lambda v: v * v, mode=mode)
            # at equal places `set` may take any: one value for all
            return getattr(place, how)(np.asarray(2, x.dtype), mode=mode)

        return change, k, at

    def make_dynamic_slice(self) -> Any:
        k, at = self.operand(1), self.operand(0, lambda v: v.size)
        dtype = self.one(INDEX_DTYPES)
        if k is None or 0 in self.pool[k].shape:
            return None
        sizes = tuple(self.number(1, n) for n in self.pool[k].shape)
        updates = self.number(0, 1)

        def window(x: Any, i: Any) -> Any:
            starts = [index(i, 0, dtype) - np.asarray(d, dtype) for d in range(x.ndim)]
            if updates:
                return lax.dynamic_update_slice(x, lax.slice(x, (0,) * x.ndim, sizes), starts)
            return lax.dynamic_slice(x, starts, sizes)

        return window, k, at

    # ------------------------------------------------------------------ control flow
    def make_scan(self) -> Any:
        k = self.operand(1, lambda v: v.dtype.kind in "ifc")
        reverse, unroll, wants = bool(self.number(0, 1)), self.number(1, 2), self.number(0, 1)

        def fn(x: Any) -> Any:
            start = jnp.zeros(x.shape[1:], x.dtype)
            return lax.scan(lambda c, v: (small(v - c), small(c * v)), start, x, reverse=reverse, unroll=unroll)[wants]

        return fn, k

    def make_loop(self) -> Any:
        k, low, high = self.operand(0, lambda v: v.dtype.kind in "ifc"), self.number(-1, 2), self.number(0, 6)
        return lambda x: lax.fori_loop(low, high, lambda i, c: small(c + x * i.astype(x.dtype)), x), k

    def make_switch(self) -> Any:
        k, at = self.operand(), self.operand(0, lambda v: v.size)
        branches = [lambda v: v, lambda v: small(v * v), lambda v: v[::-1] if v.ndim else v]
        return lambda x, i: lax.switch(index(i, 0, np.int32), branches, x), k, at


KINDS = tuple(name.removeprefix("make_") for name in vars(Generator) if name.startswith("make_"))
KINDS += ("get", "set", "set", "switch", "loop", "dynamic_slice", "constant", "sort", "convert", "mulhi")


def function(seed: int, steps: int = 12) -> Function:
    """A random function of two to four arrays."""
    generator = Generator(seed)
    while len(generator.function.steps) < steps:
        generator.step()
    return generator.function


def operands(function: Function, seed: int) -> list[np.ndarray]:
    """Rows of small integers for the arguments of a function."""
    rng = np.random.default_rng(seed)
    drawn = lambda shape: rng.integers(-4, 5, (ROWS, *shape)).astype(np.float32)  # noqa: E731
    return [
        (drawn(shape) + 1j * drawn(shape) if np.dtype(dtype).kind == "c" else drawn(shape)).astype(dtype)
        for shape, dtype in function.arguments
    ]
