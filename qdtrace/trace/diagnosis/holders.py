"""Content of objects: how to read it, put it back, and which objects to look at next.

A table from type to `Holder`, filled as types are met. Types whose values hold nothing that Python code may change map
to None. What cannot be looked into is `OPAQUE`: it may change at any time.
"""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import decimal
import functools
import inspect
import io
import itertools
import logging
import operator
import pickle
import random
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace.frozen import frozen
from qdtrace.trace.diagnosis import empty
from qdtrace.trace.own_files import is_own_file

if TYPE_CHECKING:
    from collections.abc import Callable

Content = tuple[Any, list[Any]]
"""Content of an object: keys (compared by ==) and values (compared by identity)."""


@frozen(eq=False)
class Holder:
    """Functions that read, restore and name the content of a type's values."""

    read: Callable[[Any], Content]
    write: Callable[[Any, Content], None] | None = None
    """Puts back what `read` gave; None where that is not possible."""
    label: Callable[[str, Any], str] = lambda path, _: path
    """Returns how the user writes the place of a key in the object at a path."""
    fixed: bool = False
    """Its values never change their content, so each is looked through once."""
    grows: bool = False
    """True for collections."""
    draws: bool = False
    """True for iterators and random streams: their use is their change."""


def _nothing(_: object) -> Content:
    raise TypeError


OPAQUE = Holder(_nothing)
_EMPTY: Content = ((), [])


# -- collections ------------------------------------------------------------------------------------------------------


def _item(path: str, key: object) -> str:
    return f"{path}[{key!r}]"


def _attribute(path: str, key: object) -> str:
    return f"{path}.{key}"


def _write_collection(held: Any, content: Content) -> None:
    held.clear()
    held.extend(content[1])


def _write_dict(held: Any, content: Content) -> None:
    held.clear()
    held.update(zip(*content, strict=True))


def _write_set(held: Any, content: Content) -> None:
    held.clear()
    held.update(content[0])


def _write_bytes(held: Any, content: Content) -> None:
    memoryview(held).cast("B")[:] = content[0]


def _read_mapping(held: Any) -> Content:
    return (list(held), list(held.values()))


_LIST = Holder(lambda held: ((), list(held)), _write_collection, _item, grows=True)
_DICT = Holder(_read_mapping, _write_dict, _item, grows=True)
_SET = Holder(lambda held: (set(held), []), _write_set, grows=True)
_BYTES = Holder(lambda held: (bytes(held), []), _write_bytes)
_VIEW = Holder(_read_mapping, None, _item)
_TUPLE = Holder(lambda held: ((), list(held)), label=_item, fixed=True)

EXACT = 1 << 18
"""Most bytes of an array that is compared as a whole."""
_SAMPLE = 1 << 12


def _read_array(held: np.ndarray) -> Content:
    """Reads the bytes of an array, or a sample of a large one: a change of all is seen, one element may be missed."""
    if held.dtype.hasobject:
        return (held.shape, held.ravel().tolist())
    if held.nbytes <= EXACT:
        return (held.tobytes(), [])
    flat = held.reshape(-1) if held.flags.c_contiguous else held.flat
    return ((held.shape, flat[:: held.size // _SAMPLE + 1].tobytes(), flat[held.size - 1].tobytes()), [])


def _write_array(held: np.ndarray, content: Content) -> None:
    if isinstance(content[0], bytes):
        held[...] = np.frombuffer(content[0], held.dtype).reshape(held.shape)


_ARRAY = Holder(_read_array, _write_array)


# -- variables and code -----------------------------------------------------------------------------------------------


def _read_cell(cell: Any) -> Content:
    try:
        return ((), [cell.cell_contents])
    except ValueError:
        return _EMPTY


def _write_cell(cell: Any, content: Content) -> None:
    if content[1]:
        cell.cell_contents = content[1][0]
    else:
        del cell.cell_contents


CELL = Holder(_read_cell, _write_cell)

MISSING = object()


class Namespace:
    """The variables of a module that some code names."""

    __slots__ = ("names", "space")

    def __init__(self, space: dict[str, Any]) -> None:
        self.space = space
        self.names: dict[str, None] = {}


def _read_namespace(held: Namespace) -> Content:
    space = held.space
    return (list(held.names), [space.get(name, MISSING) for name in held.names])


def _write_namespace(held: Namespace, content: Content) -> None:
    for name, value in zip(*content, strict=True):
        if value is MISSING:
            held.space.pop(name, None)
        elif held.space.get(name, MISSING) is not value:
            held.space[name] = value


NAMESPACE = Holder(_read_namespace, _write_namespace, lambda path, key: f"{path}.{key}" if path else key)


def _write_attributes(held: Any, content: Content) -> None:
    names, values = content
    own = _own_attribute(held, "__dict__")
    for name in set() if own is MISSING else set(own) - set(names):
        del own[name]
    now = dict(zip(*_read_attributes(held), strict=True))
    for name, value in zip(names, values, strict=True):
        if now.get(name, MISSING) is not value:
            if name in _slots(type(held)):
                object.__setattr__(held, name, value)
            else:
                own[name] = value


def _write_class(held: type, content: Content) -> None:
    now = vars(held)
    for name in set(now) - set(content[0]):
        delattr(held, name)
    for name, value in zip(*content, strict=True):
        if now.get(name, MISSING) is not value:
            setattr(held, name, value)


FUNCTION = Holder(lambda held: _read_mapping(held.__dict__), _write_attributes, _attribute)
_LIBRARY_FUNCTION = Holder(lambda held: ((), [c.cell_contents for c in held.__closure__]), fixed=True)
"""Holder of a library's function that may stand for a user's function in its closure: `jax.vmap(f)`."""
CLASS = Holder(lambda held: _read_mapping(vars(held)), _write_class, _attribute)
_METHOD = Holder(lambda held: ((), [held.__self__, held.__func__]), fixed=True)


def _read_partial(held: functools.partial[Any]) -> Content:
    """Reads a `partial`: its function and arguments, which cannot be set, and its attributes, which can."""
    return (["func", "args", "keywords", *vars(held)], [held.func, held.args, held.keywords, *vars(held).values()])


_PARTIAL = Holder(_read_partial, None, _attribute)
_WRAPPER = Holder(lambda held: ((), [held.__wrapped__]), fixed=True)
_MEMO = Holder(lambda held: (held.cache_info(), [held.__wrapped__]))


# -- objects ----------------------------------------------------------------------------------------------------------


def _own_attribute(held: Any, name: str) -> Any:
    """Returns an attribute without a call of the user's `__getattr__`; MISSING when there is none."""
    try:
        return object.__getattribute__(held, name)
    except AttributeError:
        return MISSING


def _read_attributes(held: Any) -> Content:
    found = _own_attribute(held, "__dict__")
    slots = _slots(type(held))
    if not slots and found is not MISSING:
        return (list(found), list(found.values()))
    found = {} if found is MISSING else dict(found)
    found.update((name, value) for name in slots if (value := _own_attribute(held, name)) is not MISSING)
    return (list(found), list(found.values()))


@functools.lru_cache(maxsize=1024)
def _slots(cls: type) -> tuple[str, ...]:
    """Returns the names of attributes that the class and its bases keep in slots."""
    return tuple(
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
        and name != "__dict__"
        and base.__module__ not in sys.builtin_module_names
    )


_INSTANCE = Holder(_read_attributes, _write_attributes, _attribute)


_UNSEEN = {"manager", "parent", "root", "handlers", "_cache"}
"""Attributes of a logger that lead to all others, to files, and to its cache."""


def _read_logger(held: logging.Logger) -> Content:
    names = [name for name in vars(held) if name not in _UNSEEN]
    return (names, [vars(held)[name] for name in names])


_LOGGER = Holder(_read_logger, None, _attribute)


_WAITING = ("threading", "_thread", "collections")
"""Modules of the types of locks and of queues of waiting threads."""


def _read_synchroniser(held: object) -> Content:
    """Reads the counts of a synchroniser, without its locks and waiting threads; nothing of it is ever put back."""
    own = {name: value for name, value in vars(held).items() if type(value).__module__ not in _WAITING}
    return (list(own), list(own.values()))


_SYNCHRONISER = Holder(_read_synchroniser, None, _attribute)


def _read_file(held: Any) -> Content:
    """Reads the position of a file; an object that is new each time if the file does not tell it."""
    try:
        return (held.tell(), [])
    except (OSError, ValueError):
        return ((object(),), [])


def _write_file(held: Any, content: Content) -> None:
    if isinstance(content[0], int):
        held.seek(content[0])


_FILE = Holder(_read_file, _write_file, draws=True)


def _of_file(held: Any) -> Holder | None:
    """Returns the holder of a file, `OPAQUE` if it cannot seek; None for one that is closed or write-only."""
    if held.closed or not held.readable():
        return None
    return _FILE if held.seekable() else OPAQUE


def _both(items: Holder) -> Holder:
    """Returns the holder of a user's class derived from a collection: items and attributes."""

    def read(held: Any) -> Content:
        keys, values = items.read(held)
        names, attributes = _read_attributes(held)
        own = list(keys) if isinstance(keys, list) else [*range(len(values)), *keys]
        return ([*own, *names], [*values, *attributes])

    def label(path: str, key: object) -> str:
        return _attribute(path, key) if isinstance(key, str) and key.isidentifier() else _item(path, key)

    return Holder(read, None, label, grows=True)


def _pickled(get: Callable[[Any], Any], put: Callable[[Any, Any], None]) -> Holder:
    """Returns the holder of a random generator, which compares and restores its state."""
    return Holder(
        lambda held: (pickle.dumps(get(held)), []),
        lambda held, content: put(held, pickle.loads(content[0])),
        draws=True,
    )


_STREAMS: dict[type, Holder] = {
    random.Random: _pickled(lambda r: r.getstate(), lambda r, state: r.setstate(state)),
    np.random.Generator: _pickled(
        lambda r: r.bit_generator.state, lambda r, state: setattr(r.bit_generator, "state", state)
    ),
    np.random.RandomState: _pickled(lambda r: r.get_state(), lambda r, state: r.set_state(state)),
    **dict.fromkeys((itertools.count, itertools.repeat), Holder(lambda held: (repr(held), []), draws=True)),
}
_SEQUENCES = ([], (), "", b"", bytearray(), {}, {}.values(), {}.items(), set[int](), range(1), range(1 << 70))
_SEQUENCE_ITERATORS = {*(type(iter(one)) for one in _SEQUENCES), type(reversed([]))}
_ITERATOR = Holder(lambda held: (operator.length_hint(held), []), draws=True)

_HOLDERS: dict[type, Holder | None] = {
    **dict.fromkeys((list, collections.deque), _LIST),
    **dict.fromkeys((dict, collections.defaultdict, collections.OrderedDict, collections.Counter), _DICT),
    set: _SET,
    **dict.fromkeys((bytearray, array.array), _BYTES),
    tuple: _TUPLE,
    frozenset: Holder(lambda held: ((), list(held)), fixed=True),
    types.MappingProxyType: _VIEW,
    np.ndarray: _ARRAY,
    **dict.fromkeys((io.StringIO, io.BytesIO), Holder(lambda held: ((held.getvalue(), held.tell()), []))),
    contextvars.ContextVar: Holder(
        lambda held: ((), [held.get(MISSING)]), lambda held, content: held.set(content[1][0])
    ),
    threading.local: Holder(
        lambda held: _read_mapping(held.__dict__), lambda held, content: _write_dict(held.__dict__, content), _attribute
    ),
    types.CellType: CELL,
    types.FunctionType: FUNCTION,
    types.MethodType: _METHOD,
    types.SimpleNamespace: _INSTANCE,
    Namespace: NAMESPACE,
    property: Holder(lambda held: ((), [held.fget, held.fset, held.fdel]), fixed=True),
    **dict.fromkeys((classmethod, staticmethod), _WRAPPER),
    functools.cached_property: Holder(lambda held: ((), [held.func]), fixed=True),
    type(functools.lru_cache(len)): _MEMO,
    **_STREAMS,
    **dict.fromkeys(_SEQUENCE_ITERATORS, _ITERATOR),
    functools.partial: _PARTIAL,
    weakref.ref: Holder(lambda held: ((), [held()])),
    type(threading.Lock()): Holder(lambda held: (held.locked(), [])),
    **dict.fromkeys((type(threading.RLock()), decimal.Context), Holder(lambda held: (repr(held), []))),
    np.flatiter: Holder(lambda held: (held.index, [held.base]), draws=True),
    **dict.fromkeys(empty.TYPES),
}
_BUILTIN_FUNCTIONS = types.BuiltinFunctionType


PLAIN: set[type] = {kind for kind, holder in _HOLDERS.items() if holder is None}
"""Types met so far whose values hold nothing."""


def holder_of(value: Any) -> Holder | None:
    """Returns the holder of a value; None when it holds nothing that may change."""
    kind: type = type(value)
    if kind is types.FunctionType and not is_own_file(value.__code__.co_filename):
        if empty.sees_more(value):
            return OPAQUE
        return _LIBRARY_FUNCTION if value.__closure__ else None
    if kind in _HOLDERS:
        return _HOLDERS[kind]
    if kind is _BUILTIN_FUNCTIONS:
        return _builtin(value)
    if isinstance(value, type):
        return CLASS if is_own(value) else OPAQUE if empty.sees_more(value) else None
    if isinstance(value, types.ModuleType):
        return None  # what code names of a module is looked up by name
    if isinstance(value, jax.custom_jvp | jax.custom_vjp):
        return _INSTANCE  # with its rules
    if _own_attribute(value, "__wrapped__") is not MISSING:
        return _MEMO if hasattr(value, "cache_info") else _WRAPPER
    if isinstance(value, io.IOBase):
        return _of_file(value)
    holder = _HOLDERS[kind] = _classify(kind)
    if holder is None:
        PLAIN.add(kind)
    return holder


def _classify(kind: type) -> Holder | None:
    for base, holder in (*_STREAMS.items(), (functools.partial, _PARTIAL), (logging.Logger, _LOGGER)):
        if issubclass(kind, base):
            return holder
    if issubclass(kind, np.ndarray):
        return _ARRAY
    if empty.is_empty(kind):
        return None
    if kind.__module__ == "threading":
        return _SYNCHRONISER if kind.__dictoffset__ else OPAQUE
    for base in (list, dict, set, collections.deque):
        if issubclass(kind, base):
            held = _HOLDERS[base]
            return held if held is None or kind.__module__ in ("collections", "builtins") else _both(held)
    if issubclass(kind, tuple):
        return _TUPLE
    if any(_is_made_in_c(base) for base in kind.__mro__[:-1]):
        return OPAQUE
    return _INSTANCE if kind.__dictoffset__ or _slots(kind) else None


def _is_made_in_c(cls: type) -> bool:
    """Returns whether values of a class may hold what Python does not see."""
    if _HOLDERS.get(cls, OPAQUE) is not OPAQUE:
        return False
    return not cls.__flags__ & _HEAP_TYPE or isinstance(vars(cls).get("__new__"), types.BuiltinFunctionType)


_HEAP_TYPE = 1 << 9
"""Bit of `type.__flags__` for types made at run time, by a `class` statement or by a library written in C."""


def _builtin(function: Any) -> Holder | None:
    owner = function.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        return OPAQUE if empty.sees_more(function) else None
    return Holder(lambda held: ((), [held.__self__]), fixed=True)


@functools.lru_cache(maxsize=4096)
def is_own(made: type | types.ModuleType) -> bool:
    """Returns whether a class or a module is the user's."""
    if isinstance(made, type) and made.__module__ == "builtins" and vars(builtins).get(made.__name__) is not made:
        return bool(made.__flags__ & _HEAP_TYPE)  # by `exec`, where no name of a module was
    module = sys.modules.get(made.__module__) if isinstance(made, type) else made
    own = module is None or module.__name__ == "__main__" or module.__spec__ is None  # made by hand, or in a notebook
    return is_own_file(getattr(module, "__file__", None) or ("" if own else "<built-in>"))


def is_jitted(value: Any) -> bool:
    """Returns whether a value is a function of the user under `jax.jit`."""
    if type(value) is not JITTED:
        return False
    code = getattr(inspect.unwrap(value), "__code__", None)
    return code is not None and is_own_file(code.co_filename)


JITTED: type = type(jax.jit(abs))
"""Type of the functions that `jax.jit` returns."""
