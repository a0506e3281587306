"""XLA's C interface for foreign functions, as byte offsets and small LLVM IR functions.

A handler gets one pointer, to a *call frame*. The structures behind it are a stable C interface (every structure
starts with its own size and only grows at the end), so handlers read them by offset and need neither a C compiler nor
the header. The offsets hold for the 64-bit interface versions 0.1 to 0.5; `API_MIN_SIZE` and the major version are
checked when the first handler is registered.
"""

from __future__ import annotations

from qdtrace.ir.types import DType

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


def dtype_sizes() -> str:
    """Returns a constant of LLVM IR, `@dtype_sizes`: the bytes of an element of each type code."""
    sizes = {code: max(1, d.bits // 8) for d, code in XLA_DTYPES.items()}
    table = ", ".join(f"i64 {sizes.get(code, 0)}" for code in range(max(sizes) + 1))
    return f"@dtype_sizes = private constant [{max(sizes) + 1} x i64] [{table}]"


def c_string(text: str) -> str:
    """Returns a zero-terminated constant of LLVM IR with its type: `[3 x i8] c"ab\\00"`."""
    data = text.encode() + b"\0"
    plain = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
    return f'[{len(data)} x i8] c"{plain}"'


def dtype_names() -> str:
    """Returns constants of LLVM IR: `@dtype_names`, the name of each element type code."""
    names = {code: d.value for d, code in XLA_DTYPES.items()}
    table = [names.get(code, f"type {code}") for code in range(max(names) + 1)]
    lines = [f"@dtype_name_{code} = private constant {c_string(name)}" for code, name in enumerate(table)]
    items = ", ".join(f"ptr @dtype_name_{code}" for code in range(len(table)))
    return "\n".join([*lines, f"@dtype_names = private constant [{len(table)} x ptr] [{items}]"])


def prelude(traits: int = 0) -> str:
    """Returns LLVM IR: loads and stores of fields, errors, and the answer to XLA's question for a handler's traits."""
    return f"""
@qd_api_seen = global [2 x i64] zeroinitializer

define internal ptr @load_ptr(ptr %base, i64 %offset) alwaysinline {{
  %p = getelementptr i8, ptr %base, i64 %offset
  %v = load ptr, ptr %p
  ret ptr %v
}}

define internal i64 @load_i64(ptr %base, i64 %offset) alwaysinline {{
  %p = getelementptr i8, ptr %base, i64 %offset
  %v = load i64, ptr %p
  ret i64 %v
}}

define internal void @store_i64(ptr %base, i64 %offset, i64 %v) alwaysinline {{
  %p = getelementptr i8, ptr %base, i64 %offset
  store i64 %v, ptr %p
  ret void
}}

define internal void @store_ptr(ptr %base, i64 %offset, ptr %v) alwaysinline {{
  %p = getelementptr i8, ptr %base, i64 %offset
  store ptr %v, ptr %p
  ret void
}}

define internal ptr @api_function(ptr %frame, i64 %offset) alwaysinline {{
  %api = call ptr @load_ptr(ptr %frame, i64 {FRAME_API})
  %f = call ptr @load_ptr(ptr %api, i64 %offset)
  ret ptr %f
}}

; an error for XLA; it copies the message
define internal ptr @new_error(ptr %frame, ptr %message, i32 %code) cold noinline {{
  %args = alloca [32 x i8], align 8
  store i64 {ERROR_CREATE_SIZE}, ptr %args
  call void @store_ptr(ptr %args, i64 8, ptr null)
  call void @store_ptr(ptr %args, i64 16, ptr %message)
  %p = getelementptr i8, ptr %args, i64 24
  store i32 %code, ptr %p
  %f = call ptr @api_function(ptr %frame, i64 {API_ERROR_CREATE})
  %e = call ptr %f(ptr %args)
  ret ptr %e
}}

; drops an error that XLA gave (null is none)
define internal void @drop_error(ptr %frame, ptr %error) {{
  %args = alloca [24 x i8], align 8
  %none = icmp eq ptr %error, null
  br i1 %none, label %done, label %drop
drop:
  store i64 {ERROR_DESTROY_SIZE}, ptr %args
  call void @store_ptr(ptr %args, i64 8, ptr null)
  call void @store_ptr(ptr %args, i64 16, ptr %error)
  %f = call ptr @api_function(ptr %frame, i64 {API_ERROR_DESTROY})
  call void %f(ptr %args)
  br label %done
done:
  ret void
}}

; true when the call only asked which interface the handler speaks; it is answered then
define internal i1 @answer_metadata(ptr %frame) alwaysinline {{
  %ext = call ptr @load_ptr(ptr %frame, i64 {FRAME_EXTENSION})
  %none = icmp eq ptr %ext, null
  br i1 %none, label %no, label %look
look:
  %pt = getelementptr i8, ptr %ext, i64 {EXTENSION_TYPE}
  %type = load i32, ptr %pt
  %asked = icmp eq i32 %type, {EXTENSION_IS_METADATA}
  br i1 %asked, label %yes, label %no
yes:
  call void @fill_metadata(ptr %frame, ptr %ext)
  ret i1 true
no:
  ret i1 false
}}

define internal void @fill_metadata(ptr %frame, ptr %ext) cold noinline {{
  %m = call ptr @load_ptr(ptr %ext, i64 {EXTENSION_METADATA})
  call void @store_i64(ptr %m, i64 {METADATA_VERSION_SIZE}, i64 {VERSION_SIZE})
  call void @store_ptr(ptr %m, i64 {METADATA_VERSION_EXTENSION}, ptr null)
  %p0 = getelementptr i8, ptr %m, i64 {METADATA_VERSION_MAJOR}
  store i32 {API_MAJOR}, ptr %p0
  %p1 = getelementptr i8, ptr %m, i64 {METADATA_VERSION_MINOR}
  store i32 {API_MINOR}, ptr %p1
  %p2 = getelementptr i8, ptr %m, i64 {METADATA_TRAITS}
  store i32 {traits}, ptr %p2
  call void @store_i64(ptr %m, i64 {METADATA_STATE_TYPE}, i64 0)
  ; what the framework speaks is kept for `registry` to check
  %api = call ptr @load_ptr(ptr %frame, i64 {FRAME_API})
  %size = load i64, ptr %api
  %version = call i64 @load_i64(ptr %api, i64 {API_VERSION_MAJOR})
  store i64 %size, ptr @qd_api_seen
  call void @store_i64(ptr @qd_api_seen, i64 8, i64 %version)
  ret void
}}
"""


POOL = f"""
; threads in XLA's pool; 1 when it does not say
define internal i64 @pool_threads(ptr %frame) {{
  %out = alloca i64
  store i64 1, ptr %out
  %args = alloca [32 x i8], align 8
  store i64 {POOL_THREADS_SIZE}, ptr %args
  call void @store_ptr(ptr %args, i64 8, ptr null)
  %context = call ptr @load_ptr(ptr %frame, i64 {FRAME_CONTEXT})
  call void @store_ptr(ptr %args, i64 16, ptr %context)
  call void @store_ptr(ptr %args, i64 24, ptr %out)
  %f = call ptr @api_function(ptr %frame, i64 {API_POOL_THREADS})
  %e = call ptr %f(ptr %args)
  call void @drop_error(ptr %frame, ptr %e)
  %n = load i64, ptr %out
  ret i64 %n
}}

; has XLA's pool call %work(%data); false when the pool refuses
define internal i1 @pool_schedule(ptr %frame, ptr %work, ptr %data) {{
  %args = alloca [40 x i8], align 8
  store i64 {POOL_SCHEDULE_SIZE}, ptr %args
  call void @store_ptr(ptr %args, i64 8, ptr null)
  %context = call ptr @load_ptr(ptr %frame, i64 {FRAME_CONTEXT})
  call void @store_ptr(ptr %args, i64 16, ptr %context)
  call void @store_ptr(ptr %args, i64 24, ptr %work)
  call void @store_ptr(ptr %args, i64 32, ptr %data)
  %f = call ptr @api_function(ptr %frame, i64 {API_POOL_SCHEDULE})
  %e = call ptr %f(ptr %args)
  %ok = icmp eq ptr %e, null
  call void @drop_error(ptr %frame, ptr %e)
  ret i1 %ok
}}
"""

STREAM = f"""
; stores the stream of the call; null, or XLA's error
define internal ptr @get_stream(ptr %frame, ptr %stream) {{
  %args = alloca [{STREAM_GET_SIZE} x i8], align 8
  store i64 {STREAM_GET_SIZE}, ptr %args
  call void @store_ptr(ptr %args, i64 8, ptr null)
  %context = call ptr @load_ptr(ptr %frame, i64 {FRAME_CONTEXT})
  call void @store_ptr(ptr %args, i64 16, ptr %context)
  call void @store_ptr(ptr %args, i64 {STREAM_GET_STREAM}, ptr null)
  %f = call ptr @api_function(ptr %frame, i64 {API_STREAM_GET})
  %e = call ptr %f(ptr %args)
  %found = call ptr @load_ptr(ptr %args, i64 {STREAM_GET_STREAM})
  store ptr %found, ptr %stream
  ret ptr %e
}}
"""
