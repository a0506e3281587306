"""Table of calls of each public function of JAX as a lane function: one entry per call, or the reason for none.

`Module("jax.numpy")("roll", F(5), 2, axis=0)` adds a call of `jnp.roll`: an `Operand` becomes an array of lanes, and
anything else is passed as it is. A name in several calls is tested by all of them.
"""

import importlib
import warnings
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

ROWS = 24
"""Lanes of a call."""
SPECIAL = np.array(
    [-np.inf, -1e30, -100.5, -3, -2.5, -2, -1, -0.75, -1e-3, -0.0, 0.0, 1e-3, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 10, 88.5,
     1e30, np.inf, np.nan]
)  # fmt: skip
"""What a real function of one number is asked. Subnormal numbers are left out: threads of XLA flush them to zero."""


@dataclass(frozen=True, eq=False)
class Operand:
    """An array of lanes: `draw(rng, dtype)` gives it for a run in f32 or f64."""

    draw: Any


def _rng(*key: Any) -> np.random.Generator:
    return np.random.default_rng([ord(c) for c in repr(key)])


def numbers(kind: str, shape: tuple[int, ...], low: float = -2, high: float = 2) -> Operand:
    """Floats on a grid of quarters (so that ties happen) and between; a few rows of each kind have special values."""

    def draw(dtype: Any, number: int) -> np.ndarray:
        rng = _rng(kind, shape, number)
        x = rng.uniform(low, high, (ROWS, *shape))
        x[::3] = np.clip(np.round(4 * x[::3]) / 4, low, high)
        if kind == "special":
            flat = x.reshape(ROWS, -1)
            for row, value in enumerate([np.nan, np.inf, -np.inf, 0.0, -0.0]):
                flat[row, rng.integers(flat.shape[1])] = value
            flat[5], flat[6] = 1.0, -0.0
            flat[7, 0], flat[7, -1] = np.inf, -np.inf
        return x.astype(dtype)

    return Operand(draw)


def F(*shape: int) -> Operand:  # noqa: N802 - short names make a table
    """Floats with special values in a few rows."""
    return numbers("special", shape)


def T(*shape: int, low: float = -2, high: float = 2) -> Operand:  # noqa: N802
    """Floats without special values."""
    return numbers("tame", shape, low, high)


def P(*shape: int, low: float = 0.125, high: float = 3) -> Operand:  # noqa: N802
    """Positive floats."""
    return numbers("tame", shape, low, high)


def I(*shape: int, low: int = -5, high: int = 9, dtype: Any = np.int32) -> Operand:  # noqa: N802, E743
    """Integers from low to high - 1."""
    return Operand(lambda _, number: _rng("int", shape, number).integers(low, high, (ROWS, *shape)).astype(dtype))


def B(*shape: int) -> Operand:  # noqa: N802
    """Bools."""
    return Operand(lambda _, number: _rng("bool", shape, number).integers(0, 2, (ROWS, *shape)).astype(bool))


def C(*shape: int) -> Operand:  # noqa: N802
    """Complex numbers without special values."""

    def draw(dtype: Any, number: int) -> np.ndarray:
        rng = _rng("complex", shape, number)
        z = rng.uniform(-2, 2, (ROWS, *shape)) + 1j * rng.uniform(-2, 2, (ROWS, *shape))
        return z.astype(np.result_type(dtype, np.complex64))

    return Operand(draw)


def SQUARE(n: int) -> Operand:  # noqa: N802
    """Well conditioned matrices of norm about one, not symmetric."""
    return Operand(lambda dtype, number: _matrices(n, number).astype(dtype))


def _matrices(n: int, number: int) -> np.ndarray:
    u, _, v = np.linalg.svd(_rng("matrix", n, number).normal(size=(ROWS, n, n)))
    return np.einsum("bij,j,bjk->bik", u, np.linspace(1, 0.4, n), v)


def SPD(n: int) -> Operand:  # noqa: N802
    """Symmetric positive definite matrices with eigenvalues that are apart."""

    def draw(dtype: Any, number: int) -> np.ndarray:
        u, _, _ = np.linalg.svd(_rng("spd", n, number).normal(size=(ROWS, n, n)))
        return np.einsum("bij,j,bkj->bik", u, np.linspace(1, 0.4, n), u).astype(dtype)

    return Operand(draw)


def KEY() -> Operand:  # noqa: N802
    """Data of threefry keys."""
    return Operand(lambda _, number: _rng("key", number).integers(0, 2**32, (ROWS, 2), dtype=np.uint32))


def _given(content: np.ndarray, kind: Any) -> Operand:
    return Operand(lambda dtype, _: content.astype(kind or dtype))


@dataclass(frozen=True, eq=False)
class Call:
    """A function of lanes and its operands."""

    fn: Any
    operands: tuple[Operand, ...]
    invariant: Any = None
    """Of a result that is not unique (eigenvectors up to sign): what of operands and result must agree."""
    ulps: float = 64
    """Largest error in units of the rounding, relative to the size of the result of a lane where `of_lane` is set."""
    of_lane: bool = True
    absolute: float = 0
    """Error that is right whatever the size of the result, in units of the rounding of one."""
    narrow: bool = False
    """JAX itself computes a part in f32, whatever the dtype is."""
    why: str = ""
    """Why more than the usual error is right."""


@dataclass
class Entry:
    """What is known of one function."""

    calls: list[Call] = field(default_factory=list)
    excluded: str = ""


TABLE: dict[str, dict[str, Entry]] = {}


class Module:
    """Adds entries for the functions of one module."""

    def __init__(self, name: str, why: str = "") -> None:
        self.name = name
        self.why = why
        """Reason for wide bounds of calls that give none."""
        self.entries = TABLE.setdefault(name, {})

    def __call__(
        self, names: str, *args: Any, via: Any = None, invariant: Any = None, ulps: float = 64, why: str = "",
        of_lane: bool = True, absolute: float = 0, narrow: bool = False, **static: Any,
    ) -> None:  # fmt: skip
        """Adds a call for each name: of the function itself, or of `via(function, *args)`."""
        leaves, tree = jax.tree.flatten(args, is_leaf=lambda x: x is None)
        places = [k for k, x in enumerate(leaves) if isinstance(x, Operand)]
        operands = tuple(leaves[k] for k in places)
        for name in names.split():

            def fn(*arrays: Any, name: str = name) -> Any:
                filled = list(leaves)
                for k, array in zip(places, arrays, strict=True):
                    filled[k] = array
                ordered = jax.tree.unflatten(tree, filled)
                function = function_of(self.name, name)
                return via(function, *ordered, **static) if via else function(*ordered, **static)

            entry = self.entries.setdefault(name, Entry())
            reason = why or (self.why if ulps > 512 else "")
            entry.calls.append(Call(fn, operands, invariant, ulps, of_lane, absolute, narrow, reason))

    def elementwise(
        self, names: str, arity: int = 1, *, values: Any = SPECIAL, kind: Any = None, **options: Any
    ) -> None:
        """Calls on scalars, vectors and matrices that hold every combination of `values`."""
        grid = np.meshgrid(*[np.asarray(values)] * arity)
        flat = [g.ravel() for g in grid]
        order = _rng("order", arity).permutation(flat[0].size) if arity > 1 else np.arange(flat[0].size)
        shapes: tuple[tuple[int, ...], ...] = ((), (5,), (3, 3))
        start = 0
        while start < flat[0].size:
            for shape in shapes:
                size = ROWS * int(np.prod(shape))
                at = order[np.arange(start, start + size) % flat[0].size]
                start += size
                operands = [_given(f[at].reshape(ROWS, *shape), kind) for f in flat]
                self(names, *operands, of_lane=False, **options)

    def without(self, names: str, reason: str) -> None:
        """Functions that no lane can call, and why."""
        for name in names.split():
            self.entries.setdefault(name, Entry()).excluded = reason


def function_of(module: str, name: str) -> Any:
    """The function; None where this version of JAX has none."""
    try:
        holder: Any = importlib.import_module(module)
    except ImportError:
        parent, _, last = module.rpartition(".")
        holder = getattr(importlib.import_module(parent), last)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(holder, name, None)
