"""XLA's C interface for foreign functions, as byte offsets and functions of the launcher that use it.

A handler gets one pointer, to a *call frame*. The structures behind it are a stable C interface (every structure
starts with its own size and only grows at the end), so handlers read them by offset and need neither a C compiler nor
the header. The offsets hold for the 64-bit interface versions 0.1 to 0.5; `API_MIN_SIZE` and the major version are
checked when the first handler is registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import Symbol, Value, c_string, function
from lowering.tables import FIELD
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.host import I1, I32, I64, Code, Operand, Ptr

API_MAJOR = 0
API_MINOR = 1
"""The version handlers report: the oldest one that the framework accepts, whatever its own is."""
API_MIN_SIZE = 192

FRAME_EXTENSION = 8
FRAME_API = 16
FRAME_CONTEXT = 24
FRAME_ARG_COUNT = 56
FRAME_ARGS = 72
FRAME_RESULT_COUNT = 96
FRAME_RESULTS = 112
FRAME_ATTRIBUTE_COUNT = 136

BUFFER_DTYPE = 16
BUFFER_DATA = 24
BUFFER_RANK = 32
BUFFER_DIMS = 40

API_VERSION_MAJOR = 32
API_VERSION_MINOR = 36
API_ERROR_CREATE = 48
API_ERROR_DESTROY = 64
API_STREAM_GET = 80
API_POOL_SCHEDULE = 136
API_POOL_THREADS = 144

EXTENSION_TYPE = 8
EXTENSION_METADATA = 24
EXTENSION_IS_METADATA = 1

METADATA_VERSION_SIZE = 8
METADATA_VERSION_EXTENSION = 16
METADATA_VERSION_MAJOR = 24
METADATA_VERSION_MINOR = 28
METADATA_TRAITS = 32
METADATA_STATE_TYPE = 40

VERSION_SIZE = 24
ERROR_CREATE_SIZE = 28
ERROR_DESTROY_SIZE = 24
STREAM_GET_SIZE = 32
STREAM_GET_STREAM = 24
POOL_THREADS_SIZE = 32
POOL_SCHEDULE_SIZE = 40

ABORTED = 10
"""Code of calls that were interrupted."""
INVALID_ARGUMENT = 3
"""Code of calls with wrong arguments."""
RESOURCE_EXHAUSTED = 8
"""Code of calls that got no memory."""
OUT_OF_RANGE = 11
"""Code of failed checks."""
INTERNAL = 13
"""Code of calls that a device's driver refused."""

COMMAND_BUFFER = 1
"""Trait of handlers that only enqueue work on the stream of the call: XLA may record that work, and replay it without
calling them."""

XLA_BYTE = 6
XLA_DTYPES = {
    DType.bool: 1, DType.i8: 2, DType.i16: 3, DType.i32: 4, DType.i64: 5, DType.u8: 6, DType.u16: 7, DType.u32: 8,
    DType.u64: 9, DType.f16: 10, DType.f32: 11, DType.f64: 12, DType.bf16: 16,
}  # fmt: skip
"""Codes of element types in a buffer."""


_CODES = range(max(XLA_DTYPES.values()) + 1)
_DTYPES = {code: dtype for dtype, code in XLA_DTYPES.items()}
_BITS = [_DTYPES[code].bits if code in _DTYPES else 0 for code in _CODES]
_NAMES = [_DTYPES[code].value if code in _DTYPES else f"type {code}" for code in _CODES]
_NAME_SIZE = 16
_SIZE_TABLE = Symbol(
    "dtype_sizes", f"private constant [{len(_CODES)} x i64] [{', '.join(f'i64 {-(-bits // 8)}' for bits in _BITS)}]"
)
_NAME_TABLE = Symbol(
    "dtype_names", f"private constant {c_string(''.join(name.ljust(_NAME_SIZE, chr(0)) for name in _NAMES))}"
)
API_SEEN = Symbol("qd_api_seen", "global [2 x i64] zeroinitializer")
"""The size of XLA's table of functions and its version, for `registry` to check."""


def dtype_size(c: Code, code: Value) -> Value:
    """Returns the bytes of an element of a type."""
    return c.value(_SIZE_TABLE, "ptr").word(code).load("i64")


@function("cold")
def dtype_name(c: Code, code: I64) -> Ptr:
    """Returns the name of a type."""
    c.give_if(code.below(len(_CODES)), c.value(_NAME_TABLE, "ptr").at(code * _NAME_SIZE))
    return c.string("an unknown dtype")


def call_api(
    c: Code, frame: Value, place: int, size: int, *fields: Operand, result: str = "ptr"
) -> tuple[Value, Value]:
    """Calls one of XLA's functions with a structure: its size, no extension, and fields. Returns the structure and the
    result."""
    arguments = c.memory(f"[{2 + len(fields)} x i64]")
    for k, field in enumerate((size, None, *fields)):
        kind = field.type if isinstance(field, Value) else "i64" if isinstance(field, int) else "ptr"
        arguments.store(field, kind, FIELD * k)
    called = frame.load("ptr", FRAME_API).load("ptr", place)
    return arguments, c.call(called, result, ["ptr"], [arguments])


@function("cold noinline")
def new_error(c: Code, frame: Ptr, message: Ptr, code: I32) -> Ptr:
    """Returns an error of XLA, which copies the message."""
    return call_api(c, frame, API_ERROR_CREATE, ERROR_CREATE_SIZE, message, code)[1]


@function()
def drop_error(c: Code, frame: Ptr, error: Ptr) -> None:
    """Drops an error that XLA returned, if there is one."""
    with c.when(error.differs(None)):
        call_api(c, frame, API_ERROR_DESTROY, ERROR_DESTROY_SIZE, error, result="void")


@function("alwaysinline")
def answer_metadata(c: Code, frame: Ptr, traits: I32) -> I1:
    """Returns whether the call only asked which interface the handler speaks; it is answered then."""
    extension = frame.load("ptr", FRAME_EXTENSION)
    c.give_if(extension.equals(None), 0)
    asked = extension.load("i32", EXTENSION_TYPE).equals(EXTENSION_IS_METADATA)
    with c.when(asked):
        _fill_metadata(c, frame, extension, traits)
    return asked


@function("cold noinline")
def _fill_metadata(c: Code, frame: Ptr, extension: Ptr, traits: I32) -> None:
    metadata = extension.load("ptr", EXTENSION_METADATA)
    metadata.store(VERSION_SIZE, offset=METADATA_VERSION_SIZE)
    metadata.store(None, "ptr", METADATA_VERSION_EXTENSION)
    metadata.store(API_MAJOR, "i32", METADATA_VERSION_MAJOR)
    metadata.store(API_MINOR, "i32", METADATA_VERSION_MINOR)
    metadata.store(traits, "i32", METADATA_TRAITS)
    metadata.store(0, offset=METADATA_STATE_TYPE)
    api, seen = frame.load("ptr", FRAME_API), c.value(API_SEEN, "ptr")
    seen.store(api.load("i64"))
    seen.store(api.load("i64", API_VERSION_MAJOR), offset=FIELD)


@function()
def pool_threads(c: Code, frame: Ptr) -> I64:
    """Returns the threads in XLA's pool; 1 when it does not say."""
    found = c.memory("i64")
    found.store(1)
    _, error = call_api(c, frame, API_POOL_THREADS, POOL_THREADS_SIZE, frame.load("ptr", FRAME_CONTEXT), found)
    drop_error(c, frame, error)
    return found.load("i64")


@function()
def pool_schedule(c: Code, frame: Ptr, work: Ptr, data: Ptr) -> I1:
    """Has XLA's pool call `work(data)`; returns false when the pool refuses."""
    context = frame.load("ptr", FRAME_CONTEXT)
    _, error = call_api(c, frame, API_POOL_SCHEDULE, POOL_SCHEDULE_SIZE, context, work, data)
    drop_error(c, frame, error)
    return error.equals(None)


@function()
def get_stream(c: Code, frame: Ptr, place: Ptr) -> Ptr:
    """Stores the stream of the call; returns null, or XLA's error."""
    context = frame.load("ptr", FRAME_CONTEXT)
    arguments, error = call_api(c, frame, API_STREAM_GET, STREAM_GET_SIZE, context, None)
    place.store(arguments.load("ptr", STREAM_GET_STREAM), "ptr")
    return error
