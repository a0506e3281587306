"""Steps that random programs are made of: calls of `jnp` and `lax` on values of any shape and dtype.

A step is drawn for values that a program has so far. What JAX itself refuses for them is thrown away (`programs.py`),
so a draw need not ask whether an axis has elements, or whether an operation knows a dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SHAPES = ((), (), (0,), (1,), (3,), (4, 0), (0, 3), (2, 3), (1, 0, 2), (2, 1, 2), (19,), (9, 0, 3), (10, 30))
DTYPES = (
    "bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """A function of some of the values so far, with a name for reports."""

    name: str
    operands: tuple[int, ...]
    function: Callable[..., Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'v{k}' for k in self.operands)})"


class Draw:
    """Choices of a seed, among values with these shapes and dtypes."""

    def __init__(self, rng: np.random.Generator, avals: list[Any]) -> None:
        self.rng, self.avals = rng, avals

    def of(self, choices: Any) -> Any:
        """One of these."""
        return choices[int(self.rng.integers(len(choices)))]

    def some(self, count: int, wanted: Callable[[Any], bool] = lambda a: True) -> tuple[int, ...] | None:
        """Positions of values; the newest are likelier."""
        found = [k for k, a in enumerate(self.avals) if wanted(a)]
        if not found:
            return None
        weights = np.arange(1, len(found) + 1, dtype=float)
        return tuple(int(k) for k in self.rng.choice(found, count, p=weights / weights.sum()))

    def axis(self, k: int) -> int:
        """An axis of a value, from either side."""
        return int(self.rng.integers(-self.avals[k].ndim, max(self.avals[k].ndim, 1)))


def is_key(x: Any) -> bool:
    """True for typed keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def is_number(x: Any) -> bool:
    """True for all that is no key."""
    return not is_key(x)


def tame(x: Any) -> Any:
    """The numbers of a value brought near zero, so that loops stay where they are."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(tame(jnp.real(x)), tame(jnp.imag(x)))
    return jnp.sin(x) if jnp.issubdtype(x.dtype, jnp.floating) else x


def whole(x: Any) -> Any:
    """A scalar of what a value holds, of its dtype."""
    return jnp.sum(tame(x)).astype(x.dtype)


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "square": jnp.square,
    "tame": tame,
    "invert": jnp.invert,
    "isnan": jnp.isnan,
    "real": jnp.real,
    "imag": jnp.imag,
    "conj": jnp.conj,
    "angle": jnp.angle,
    "to complex": lambda x: x + 1j * tame(x),
    "tanh": jnp.tanh,
    "logistic": lambda x: jax.nn.sigmoid(tame(x)),
    "softmax": lambda x: jax.nn.softmax(tame(x)),
    "logsumexp": lambda x: jax.nn.logsumexp(tame(x)),
    "relu": jax.nn.relu,
    "population_count": lax.population_count,
    "clz": lax.clz,
    "bit width": lambda x: lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}")),
    "bytes": lambda x: lax.bitcast_convert_type(x, np.uint8),
    "ravel": jnp.ravel,
    "transpose": jnp.transpose,
    "squeeze": jnp.squeeze,
    "leading axis": lambda x: x[None],
    "atleast_2d": jnp.atleast_2d,
    "empty rows": lambda x: x[..., :0],
    "no rows": lambda x: x[:0],
    "turned": lambda x: x[::-1],
    "last": lambda x: x[-1],
    "every other": lambda x: x[..., ::2],
    "nowhere": lambda x: x[jnp.zeros((0,), jnp.int32)],
    "picked": lambda x: x[np.array([0, -1, 0])],  # traced ones are checked in bodies
    "triu": jnp.triu,
    "trace": jnp.trace,
    "diag": jnp.diag,
    "zeros_like": jnp.zeros_like,
    "product with itself": lambda x: jnp.tensordot(x, x, 1),
    "gram": lambda x: x @ jnp.conj(x).T,
    "outer": lambda x: jnp.outer(x, x),
    "stacked": lambda x: jnp.stack([x, x]),
    "one hot": lambda x: jax.nn.one_hot(x % 3, 3),
    "top_k of nothing": lambda x: lax.top_k(x, 0)[0],
    "var": lambda x: jnp.var(tame(x)),
    "median": lambda x: jnp.median(tame(x)),
    "norm": lambda x: jnp.sqrt(1 + jnp.sum(jnp.abs(tame(x)) ** 2)),
    "segments": lambda x: jax.ops.segment_sum(x, jnp.zeros(x.shape[:1], jnp.int32), 2),
    "no segments": lambda x: jax.ops.segment_sum(x, jnp.zeros(x.shape[:1], jnp.int32), 0),
    "vmap": lambda x: jax.vmap(lambda y: jnp.sum(y) + y)(x),
    "jit": lambda x: jax.jit(lambda y: (y, None, ()))(x)[0],
    "checkpoint": lambda x: jax.checkpoint(lambda y: tame(y) * y)(x),
    "stop_gradient": lax.stop_gradient,
    "inverse": lambda x: jnp.linalg.inv(tame(x) + 3 * jnp.eye(x.shape[0], dtype=x.dtype)),
    "cholesky": lambda x: jnp.linalg.cholesky(tame(x) * 0.1 + 3 * jnp.eye(x.shape[0], dtype=x.dtype)),
    "fft": lambda x: jnp.fft.fft(tame(x)),
    "associative_scan": lambda x: lax.associative_scan(jnp.add, tame(x)),
}


def unary(d: Draw) -> Step | None:
    chosen = d.some(1, is_number)
    if chosen is None:
        return None
    name = d.of(list(UNARY))
    return Step(name, chosen, UNARY[name])


ALONG: dict[str, Callable[..., Any]] = {
    "sum": jnp.sum,
    "prod": lambda x, axis: jnp.prod(tame(x), axis=axis),
    "any": jnp.any,
    "all": jnp.all,
    "max": jnp.max,
    "min": jnp.min,
    "argmax": jnp.argmax,
    "argmin": jnp.argmin,
    "max of none": lambda x, axis: jnp.max(x, axis=axis, initial=x.dtype.type(1)),
    "mean": lambda x, axis: jnp.mean(x, axis=axis),
    "cumsum": jnp.cumsum,
    "cumprod": lambda x, axis: jnp.cumprod(tame(x), axis=axis),
    "cummax": lambda x, axis: lax.cummax(x, axis % x.ndim),
    "sort": jnp.sort,
    "argsort": jnp.argsort,
    "flip": jnp.flip,
    "roll": lambda x, axis: jnp.roll(x, 1, axis),
    "diff": lambda x, axis: jnp.diff(x, axis=axis),
    "expand_dims": jnp.expand_dims,
    "repeat": lambda x, axis: jnp.repeat(x, 2, axis),
    "repeat never": lambda x, axis: jnp.repeat(x, 0, axis),
    "twice": lambda x, axis: jnp.concatenate([x, x], axis),
    "beside nothing": lambda x, axis: jnp.concatenate([x, lax.slice_in_dim(x, 0, 0, axis=axis), x], axis),
    "split": lambda x, axis: jnp.array_split(x, 2, axis)[1],
    "unstacked": lambda x, axis: jnp.stack(jnp.unstack(x, axis=axis), axis),
    "take": lambda x, axis: jnp.take(x, jnp.array([0, 0]), axis, mode="clip"),
    "take nothing": lambda x, axis: jnp.take(x, jnp.zeros((2, 0), int), axis, mode="clip"),
    "moveaxis": lambda x, axis: jnp.moveaxis(x, axis, 0),
    "padded": lambda x, axis: jnp.pad(x, [(1, 0) if k == axis % x.ndim else (0, 0) for k in range(x.ndim)]),
    "sliced": lambda x, axis: lax.dynamic_slice_in_dim(x, 0, x.shape[axis] // 2, axis),
}


def along(d: Draw) -> Step | None:
    chosen = d.some(1, is_number)
    if chosen is None:
        return None
    name, axis = d.of(list(ALONG)), d.axis(chosen[0])
    return Step(f"{name} {axis}", chosen, lambda x: ALONG[name](x, axis=axis))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": lambda x, y: tame(x) * tame(y),
    "div": lambda x, y: tame(x) / (2 + jnp.abs(tame(y))),
    "floor_divide": lambda x, y: x // (1 + (y % 3)),
    "remainder": lambda x, y: x % 5 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.fmod(tame(x), 3),
    "maximum": jnp.maximum,
    "less": jnp.less,
    "equal": jnp.equal,
    "and": jnp.bitwise_and,
    "xor": jnp.bitwise_xor,
    "shift": lambda x, y: jnp.left_shift(x, y % 7),
    "shift back": lambda x, y: jnp.right_shift(x, y % 7),
    "integer power": lambda x, y: tame(x) ** 2 * tame(y),
    "where": lambda x, y: jnp.where(x != 0, y, y + 1),
    "matmul": lambda x, y: jnp.matmul(tame(x), tame(y)),
    "einsum": lambda x, y: jnp.einsum("i...,i...->...", tame(x), tame(y)),
    "kron": lambda x, y: jnp.kron(tame(x), tame(y)),
    "append": jnp.append,
    "concatenate": lambda x, y: jnp.concatenate([x, y]),
    "concatenate last": lambda x, y: jnp.concatenate([x, y], -1),
    "stack": lambda x, y: jnp.stack([x, y]),
    "broadcast": lambda x, y: jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, y.shape)),
    "index": lambda x, y: x[y % 2] if jnp.issubdtype(y.dtype, jnp.integer) else x + y,
    "index here": lambda x, y: x.at[y.astype(jnp.int32) % 2].get(mode="fill", fill_value=0),
    "add at": lambda x, y: x.at[0].add(whole(y).astype(x.dtype)),
    "set rows": lambda x, y: x.at[:1].set(whole(y).astype(x.dtype)),
    "set nothing": lambda x, y: x.at[:0].set(whole(y).astype(x.dtype)),
    "drop": lambda x, y: x.at[whole(y).astype(jnp.int32) % 9].set(x.dtype.type(1), mode="drop"),
    "update slice": lambda x, y: lax.dynamic_update_slice(x, y.astype(x.dtype), [0] * x.ndim),
    "searchsorted": lambda x, y: jnp.searchsorted(jnp.sort(x.ravel()), y),
    "isin": jnp.isin,
    "interp": lambda x, y: jnp.interp(tame(x), jnp.arange(3.0), jnp.arange(3.0) + whole(y)),
    "solve": lambda x, y: jnp.linalg.solve(tame(x) + 3 * jnp.eye(x.shape[0], dtype=x.dtype), tame(y)),
    "convolve": lambda x, y: jnp.convolve(tame(x), tame(y)),
}


def binary(d: Draw) -> Step | None:
    chosen = d.some(2, is_number)
    if chosen is None:
        return None
    name = d.of(list(BINARY))
    return Step(name, chosen, BINARY[name])


def conversion(d: Draw) -> Step | None:
    chosen = d.some(1, is_number)
    if chosen is None:
        return None
    (k,), dtype = chosen, np.dtype(d.of(DTYPES))

    def convert(x: Any) -> Any:
        if x.dtype.kind == "c" and dtype.kind != "c":
            x = jnp.real(x)
        if x.dtype.kind == "f" and dtype.kind in "iu":
            x = jnp.clip(jnp.nan_to_num(x), 0, 100)
        return x.astype(dtype)

    return Step(f"to {dtype}", (k,), convert)


def reshaped(d: Draw) -> Step | None:
    chosen = d.some(1)
    if chosen is None:
        return None
    shape = d.of(SHAPES) if d.rng.random() < 0.5 else (*d.avals[chosen[0]].shape[::-1], d.of((1, 1, -1)))
    return Step(f"reshape {shape}", chosen, lambda x: jnp.reshape(x, shape))


def constant(d: Draw) -> Step | None:
    shape, dtype = d.of(SHAPES), np.dtype(d.of(DTYPES))
    if dtype.kind in "iu" and d.rng.random() < 0.5:
        bounds = np.iinfo(dtype)
        content = np.resize(np.array([bounds.max, bounds.min, 1], dtype), shape)
    else:
        content = np.resize(np.array([0, 1, 2, 3]), shape).astype(dtype)
    return Step(f"constant {dtype}{shape}", (), lambda: jnp.asarray(content))


STEPS = (unary, unary, along, along, binary, binary, conversion, reshaped, constant)
"""Draws of steps without control flow or random numbers; `flow.py` has these."""
