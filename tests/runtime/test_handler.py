"""The handler: what it answers, and what it refuses."""

import ctypes
from dataclasses import replace

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import pytest

from lowering.llvm.target import Target
from lowering.runtime import abi
from lowering.runtime.compile import launcher
from lowering.runtime.handler import (
    GRAIN_OPERATIONS,
    LAUNCHER_EXPORTS,
    SLOT_OPERATIONS,
    TaskShape,
    grain_of,
    handler_text,
    launcher_text,
)
from lowering.runtime.layout import plan_layout
from lowering.runtime.registry import CPU, Platform, register
from qdtrace.errors import BackendError
from tests.runtime.programs import affine, chain, compiled, total


def test_the_launcher_answers_a_metadata_query():
    run = launcher(Target.host(), None)["qd_run"]
    metadata, api = (ctypes.c_int64 * 6)(*[-1] * 6), (ctypes.c_int64 * 24)(abi.API_MIN_SIZE)
    extension = (ctypes.c_int64 * 4)(0, abi.EXTENSION_IS_METADATA, 0, ctypes.addressof(metadata))
    frame = (ctypes.c_int64 * 22)()
    frame[abi.FRAME_EXTENSION // 8] = ctypes.addressof(extension)
    frame[abi.FRAME_API // 8] = ctypes.addressof(api)
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(run)
    assert handler(ctypes.addressof(frame), None) is None
    version = abi.API_MAJOR | abi.API_MINOR << 32
    assert list(metadata) == [-1, abi.VERSION_SIZE, 0, version, metadata[4], 0]
    assert metadata[4] & 0xFFFFFFFF == 0


@pytest.mark.parametrize(
    ("triple", "own"),
    [
        ("x86_64-unknown-linux-gnu", {"llvm.x86.sse2.pause", "__errno_location", "madvise"}),
        ("aarch64-unknown-linux-gnu", {"llvm.aarch64.hint", "__errno_location", "madvise"}),
        ("arm64-apple-darwin23.0", {"llvm.aarch64.hint", "__error"}),
        ("riscv64-unknown-linux-gnu", {"__errno_location", "madvise"}),
    ],
)
def test_the_launcher_of_each_system_is_valid_and_calls_its_functions(triple: str, own: set[str]):
    text = launcher_text(triple)
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    declared = {function.name for function in module.functions if function.is_declaration}
    shared = {
        "llvm.memcpy.p0.p0.i64", "llvm.memset.p0.i64", "llvm.smin.i64", "llvm.smax.i64", "llvm.fshl.i64", "malloc",
        "free", "sched_yield", "snprintf", "clock_gettime", "pthread_self", "sigaction", "write", "usleep",
    }  # fmt: skip
    assert declared == shared | own
    defined = {function.name for function in module.functions} | {word.name for word in module.global_variables}
    assert {*LAUNCHER_EXPORTS} <= defined - declared


def call_wrongly(target: str, operands, results) -> str:
    """The message that XLA raises for a call that the backend itself never makes."""
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(jax.ffi.ffi_call(target, results))(*operands))
    return str(raised.value)


@pytest.mark.full
def test_a_wrong_call_says_what_is_wrong():
    target = compiled(affine(8, name="wrong")).target_name
    x, out = jnp.ones(8), jax.ShapeDtypeStruct((8,), jnp.float32)
    assert call_wrongly(target, (x, x), (out,)) == (
        "INVALID_ARGUMENT: qdtrace: program `wrong` needs 1 operands and 1 results, got 2 and 1"
    )
    assert call_wrongly(target, (x,), (out, out)) == (
        "INVALID_ARGUMENT: qdtrace: program `wrong` needs 1 operands and 1 results, got 1 and 2"
    )
    assert call_wrongly(target, (x.astype(jnp.bfloat16),), (out,)) == (
        "INVALID_ARGUMENT: qdtrace: program `wrong` needs dtype f32 for operand 0 (`x`), got bf16"
    )
    assert call_wrongly(target, (x.astype(jnp.complex64),), (out,)) == (
        "INVALID_ARGUMENT: qdtrace: program `wrong` needs dtype f32 for operand 0 (`x`), got type 15"
    )
    assert call_wrongly(target, (x,), (jax.ShapeDtypeStruct((8,), jnp.bool_),)) == (
        "INVALID_ARGUMENT: qdtrace: program `wrong` needs dtype f32 for result 0 (`y`), got bool"
    )
    assert call_wrongly(target, (x[:7],), (out,)) == (
        "INVALID_ARGUMENT: qdtrace: program `wrong` needs 8 elements in operand 0 (`x`), got 7"
    )
    assert call_wrongly(target, (x,), (jax.ShapeDtypeStruct((3, 3), jnp.float32),)) == (
        "INVALID_ARGUMENT: qdtrace: program `wrong` needs 8 elements in result 0 (`y`), got 9"
    )
    target = compiled(replace(chain(100), name="scratch")).target_name
    outs = (jax.ShapeDtypeStruct((100,), jnp.float32), jax.ShapeDtypeStruct((10,), jnp.uint8))
    assert call_wrongly(target, (jnp.ones(100),), outs) == (
        "INVALID_ARGUMENT: qdtrace: program `scratch` needs 896 elements in the scratch result, got 10"
    )


def test_an_error_inside_a_loop_comes_out_with_its_text():
    target = compiled(affine(8, name="wrong")).target_name
    step = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((9,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="program `wrong` needs 8 elements in operand 0"):
        jax.block_until_ready(jax.lax.fori_loop(0, 3, lambda _, x: step(x), jnp.ones(9)))


def test_the_call_counts_its_operands():
    with pytest.raises(BackendError) as raised:
        compiled(affine(8)).call(jnp.ones(8), jnp.ones(8))
    assert str(raised.value) == "`affine` needs 1 operands, got 2"


def test_something_that_is_no_handler_is_refused():
    seen = launcher(Target.host(), None)["qd_api_seen"]
    silent = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda frame: 0)
    address = ctypes.cast(silent, ctypes.c_void_p).value
    with pytest.raises(BackendError) as raised:
        register("qdtrace_test_silent", address or 0, seen, CPU)
    assert str(raised.value).startswith("XLA refused a handler\nnote: ")
    assert "XLA's foreign-function interface is version 0." in str(raised.value)


def test_an_interface_with_another_layout_is_refused():
    seen = (ctypes.c_int64 * 2)(abi.API_MIN_SIZE - 8, 0 | 7 << 32)
    handler = compiled(affine(8)).address
    with pytest.raises(BackendError) as raised:
        register("qdtrace_test_small", handler, ctypes.addressof(seen), CPU)
    assert str(raised.value) == (
        "needs XLA's foreign-function interface 0.x with at least 192 bytes\n"
        "note: XLA's foreign-function interface is version 0.7, its function table has 184 bytes\n"
        "help: use a jaxlib version that this package supports"
    )
    seen[0], seen[1] = abi.API_MIN_SIZE, 1
    with pytest.raises(BackendError, match=r"is version 1\.0, its function table has 192 bytes"):
        register("qdtrace_test_major", handler, ctypes.addressof(seen), CPU)


def test_a_platform_that_jax_does_not_have_is_refused():
    with pytest.raises(BackendError) as raised:
        register("qdtrace_test_platform", compiled(affine(8)).address, 0, Platform("nonesuch", "NONESUCH"))
    assert str(raised.value).startswith("needs JAX's nonesuch platform, which is not available\nnote: ")


def test_names_with_odd_characters_stay_valid_text():
    program = replace(affine(8), name='a"b\\c\n%s é')
    layout = plan_layout(program)
    assert 'c"a\\22b\\5Cc\\0A%s \\C3\\A9\\00"' in handler_text(layout, [TaskShape(1, 1)])
    done = compiled(program)
    assert jnp.array_equal(done.call(jnp.ones(8))[0], jnp.full(8, 3.0))
    out = jax.ShapeDtypeStruct((8,), jnp.float32)
    assert 'program `a"b\\c\n%s é` needs 1 operands' in call_wrongly(done.target_name, (), (out,))


def test_the_grain_is_worth_a_thread_and_a_multiple_of_the_lanes():
    assert grain_of(TaskShape(cost=1, lanes=64)) == GRAIN_OPERATIONS
    assert grain_of(TaskShape(cost=1000, lanes=16)) == 48
    assert grain_of(TaskShape(cost=10**9, lanes=16)) == 16
    assert grain_of(TaskShape(cost=0, lanes=1)) == GRAIN_OPERATIONS
    assert grain_of(TaskShape(cost=1, lanes=1, slot_bytes=100)) == GRAIN_OPERATIONS + 100 * SLOT_OPERATIONS


def test_only_a_task_that_reduces_has_a_slot_and_a_combination():
    text = handler_text(plan_layout(affine(100)), [TaskShape(3, 16)])
    assert "qd_combine" not in text
    no_copies = "ptr null, i64 0, ptr null, i64 0, i64 0"
    assert f"ptr null, i64 0, i64 256, i64 0, {no_copies}, ptr @qd_faults_0, ptr @name_0}}" in text
    text = handler_text(plan_layout(total(100)), [TaskShape(3, 16, ("qd_combine", "qd_task"), slot_bytes=64)])
    assert "declare void @qd_combine_0(ptr, ptr, i64)" in text
    assert "ptr @qd_combine_0, i64 64, i64 256, i64 0," in text
