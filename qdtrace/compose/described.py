"""A description of all that a function can look at while it is traced, made without running it (docs/design/0036).

Two functions of equal descriptions, called with arguments of equal types, give the same program. Code is described by
its bytes, constants, names and lines; what it names by content. Only instructions, attributes and objects are allowed
of which this is known; anything else is a reason to trace.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import struct
import types
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace.compose.code_names import NOTHING, UnknownError, looked_up
from qdtrace.compose.known_names import is_of_library, known_name
from qdtrace.trace import compat
from qdtrace.trace.source import user_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qdtrace.errors import Loc

LARGE = 1 << 20
"""Most bytes of a captured array that is looked at."""
_MOST_FUNCTIONS = 500
_PLAIN = frozenset({bool, int, str, bytes, type(None), type(...), range})


def reason_against(f: Callable[..., Any]) -> str:
    """Returns the reason why a function has no description, or nothing."""
    try:
        Description().add(f)
    except UnknownError as error:
        return str(error)
    return ""


class Lines:
    """The source lines of code that was described."""

    def __init__(self, call: Loc | None = None) -> None:
        self.codes: list[types.CodeType] = []
        self.call = call
        """The line of the call, if that is the line of a loop."""

    def __contains__(self, loc: Loc) -> bool:
        at_call = self.call is not None and (self.call.file, self.call.line) == (loc.file, loc.line)
        codes = (code for code in self.codes if code.co_filename == loc.file)
        return at_call or any(at == loc.line for code in codes for _, _, at in code.co_lines())


class Description:
    """Describes values: `digest` stands for all that was described so far.

    `call` is the line that the function is called at, if that is not the line that runs now.
    """

    def __init__(self, call: Loc | None = None) -> None:
        self._parts: list[str] = []
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []
        """Objects whose identities are in `_numbers`."""
        self.lines = Lines(call)

    def add(self, value: Any) -> None:
        """Describes a value. Raises UnknownError if it has no description."""
        try:
            self._value(value)
        except UnknownError:
            raise
        except Exception as error:  # of an array that was deleted, of objects nested deeply
            raise UnknownError(type(error).__name__) from None

    def note(self, *parts: object) -> None:
        """Adds values with a faithful `repr`."""
        self._parts.append(repr(parts))

    def digest(self) -> str:
        """Returns a hash of all that was described."""
        return hashlib.sha256("\n".join(self._parts).encode(errors="surrogatepass")).hexdigest()

    # ------------------------------------------------------------------ values
    def _value(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            return self.note(kind.__name__, value)
        if kind is float:
            return self.note("float", struct.pack("<d", value))
        if kind is complex:
            return self.note("complex", struct.pack("<dd", value.real, value.imag))
        if kind is tuple:  # not numbered: equal ones may be one object
            self.note("tuple", len(value))
            return self._each(value)
        if (number := self._numbers.get(id(value))) is not None:
            return self.note("again", number)
        self._numbers[id(value)] = len(self._held)
        self._held.append(value)
        if name := known_name(value):
            return self.note("known", name)
        if kind is list:
            self.note("list", len(value))
            return self._each(value)
        if kind is dict:
            self.note("dict", len(value))
            return self._each(itertools.chain.from_iterable(value.items()))
        if kind is slice:
            self.note("slice")
            return self._each((value.start, value.stop, value.step))
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            self.note("method")
            return self._each((value.__func__, value.__self__))
        if kind is functools.partial:
            self.note("partial")
            return self._each((value.func, value.args, value.keywords, vars(value)))
        if isinstance(value, np.dtype):
            return self.note("dtype", _plain(value))
        if kind is np.ndarray or kind.__name__ == "ArrayImpl" or isinstance(value, np.generic):
            return self._array(value)
        raise UnknownError(_called(value))

    def _each(self, values: Any) -> None:
        for value in values:
            self._value(value)

    def _array(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__.partition(".")[0] not in ("numpy", "ml_dtypes", "jax", "jaxlib"):
            raise UnknownError(_called(value))
        if isinstance(value, jax.Array):
            if not (compat.is_on_host(value) and [device.id for device in value.devices()] == [0]):
                raise UnknownError("array on a device")
            self.note("jax", value.weak_type, str(value.sharding))
        if value.nbytes > LARGE:
            raise UnknownError("large array")
        array = np.asarray(value)
        self.note(kind.__name__, _plain(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest())

    # ------------------------------------------------------------------ functions
    def _function(self, f: types.FunctionType) -> None:
        code = f.__code__
        if is_of_library(code) and (looks_at := vars(f).get("looks_at")) is not None:
            self.lines.call = self.lines.call or user_loc()
            self.note("mapped", f.__name__, str(self.lines.call))  # a function of `qd.vmap`: its loop is at the call
            return self._each(looks_at())
        if is_of_library(code):
            raise UnknownError(f"function {f.__module__}.{f.__qualname__}")
        if len(self.lines.codes) > _MOST_FUNCTIONS:
            raise UnknownError("many functions")
        around: dict[str, Any] = {}
        for name, cell in zip(code.co_freevars, f.__closure__ or (), strict=True):
            try:
                around[name] = cell.cell_contents
            except ValueError:
                self.note("empty", name)
        self.note("function", f.__module__, f.__name__, f.__qualname__)
        self._each((f.__defaults__, f.__kwdefaults__, {k: v for k, v in vars(f).items() if k != "__wrapped__"}))
        self._code(code, f.__globals__, around)
        # what code names is described where it names it; a variable around it may be no module
        for name, value in around.items():
            if not isinstance(value, types.ModuleType):
                self.note("around", name)
                self._value(value)
        if (wrapped := vars(f).get("__wrapped__")) is not None:
            self._value(wrapped)

    def _code(self, code: types.CodeType, names: Mapping[str, Any], around: Mapping[str, Any]) -> None:
        self.lines.codes.append(code)
        arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        variables = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        place = (code.co_filename, code.co_firstlineno, code.co_qualname, code.co_linetable)
        self.note("code", code.co_code, code.co_exceptiontable, arguments, variables, place)
        found: dict[str, None] = {}
        for name, value in looked_up(code, names, around):
            if name not in found:
                found[name] = None
                self.note("name", name)
                if value is not NOTHING:
                    self._value(value)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                inner = {k: v for k, v in around.items() if k in constant.co_freevars and k not in code.co_cellvars}
                self._code(constant, names, inner)
            else:
                self._constant(constant)

    def _constant(self, value: Any) -> None:
        if type(value) is tuple:
            self.note("tuple", len(value))
            for inner in value:
                self._constant(inner)
        elif type(value) is frozenset:
            self.note("frozenset", sorted(map(repr, value)))
        else:
            self._value(value)


def _plain(dtype: np.dtype[Any]) -> tuple[str, str]:
    if dtype.hasobject or dtype.names:
        raise UnknownError("array of objects")
    return dtype.str, dtype.name


def _called(value: Any) -> str:
    """Returns the name of an object that is not known."""
    kind = type(value)
    if isinstance(value, type) or callable(value):
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", kind.__name__)
        what = {types.BuiltinFunctionType: "builtin", types.FunctionType: "function"}.get(kind, kind.__name__)
        what = "class" if isinstance(value, type) else what
        return f"{what} {name}" if module in (None, "builtins") else f"{what} {module}.{name}"
    return f"object of {kind.__name__}"
