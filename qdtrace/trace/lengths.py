"""Lengths that know how they are used: what a function computes from them, and what it decides by them.

While a function is traced for arrays of any length, `x.shape[0]` is a `Length`. To Python it is the int that it stands
for. Arithmetic gives another one, and is recorded. A decision (a comparison, an index of a tuple, a key of a dict) is
recorded as a guard with its outcome. A `Length` that meets a traced value becomes an operand of the program. So at
other lengths for which all guards have the same outcomes, the function is traced to the same equations, with operands
that the recorded arithmetic gives.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
import sys
import threading
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.asked_types import took_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Sequence

    Number = int | float
    Shape = tuple[Any, ...]
    Function = Callable[..., Any]

_running = threading.local()
_FORI_LOOP, _DTYPE = [getattr(inspect.unwrap(f), "__code__", "none") for f in (jax.lax.fori_loop, compat.dtype_of)]
"""Code of JAX that asks a bound for its number, and a number for its dtype."""
NUMBERS = (int, float)
"""Types of the numbers that arithmetic is recorded of. A bool is none: it is the outcome of a guard."""


@frozen(eq=False, slots=True)
class _Step:
    """A recorded function of numbers."""

    function: Function
    operands: tuple[tuple[int | None, object], ...]
    """The number of each operand, or None and a constant."""
    kind: type
    """The type of the result."""
    outcome: object = None
    """The result that it has to have, if it is a guard."""
    is_guard: bool = False

    @property
    def key(self) -> Hashable:
        operands = [(k, type(x), _told_apart(x)) for k, x in self.operands]
        return self.function, tuple(operands), self.kind, self.is_guard, _told_apart(self.outcome)


class Recording:
    """Arithmetic with lengths, and guards, in the order of one trace."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self.asking: list[str] = []
        """Names of code to which a `Length` was no number; see `asked_types`."""
        self.values: list[Number] = list(lengths)
        """The numbers of this trace: lengths of arguments, then results of steps."""
        self.sizes = set(range(len(lengths)))
        """Numbers that are lengths of memory."""
        self.operands: list[tuple[jax.Array, int]] = []
        """Arrays of JAX that became operands, with their numbers."""
        self._traced: dict[tuple[int, np.dtype | None], jax.Array] = {}
        """Their tracers, by number and dtype."""
        self.around: Any = None
        """The trace that the function is called in."""
        self.has_begun = False
        """True once the arguments of the function are `Length`s."""
        self._steps: list[_Step] = []
        self._given: Sequence[object] = ()
        self._shapes: dict[int, tuple[object, Shape]] = {}
        """Shapes by identity of the tracers of buffers, which are kept alive."""
        self._numbers: dict[Hashable, int] = {}
        """Results of steps, so that what is computed twice is one number."""
        self._guarded: set[Hashable] = set()

    @property
    def key(self) -> Hashable:
        """A key that is equal for two traces in which a function did the same."""
        return len(self.lengths), tuple([s.key for s in self._steps]), tuple(sorted(self.sizes))

    @property
    def knows_lengths(self) -> bool:
        """Returns whether the function has asked for a number itself, not for something that several may have."""
        return any(step.function is _same for step in self._steps)

    def finish(self) -> None:
        """Drops every traced value."""
        self._given, self._shapes, self._traced, self.around = (), {}, {}, None

    def at(self, lengths: Sequence[int]) -> list[Number] | None:
        """Returns the numbers at other lengths, or None if a guard has another outcome."""
        values: list[Number] = list(lengths)
        for step in self._steps:
            try:
                value = step.function(*[x if k is None else values[k] for k, x in step.operands])
            except Exception:
                return None
            if type(value) is not step.kind or (step.is_guard and _told_apart(value) != _told_apart(step.outcome)):
                return None
            if not step.is_guard:
                values.append(value)
        return values

    # ------------------------------------------------------------------ of the trace
    def begin(self, leaves: Sequence[object]) -> None:
        """Notes the tracers that the function is called with, and their trace."""
        self._given, self.around = leaves, compat.current_trace()

    def is_of(self, leaves: Sequence[object]) -> bool:
        """Returns whether a function is called with these tracers."""
        return len(leaves) == len(self._given) and all(a is b for a, b in zip(leaves, self._given, strict=True))

    def begin_arguments(self, leaves: Sequence[Any]) -> None:
        """Makes lengths of arguments known, of which those with axes are buffers."""
        arrays = [x for x in leaves if np.ndim(x)]
        assert len(arrays) == len(self.lengths)
        for number, (array, length) in enumerate(zip(arrays, self.lengths, strict=True)):
            if not hasattr(array, "tracer"):  # an array: its shape is JAX's
                self.guard(number)
                continue
            first, *others = array.shape
            assert first == length
            self.know(array.tracer, (Length(self, number, length), *others))
        self.has_begun = True

    def know(self, tracer: object, shape: Shape) -> None:
        """Keeps the shape of a buffer."""
        self._shapes[id(tracer)] = (tracer, shape)

    def shape_of(self, tracer: object) -> Shape | None:
        """Returns the shape of a buffer, if it is known."""
        found = self._shapes.get(id(tracer))
        return found and found[1]

    def number(self, function: Function, operands: tuple[object, ...]) -> Any:
        """Returns a function of numbers, recorded."""
        value = function(*map(_plain, operands))
        if type(value) not in NUMBERS:
            return function(*map(known, operands))
        step = _Step(function, self._of(operands), type(value))
        number = self._numbers.setdefault(step.key, len(self.values))
        if number == len(self.values):
            self._steps.append(step)
            self.values.append(value)
        return Length(self, number, value)

    def operand(self, number: int, dtype: np.dtype | None) -> jax.Array:
        """Returns a number as a tracer of the call around the function: no code knows its value. It is one tracer, so
        that an index that is computed twice is one index."""
        if (number, dtype) not in self._traced:
            value = self.values[number]
            with compat.outside_of_traces():
                array = jnp.asarray(value) if dtype is None else jax.device_put(np.asarray(value, dtype))
            self.operands.append((array, number))
            self._traced[number, dtype] = self.around.new_const(array, compat.source_info_util.current())
        return self._traced[number, dtype]

    def decision(self, function: Function, operands: tuple[object, ...]) -> Any:
        """Returns a function of numbers that decides something, and records its outcome as a guard."""
        value = function(*map(_plain, operands))
        step = _Step(function, self._of(operands), type(value), value, True)
        if step.key not in self._guarded:
            self._guarded.add(step.key)
            self._steps.append(step)
        return value

    def guard(self, number: int) -> Number:
        """Records that a number is known to the function, so that the trace is that of this one alone."""
        return self.decision(_same, (Length(self, number, self.values[number]),))

    def _of(self, operands: tuple[object, ...]) -> tuple[tuple[int | None, object], ...]:
        return tuple([(x.number, None) if type(x) is Length else (None, x) for x in operands])


def _same(x: Number) -> Number:
    return x


def _told_apart(x: object) -> object:
    """Returns a constant, of floats a text: 0.0 and -0.0 are equal, and a program tells them apart."""
    return x.hex() if type(x) is float else x


def _plain(x: object) -> object:
    return x.value if type(x) is Length else x


def recording() -> Recording | None:
    """Returns the recording of the trace that runs, if there is one."""
    return getattr(_running, "found", None)


@contextlib.contextmanager
def recorded(to: Recording | None) -> Generator[None]:
    """Runs a block in which a function is traced, whose uses of lengths are recorded."""
    before = recording()
    _running.found = to
    try:
        yield
    finally:
        _running.found = before
        if to is not None:
            to.finish()


class Length:
    """A number that follows from lengths of arguments; to Python an int or a float."""

    __slots__ = ("number", "recording", "value")
    __array_ufunc__ = None
    """Makes scalars and arrays of NumPy leave `np_value + self` to this class."""

    def __init__(self, recording: Recording, number: int, value: Number) -> None:
        self.recording, self.number, self.value = recording, number, value

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The type that `isinstance` sees."""
        return type(self.value)

    def known(self) -> Number:
        """Returns the plain number; the trace is that of this one alone."""
        return self.recording.guard(self.number)

    def as_size(self) -> Any:
        """Returns the plain number as the length of an axis of memory."""
        self.recording.sizes.add(self.number)
        return self.value

    def as_bound(self) -> Any:
        """Returns the number as a bound or an index: 32 bits where they hold it."""
        mine: Any = self
        return self.traced(np.dtype(np.int32)) if -(2**31) <= mine < 2**31 else self.known()

    def traced(self, dtype: np.dtype | None = None) -> Any:
        """Returns the number as a traced scalar that is an operand of the program: of a dtype, or as JAX takes a number
        of Python."""
        trace: Any = compat.current_trace()
        around = self.recording.around
        if around is None or not hasattr(trace, "frame"):  # of another transformation, which knows no constants
            return self.known()
        outer = self.recording.operand(self.number, dtype)
        return outer if trace is around else trace.new_const(outer, compat.source_info_util.current())

    def __jax_array__(self) -> jax.Array:
        return self.traced()

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.asarray(self.known(), *args, **kwargs)

    def __copy__(self) -> Length:
        return self

    def __deepcopy__(self, _: object) -> Length:
        return self

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[Number]]:
        return type(self.value), (self.known(),)

    def __getattr__(self, name: str) -> object:
        if name == "dtype" and sys._getframe(1).f_code is _DTYPE:  # pyright: ignore[reportPrivateUsage]
            return jax.dtypes.canonicalize_dtype(type(self.value))
        if not hasattr(self.value, name):  # as for any int: this decides nothing
            raise AttributeError(name)
        return getattr(self.known(), name)

    def __hash__(self) -> int:
        return hash(self.known())

    def __repr__(self) -> str:
        return repr(self.known())

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.known(), spec)

    def __bool__(self) -> bool:
        return self.recording.decision(operator.truth, (self,))

    def __index__(self) -> int:
        number: Any = self.known()  # a float raises
        return operator.index(number)

    def __int__(self) -> int:
        if sys._getframe(1).f_code is _FORI_LOOP:  # pyright: ignore[reportPrivateUsage]
            raise TypeError("a bound that is traced")  # JAX asks for it to make a `scan`, and takes a tracer as well
        return int(self.known())

    def __float__(self) -> float:
        return float(self.known())

    def __complex__(self) -> complex:
        return complex(self.known())

    def __round__(self, *digits: object) -> object:
        return self.recording.number(round, (self, *digits))

    def __trunc__(self) -> object:
        return self.recording.number(math.trunc, (self,))

    def __floor__(self) -> object:
        return self.recording.number(math.floor, (self,))

    def __ceil__(self) -> object:
        return self.recording.number(math.ceil, (self,))

    def __divmod__(self, other: Any) -> tuple[object, object]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[object, object]:
        return other // self, other % self

    def __pow__(self, other: Any, modulus: Any = None) -> object:
        plain: Any = self.value if modulus is None else self.known()
        return _applied(self, other, operator.pow) if modulus is None else pow(plain, other, modulus)


def _is_number(x: object) -> bool:
    return type(x) in (Length, bool, *NUMBERS)


def _applied(self: Length, other: object, function: Function, *, swapped: bool = False) -> object:
    if _is_number(other):
        return self.recording.number(function, (other, self) if swapped else (self, other))
    mine = _beside(self, other)
    return mine if mine is NotImplemented else function(other, mine) if swapped else function(mine, other)


def _beside(self: Length, other: object) -> Any:
    """Returns the number as an operand beside a traced value; the plain one beside others, such as arrays of NumPy."""
    if isinstance(other, (np.generic, np.ndarray)):
        return self.known()
    if not isinstance(other, jax.Array) and not hasattr(type(other), "__jax_array__"):
        return NotImplemented
    aval: Any = other.aval if isinstance(other, compat.Tracer) else None
    if aval is None or aval.weak_type or not jnp.issubdtype(aval.dtype, jnp.number):
        return self.traced()
    keeps = jnp.result_type(aval.dtype, type(self.value)) == aval.dtype  # JAX reads the number in that dtype
    return self.traced(aval.dtype) if keeps else self.traced()


def _compared(function: Function) -> Callable[[Length, object], object]:
    def method(self: Length, other: object) -> object:
        if _is_number(other):
            return self.recording.decision(function, (self, other))
        mine = _beside(self, other)
        return mine if mine is NotImplemented else function(mine, other)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "lshift", "rshift", "and_", "or_", "xor", "pow"):
    _function = getattr(operator, _name)
    _plain_name = _name.rstrip("_")
    if _name != "pow":
        setattr(Length, f"__{_plain_name}__", lambda a, b, f=_function: _applied(a, b, f))
    setattr(Length, f"__r{_plain_name}__", lambda a, b, f=_function: _applied(a, b, f, swapped=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Length, f"__{_name}__", _compared(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    _function = getattr(operator, _name)
    setattr(Length, f"__{_name}__", lambda a, f=_function: a.recording.number(f, (a,)))


def _taken_apart(n: Length) -> tuple[tuple[Any], None]:
    n.recording.asking += took_apart()
    return (n.traced(),), None


# a function that JAX compiles, as most of `jnp`, takes its arguments apart
jax.tree_util.register_pytree_node(Length, _taken_apart, lambda _, parts: parts[0])


def as_length(x: object) -> Length | None:
    """Returns a value if it is a `Length`; `isinstance` takes one for an int."""
    return x if type(x) is Length else None


def known(x: Any) -> Any:
    """Returns a value, or the plain number of a `Length`, or a tuple of those; the trace is that of these alone."""
    if isinstance(x, tuple):
        return tuple(map(known, x))
    return x.known() if type(x) is Length else x


def as_dims(lengths: Sequence[Any]) -> tuple[int, ...]:
    """Returns the plain shape of new memory, of which the first length may be another one for other arguments."""
    first = [n.as_size() if type(n) is Length and isinstance(n, int) else operator.index(n) for n in lengths[:1]]
    return (*first, *map(operator.index, lengths[1:]))
