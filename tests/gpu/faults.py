"""Programs that are right for some indices and have a fault for others, and what `debug=True` says of it then."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

X = np.array([0.5, 2.0, 1.5, 4.0], np.float32)
ORDER = np.array([2, 0, 3, 1], np.int32)
FUEL = 3000
"""Iterations that the loop without an end may make."""


def read(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        out[i] = 2 * x[k[i]]
    return out


def write(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        out[k[i]] = 2 * x[i]
    return out


def column(x: Any, k: Any) -> Any:
    out = qd.zeros((2, 4), x.dtype)
    for i, j in qd.ndrange(2, 4):
        out[i, k[j]] = x[j]
    return out[1] + out[0]


def accumulate(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        out[k[i]] += 2 * x[i]
    return out


def atomic(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        qd.atomic_add(out, k[i], 2 * x[i])
    return out


def rows(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        total = qd.local(x[i])
        for j in qd.range(k[i], k[i] + 1):
            total.value += 2 * x[j] - x[i]
        out[i] = total.value
    return out


def bound(x: Any, k: Any) -> Any:
    """The index is outside in the bounds of the loop themselves."""
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        for _ in qd.range(k[k[i]], k[k[i]] + 2):
            out[i] += x[i]
    return out


def private(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        own = qd.local(jnp.zeros(4, x.dtype))
        for j in qd.range(4):
            own[j] = 2 * x[j]
        out[i] = own[k[i]]
    return out


def private_write(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        own = qd.local(jnp.zeros(4, x.dtype))
        own[k[i]] = 2 * x[i]
        out[i] = own[0] + own[1] + own[2] + own[3]
    return out


def meeting(x: Any, k: Any) -> Any:
    """Two iterations store to one element where two indices are equal."""
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        out[k[i]] = 2 * x[i]
    return out


def passing(x: Any, k: Any) -> Any:
    """One iteration reads what another one writes."""
    for i in qd.range(4):
        x[i] = x[k[i]] + x[i]
    return x


def product(x: Any, k: Any) -> Any:
    out = qd.ones(4, x.dtype)
    for i in qd.range(4):
        out[k[i]] *= 2 * x[i]
    return out


def mixed(x: Any, k: Any) -> Any:
    out = qd.ones(4, x.dtype)
    for i in qd.range(4):
        out[i] += 2 * x[i] - 1
        out.at[k[i]].max(x[i])
    return out


def unset(x: Any, k: Any) -> Any:
    some = qd.empty(4, x.dtype)
    for i in qd.range(4):
        with qd.when(k[i] >= 0):
            some[i] = 2 * x[i]
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        out[i] = some[i]
    return out


def unstored(x: Any, k: Any) -> Any:
    """An element of the result: the line is that of the store that leaves it out."""
    out = qd.empty(4, x.dtype)
    for i in qd.range(4):
        with qd.when(k[i] >= 0):
            out[i] = 2 * x[i]
    return out


def checked(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        qd.check(k[i] < 4, "needs an index below 4, 100 % of them")
        out[i] = 2 * x[i]
    return out


def only_checked(x: Any, k: Any) -> Any:
    for i in qd.range(4):
        with qd.when(x[i] > 1):
            qd.check(k[i] < 4, "needs an index below 4")
    return x


def rooted(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        out[i] = jnp.sqrt(x[i] - k[i])
    return out


def divided(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        a = x[i] * 0
        for _ in qd.range(2):
            out[i] += a / k[i]
    return out


def endless(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        left = qd.local(x[i])
        for _ in qd.while_(lambda left=left: left.value > 0):
            left.value = left.value - k[i]
        out[i] = left.value
    return out


def _taken(x: Any, index: Any) -> Any:
    return x[index] * 2


def helped(x: Any, k: Any) -> Any:
    """The line is that of the function that is called."""
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        out[i] = _taken(x, k[i])
    return out


@dataclass(frozen=True)
class Fault:
    """A program with operands that are wrong, and what is said then."""

    function: Callable[..., Any]
    k: tuple[int, ...]
    """Indices that are wrong."""
    said: str
    """A regular expression: of a batch, elements have one more index."""
    code: str
    """In the line that is named."""
    kind: type[qd.QdError] = qd.InterpreterError
    right: tuple[int, ...] = tuple(ORDER)
    want: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda x, k: 2 * x[k]
    options: tuple[tuple[str, Any], ...] = (("debug", True),)
    place: Callable[..., Any] | None = None
    """The function that the line is in; None: the one that is called."""

    @property
    def program(self) -> Any:
        """Compiled anew."""
        return qd.jit(self.function, options=dict(self.options))

    @property
    def at(self) -> str:
        """File, line and function."""
        place = self.place or self.function
        lines, start = inspect.getsourcelines(place)
        (number,) = (start + n for n, text in enumerate(lines) if self.code in text)
        return f"{__file__}:{number} in {place.__name__}"

    def is_in(self, text: str) -> bool:
        """Whether a text tells of it, with the line and what it says."""
        line = rf"  at {re.escape(self.at)}\n      .*{re.escape(self.code)}"
        return re.search(self.said, text) is not None and re.search(line, text) is not None


def outside(function: Callable[..., Any], index: int, code: str, name: str = "x", **rest: Any) -> Fault:
    """An index of four that is not below four."""
    said = re.escape(f"index {index} is out of bounds for axis 0 of `{name}` with shape (4,)")
    return Fault(function, (2, index, 3, 1), said, code, qd.BoundsError, **rest)


def scattered(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    out[k] = 2 * x
    return out


def doubled(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    return 2 * x


NANS = (("debug", "nans"),)
RACE = (2, 0, 2, 1)
BOUNDS = (
    outside(read, 4, "2 * x[k[i]]"),
    outside(read, -1, "2 * x[k[i]]"),
    outside(read, 2**31 - 1, "2 * x[k[i]]"),
    outside(write, 7, "out[k[i]]", "out", want=scattered),
    outside(write, -4, "out[k[i]]", "out", want=scattered),
    replace(
        outside(column, 9, "out[i, k[j]]", want=scattered),
        said=re.escape("index 9 is out of bounds for axis 1 of `out` with shape (2, 4)"),
    ),
    outside(accumulate, 4, "out[k[i]] +=", "out", want=scattered),
    outside(atomic, -2, "qd.atomic_add", "out", want=scattered),
    outside(rows, 6, "2 * x[j]"),
    outside(bound, 5, "qd.range(k[k[i]]", "k", want=doubled),
    outside(private, 4, "own[k[i]]", "own"),
    outside(private_write, -1, "own[k[i]]", "own", want=doubled),
    outside(helped, 4, "x[index] * 2", place=_taken),
)
RACES = (
    Fault(meeting, RACE, r"race on `out\[(0, )?2\]`: two iterations", "out[k[i]]", want=scattered),
    Fault(
        passing,
        (1, 2, 3, 0),
        r"race on `x\[(0, )?1\]`: two iterations",
        "x[i] = x[k[i]]",
        right=(0, 1, 2, 3),
        want=doubled,
    ),
    Fault(product, RACE, r"race on `out\[(0, )?2\]`: two iterations", "out[k[i]] *=", want=scattered),
    Fault(
        mixed, (1, 2, 3, 0), r"race on `out\[(0, )?1\]`: two iterations", "out[i] +=", right=(0, 1, 2, 3), want=doubled
    ),
)
OTHERS = (
    Fault(
        unset, (0, -1, 0, 0), r"`some\[(0, )?1\]` is read before anything is stored", "out[i] = some[i]", want=doubled
    ),
    Fault(
        unstored, (0, -1, 0, 0), r"result `out\[(0, )?1\]` of `unstored` is never stored", "out[i] = 2 * x",
        want=doubled,
    ),
    Fault(
        checked, (0, 1, 2, 4), "check failed: needs an index below 4, 100 % of them", "qd.check(", qd.CheckError,
        want=doubled,
    ),
    Fault(
        only_checked, (0, 9, 0, 0), "check failed: needs an index below 4", "qd.check(", qd.CheckError,
        want=lambda x, k: x,
    ),
    Fault(
        rooted, (0, 0, 2, 0), r"`sqrt` makes NaN of -0\.5", "jnp.sqrt", options=NANS, right=(0,) * 4,
        want=lambda x, k: np.sqrt(x),
    ),
    Fault(
        divided, (1, 1, 0, 1), r"`div` makes NaN of 0\.0, 0\.0", "a / k[i]", options=NANS, want=lambda x, k: 0 * x,
        right=(1, 2, 3, 4),
    ),
    Fault(
        endless, (1, 1, 0, 1), f"more than {FUEL} loop iterations were run", "qd.while_", right=(4,) * 4,
        want=lambda x, k: x - 4,
    ),
)  # fmt: skip
FAULTS = BOUNDS + RACES + OTHERS
