"""Random loops whose carried arrays change places: for `jax.lax`, for private arrays, and for NumPy, which copies.

An iteration gives each array another one's content, in any order and possibly twice, changed at a traced index, in a
slice, in a branch, by an inner loop, or not at all. Values are whole numbers that f32 holds, and all that is computed
is linear in the arguments, so NumPy's values and differences are exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import qdtrace as qd

SIZES = (*range(1, 31), 64, 256, 257, 300)
CHANGES = (
    "none", "none", "set", "add", "slice", "part", "sum", "reverse", "roll", "branch", "choice", "inner", "fill",
    "captured", "row",
)  # fmt: skip
LOOPS = ("constant", "traced", "while", "scan", "scan back", "rows", "masked", "short")
STARTS = ("argument", "computed", "again", "by a call", "captured", "reversed")


class Lax:
    """Operations as JAX has them."""

    np = jnp

    @staticmethod
    def put(a: Any, k: Any, value: Any) -> Any:
        return a.at[k].set(value)

    @staticmethod
    def add(a: Any, k: Any, value: Any) -> Any:
        return a.at[k].add(value)

    @staticmethod
    def put_slice(a: Any, k: Any, values: Any) -> Any:
        return lax.dynamic_update_slice(a, values, (k, *[0] * (a.ndim - 1)))

    @staticmethod
    def branch(test: Any, on_true: Any, on_false: Any, *operands: Any) -> Any:
        return lax.cond(test, on_true, on_false, *operands)

    @staticmethod
    def call(fn: Any, *operands: Any) -> Any:
        return jax.jit(fn)(*operands)

    @staticmethod
    def loop(kind: str, count: int, limit: Any, body: Any, state: Any, rows: Any) -> tuple[Any, Any]:
        match kind:
            case "constant":
                return lax.fori_loop(0, count, lambda i, s: body(i, s, None)[0], state), ()
            case "traced":
                return lax.fori_loop(0, limit, lambda i, s: body(i, s, None)[0], state), ()
            case "while" | "masked":
                step = lambda t: (t[0] + 1, body(t[0], t[1], None)[0])  # noqa: E731
                return lax.while_loop(lambda t: t[0] < limit, step, (jnp.int32(0), state))[1], ()
        reverse = kind == "scan back"
        xs = (jnp.arange(count), rows)
        return lax.scan(lambda s, x: body(x[0], s, x[1] if kind == "rows" else None), state, xs, reverse=reverse)


class Cells(Lax):
    """Loops of this package, whose arrays are private arrays: all are read, then each is stored."""

    @staticmethod
    def loop(kind: str, count: int, limit: Any, body: Any, state: Any, rows: Any) -> tuple[Any, Any]:
        leaves, tree = jax.tree.flatten(state)
        cells = [qd.local(a) for a in leaves]

        def step(i: Any) -> None:
            left, _ = body(i, jax.tree.unflatten(tree, [c.value for c in cells]), None)
            for c, value in zip(cells, jax.tree.leaves(left), strict=True):
                c.value = value

        if kind == "while":
            k = qd.local(0)
            for _ in qd.while_(lambda: k.value < limit):
                step(k.value)
                k.value = k.value + 1
        else:
            for i in qd.range(limit if kind == "traced" else count):
                step(i)
        return jax.tree.unflatten(tree, [c.value for c in cells]), ()


class Numpy:
    """The same operations, each of which gives a new array."""

    np = np

    @staticmethod
    def put(a: Any, k: Any, value: Any) -> Any:
        out = a.copy()
        out[k] = value
        return out

    @staticmethod
    def add(a: Any, k: Any, value: Any) -> Any:
        out = a.copy()
        out[k] += value
        return out

    @staticmethod
    def put_slice(a: Any, k: Any, values: Any) -> Any:
        k = min(k, len(a) - len(values))
        return np.concatenate([a[:k], values, a[k + len(values) :]])

    @staticmethod
    def branch(test: Any, on_true: Any, on_false: Any, *operands: Any) -> Any:
        return (on_true if test else on_false)(*operands)

    @staticmethod
    def call(fn: Any, *operands: Any) -> Any:
        return fn(*operands)

    @staticmethod
    def loop(kind: str, count: int, limit: Any, body: Any, state: Any, rows: Any) -> tuple[Any, Any]:
        stops = int(limit) if kind in ("traced", "while", "masked") else count
        steps: list[Any] = [()] * stops
        for i in reversed(range(stops)) if kind == "scan back" else range(stops):
            state, steps[i] = body(i, state, rows[i] if kind == "rows" else None)
        if kind in ("constant", "traced", "while", "masked"):
            return state, ()
        return state, tuple(map(np.stack, zip(*steps, strict=True)))


@dataclass(frozen=True)
class Change:
    """What an iteration does with one array before it takes its place."""

    kind: str
    other: int
    """Index of an array that it reads, too."""
    at: int
    step: int

    def __call__(self, lib: Any, i: Any, arrays: Sequence[Any], a: Any, extra: Any, row: Any) -> Any:
        other, n = arrays[self.other], a.shape[0]
        k, j, half = (self.at + i * self.step) % n, (self.at + i) % n, max(n // 2, 1)
        match self.kind:
            case "set":
                return lib.put(a, k, other[j] + 3)
            case "add":
                return lib.add(a, k, other[j] + i)
            case "slice":
                return lib.put_slice(a, k, other[:half])
            case "part":
                return lib.add(a, slice(half), other[n - half :] + 1)
            case "sum":
                return a + other
            case "reverse":
                return a[::-1]
            case "roll":
                return lib.np.concatenate([a[1:], a[:1]])
            case "branch":
                return lib.branch((i + self.at) % 2 == 0, lambda a, b: lib.add(a, k, 5), lambda a, b: b, a, other)
            case "choice":
                return lib.np.where((i + self.at) % 2 == 0, a, other)
            case "inner":
                exchange = lambda t, s, _: ((s[1], lib.add(s[0], (k + t) % n, 2)), ())  # noqa: E731
                return lib.loop("constant", 1 + 2 * self.step, 0, exchange, (a, other), None)[0][self.at % 2]
            case "fill":
                return lib.np.broadcast_to(other[j], a.shape)
            case "captured":
                return lib.add(extra, k, 1)
            case "row" if row is not None:
                return row
        return a


@dataclass(frozen=True)
class Exchange:
    """A program of one loop."""

    shape: tuple[int, ...]
    dtype: str
    loop: str
    starts: tuple[str, ...]
    places: tuple[int, ...]
    """Which array, after its change, takes each place."""
    changes: tuple[Change, ...]
    scalar: bool
    """Whether a number is carried as well, which changes places with an element."""
    called: bool
    """Whether the body is a function that is called."""
    count: int

    def __call__(self, lib: Any, x: Any, limit: Any) -> Any:
        """Returns what the loop leaves; `x` has the arrays, one more, and the rows of `scan`."""
        many = len(self.places)
        extra, rows = x[many], x[many + 1 :]
        first = lib.np.cumsum(x[0], axis=0, dtype=x.dtype)
        state = []
        for k, start in enumerate(self.starts):
            match start:
                case "computed":
                    value = x[k] + 1
                case "again":
                    value = first
                case "by a call":
                    value = lib.call(lambda a: a, first)
                case "captured":
                    value = extra
                case "reversed":
                    value = first[::-1]
                case _:
                    value = x[k]
            state.append(value)
        number = extra.reshape(-1)[0]

        def body(i: Any, carried: Any, row: Any) -> Any:
            arrays, number = carried
            changed = [c(lib, i, arrays, a, extra, row) for c, a in zip(self.changes, arrays, strict=True)]
            left = [changed[p] for p in self.places]
            if self.scalar:
                k = ((i * 3 + 1) % self.shape[0], *[0] * (len(self.shape) - 1))
                number, left[0] = arrays[-1][k], lib.put(left[0], k, number)
            return (tuple(left), number), (arrays[0], left[-1][0])

        called = body if not self.called else lambda i, s, row: lib.call(body, i, s, row)
        masked = self.loop == "masked"
        return lib.loop(self.loop, self.count, limit if not masked else limit % 3, called, (tuple(state), number), rows)


def drawn_exchange(rng: np.random.Generator) -> Exchange:
    """Returns a random program."""
    many = int(rng.integers(2, 5))
    size = int(rng.choice(SIZES)) if rng.integers(4) else int(rng.choice([64, 256, 257, 300]))
    shape = (size,) if rng.integers(4) else ((2, size), (size, 2))[rng.integers(2)]
    permuted = rng.permutation(many) if rng.integers(4) else rng.integers(many, size=many)
    starts = ["argument"] * many if rng.integers(2) else rng.choice(STARTS, many).tolist()
    quiet = 0.5 if rng.integers(2) else 0.0
    changes = tuple(
        Change(
            "none" if rng.random() < quiet else str(rng.choice(CHANGES)), int(rng.integers(many)), int(rng.integers(9)),
            int(rng.integers(3)),
        )
        for _ in range(many)
    )  # fmt: skip
    loop = str(rng.choice(LOOPS))
    return Exchange(
        shape, str(rng.choice(["f32", "f32", "f32", "i32", "c64"])), loop, tuple(starts), tuple(map(int, permuted)),
        changes, bool(rng.integers(4) == 0), bool(rng.integers(4) == 0),
        int(rng.integers(1, 4)) if loop == "short" else int(rng.integers(5, 8)),
    )  # fmt: skip


DTYPES = {"f32": np.float32, "i32": np.int32, "c64": np.complex64}


def arguments(program: Exchange, lanes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns the arrays of each lane, and how often its loop runs where that is not constant."""
    shape = (lanes, len(program.places) + 1 + program.count, *program.shape)
    x = rng.integers(-9, 10, shape).astype(DTYPES[program.dtype])
    if program.dtype == "c64":
        x = x + np.complex64(1j) * rng.integers(-9, 10, shape)
    return x.astype(DTYPES[program.dtype]), rng.integers(0, 6, lanes).astype(np.int32)


def as_lane(program: Exchange, lib: Any = Lax) -> Callable[..., Any]:
    """Returns the program as a function of one lane; of two loops under one mask, where it is masked."""
    if lib is Cells:
        return lambda x, limit: program(Cells, x, limit)
    if program.loop != "masked":
        return lambda x, limit: program(Lax, x, limit)
    both = jax.vmap(lambda x, limit: program(Lax, x, limit))
    return lambda x, limit: both(jnp.stack([x, x * 2]), jnp.stack([limit, limit + 1]))


def by_numpy(program: Exchange, x: np.ndarray, limit: np.ndarray) -> list[np.ndarray]:
    """Returns the results of all lanes."""

    def one(x: np.ndarray, limit: Any) -> list[Any]:
        return jax.tree.leaves(program(Numpy, x, limit))

    def lane(x: np.ndarray, limit: Any) -> list[Any]:
        if program.loop != "masked":
            return one(x, limit)
        return [np.stack(pair) for pair in zip(one(x, limit), one(x * x.dtype.type(2), limit + 1), strict=True)]

    each = [lane(row, n) for row, n in zip(x, limit, strict=True)]
    return [np.stack(leaf) for leaf in zip(*each, strict=True)]
