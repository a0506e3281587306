"""The foreign function behind calls that carry their program: exported and saved functions (docs/design/0026).

XLA calls it when a call is compiled or loaded, and then at each run. It is Python, as importing this package loads no
compiler: the program is compiled when it is first needed, and a run passes XLA's frame to its handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import TYPE_CHECKING, Any

import jax

from qdtrace.backend import backend
from qdtrace.errors import BackendError, QdError
from qdtrace.trace import hooks

if TYPE_CHECKING:
    from collections.abc import Generator

TARGET = "qdtrace_program"
_METADATA, _EXECUTE, _STRING, _INTERNAL = 1, 3, 4, 13
"""XLA's codes of the extension that asks for a handler's metadata, of the execution stage, of text, of an error."""
_SHARED = 1
"""Number of attributes of a call in a program of several devices, as its handler expects it; otherwise 0."""

_Pointer = ctypes.c_void_p
_Function = ctypes.CFUNCTYPE(_Pointer, _Pointer)
_Size = ctypes.c_size_t


class _List(ctypes.Structure):
    """Arguments, results or attributes of a call."""

    _fields_ = (("size", _Size), ("next", _Pointer), ("count", ctypes.c_int64), ("types", _Pointer))


class _Lists(ctypes.Structure):
    _fields_ = (*_List._fields_, ("items", ctypes.POINTER(_Pointer)))


class _Attributes(ctypes.Structure):
    _fields_ = (*_List._fields_, ("names", ctypes.POINTER(_Pointer)), ("items", ctypes.POINTER(_Pointer)))


class _Frame(ctypes.Structure):
    """The call frame that XLA passes."""

    _fields_ = (
        ("size", _Size), ("extension", _Pointer), ("api", _Pointer), ("context", _Pointer), ("stage", ctypes.c_int32),
        ("operands", _Lists), ("results", _Lists), ("attributes", _Attributes),
    )  # fmt: skip


class _Extension(ctypes.Structure):
    _fields_ = (("size", _Size), ("type", ctypes.c_int32), ("next", _Pointer), ("metadata", _Pointer))


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("size", _Size), ("version_size", _Size), ("version_next", _Pointer), ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32), ("traits", ctypes.c_uint32), ("state", ctypes.c_int64),
    )  # fmt: skip


class _Text(ctypes.Structure):
    _fields_ = (("start", _Pointer), ("length", _Size))


class _Error(ctypes.Structure):
    _fields_ = (("size", _Size), ("next", _Pointer), ("message", ctypes.c_char_p), ("code", ctypes.c_int32))


_ERROR_CREATE = 48
"""Byte offset in XLA's table of the function that makes an error."""
_handlers: dict[str, tuple[Any, bool]] = {}
"""Maps the digest of a program to its handler, and whether several devices run it together."""
_refused: dict[str, QdError] = {}
"""Maps the text of an error that XLA was told to the error."""
_lock = threading.Lock()


def register() -> None:
    """Registers the function with XLA. The import of this package calls it once."""
    handler = jax.ffi.pycapsule(ctypes.cast(_answer, _Pointer).value)
    jax.ffi.register_ffi_target(TARGET, {"instantiate": handler, "execute": handler}, platform="cpu")
    hooks.on_compile_error(_own_error)


@_Function
def _answer(address: int) -> int | None:
    """Runs as the function that XLA calls; returns null, or an error."""
    frame = _Frame.from_address(address)
    try:
        if frame.extension and (asked := _Extension.from_address(frame.extension)).type == _METADATA:
            told = _Metadata.from_address(asked.metadata)
            told.version_size, told.version_next, told.major, told.minor, told.traits, told.state = 24, None, 0, 1, 0, 0
            return None
        if frame.stage != _EXECUTE:
            _load(frame.attributes)
            return None
        handler, shared = _handlers.get(_digest(frame.attributes)) or _load(frame.attributes)
        copy = ctypes.create_string_buffer(ctypes.string_at(address, frame.size), frame.size)
        _Frame.from_buffer(copy).attributes.count = _SHARED if shared else 0
        return handler(ctypes.addressof(copy))
    except BaseException as error:
        return _error(frame, error)


def _digest(attributes: Any) -> str:
    place = next((k for k in range(attributes.count) if _text(attributes.names[k]) == "digest"), None)
    return "" if place is None else _text(attributes.items[place])


def _load(attributes: Any) -> tuple[Any, bool]:
    """Compiles the program in a call's attributes; returns its handler, and whether several devices run it."""
    types = ctypes.cast(attributes.types, ctypes.POINTER(ctypes.c_int32))
    texts = [k for k in range(attributes.count) if types[k] == _STRING]
    given = {_text(attributes.names[k]): _text(attributes.items[k]) for k in texts}
    with _lock:
        address, shared = backend("cpu").load(given)
        found = _handlers[given["digest"]] = _Function(address), shared
    return found


def _text(address: int) -> str:
    text = _Text.from_address(address)
    return ctypes.string_at(text.start, text.length).decode()


def _error(frame: Any, error: BaseException) -> int | None:
    known = error if isinstance(error, QdError) else BackendError(f"a saved program cannot be loaded: {error!r}")
    text = f"qdtrace: {known}"
    _refused[text] = known
    args = _Error(ctypes.sizeof(_Error), None, text.encode(), _INTERNAL)
    create = _Function(_Pointer.from_address(frame.api + _ERROR_CREATE).value or 0)
    return create(ctypes.addressof(args))


@contextlib.contextmanager
def told_by_xla() -> Generator[None]:
    """Runs a block that XLA calls as it compiles: an error of this package is raised in the place of XLA's for it."""
    try:
        yield
    except QdError as error:
        _refused[str(error)] = error
        raise


def _own_error(error: Exception) -> QdError | None:
    """Returns the error of this package whose text an error of XLA contains, or None."""
    text = str(error)
    return next((own for told, own in _refused.items() if told in text), None)
