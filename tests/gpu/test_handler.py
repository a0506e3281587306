"""The launcher without XLA: a call frame made by hand."""

import ctypes

import numpy as np
import pytest

from lowering.gpu.driver import CUDA, HIP
from lowering.gpu.handler import LAUNCHER_EXPORTS, handler_text, launcher_text
from lowering.llvm.target import Target
from lowering.runtime import abi
from lowering.runtime.compile import object_code
from lowering.runtime.faults import fault_imports
from lowering.runtime.jit import link
from lowering.runtime.layout import plan_layout
from tests.gpu.fake import CUDA as NAMES
from tests.gpu.fake import STREAM, FakeDriver, current
from tests.lowering.kernels import host_device
from tests.runtime.programs import affine

POINTER = ctypes.c_void_p
HANDLER = ctypes.CFUNCTYPE(POINTER, POINTER, POINTER)


class Frame:
    """What XLA passes to a handler of `affine(8)`: one operand, one result."""

    def __init__(self, stream_error: int | None = None) -> None:
        self.x, self.y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
        self.errors: list[tuple[str, int]] = []
        self.stream_error = stream_error
        self._functions = [ctypes.CFUNCTYPE(POINTER, POINTER)(f) for f in (self._error, self._stream)]
        self.api = (ctypes.c_int64 * 24)(abi.API_MIN_SIZE)
        for offset, function in zip((abi.API_ERROR_CREATE, abi.API_STREAM_GET), self._functions, strict=True):
            self.api[offset // 8] = ctypes.cast(function, POINTER).value or 0
        self.frame = (ctypes.c_int64 * 22)()
        self.frame[abi.FRAME_API // 8] = ctypes.addressof(self.api)
        self._kept: list[object] = []
        for array, count, at in (
            (self.x, abi.FRAME_ARG_COUNT, abi.FRAME_ARGS),
            (self.y, abi.FRAME_RESULT_COUNT, abi.FRAME_RESULTS),
        ):
            self.frame[count // 8] = 1
            self.frame[at // 8] = self._buffer(array)

    def _buffer(self, array: np.ndarray) -> int:
        dims = (ctypes.c_int64 * 1)(array.size)
        buffer = (ctypes.c_int64 * 6)()
        buffer[abi.BUFFER_DTYPE // 8] = 11
        buffer[abi.BUFFER_DATA // 8] = array.ctypes.data
        buffer[abi.BUFFER_RANK // 8] = 1
        buffer[abi.BUFFER_DIMS // 8] = ctypes.addressof(dims)
        listed = (ctypes.c_int64 * 1)(ctypes.addressof(buffer))
        self._kept += [dims, buffer, listed]
        return ctypes.addressof(listed)

    def _error(self, arguments: int) -> int:
        size, _, text, code = (ctypes.c_int64 * 4).from_address(arguments)
        assert size == abi.ERROR_CREATE_SIZE
        self.errors.append((ctypes.string_at(text).decode(), code & 0xFFFFFFFF))
        return 0xE

    def _stream(self, arguments: int) -> int | None:
        fields = (ctypes.c_int64 * 4).from_address(arguments)
        assert fields[0] == abi.STREAM_GET_SIZE
        fields[abi.STREAM_GET_STREAM // 8] = STREAM
        return self.stream_error


@pytest.fixture(scope="module")
def handler():
    """The handler of `affine(8)`, for a kernel of the fake driver."""
    driver, host = FakeDriver(runs=False), Target.host()
    text = "define void @k(ptr %x, ptr %y) {\n  ret void\n}\n@qd_argument_count = constant i64 2\n"
    kernel = driver.kernel(driver.load(driver.code(text, host_device())), "k")
    functions = {name: driver.address(name) for name in NAMES.all}
    code = object_code(launcher_text(CUDA, host.triple), host)
    launcher = link("test_gpu_launcher", code, LAUNCHER_EXPORTS, functions, host)
    layout = plan_layout(affine(8))
    (task,) = layout.program.tasks
    from lowering.gpu.commands import Command

    places = tuple(layout.places[v] for v in layout.task_refs[0])
    text = handler_text(layout, [Command(places, 3, "qd_kernel_0_0", f"{task.name}: k", 32, 96)] * 2)
    imports = {"qd_run": launcher["qd_run"], "qd_kernel_0_0": kernel, **fault_imports(layout.texts)}
    made = link("test_gpu_handler", object_code(text, host), ("qd_handler",), imports, host)
    with current(driver):
        yield HANDLER(made["qd_handler"]), driver, launcher


def test_commands_go_to_the_stream_of_the_call(handler) -> None:
    run, driver, _ = handler
    frame = Frame()
    driver.asked.clear()
    assert run(ctypes.addressof(frame.frame), None) is None
    x, y = frame.x.ctypes.data, frame.y.ctypes.data
    assert [(*sorted(c.arguments), c.shared_bytes) for c in driver.asked] == [(*sorted((x, y)), 96)] * 2
    assert [(c.name, c.blocks, c.threads) for c in driver.asked] == [("k", 3, 32)] * 2
    assert frame.errors == []


def test_without_a_stream_nothing_is_enqueued(handler) -> None:
    run, driver, _ = handler
    driver.asked.clear()
    frame = Frame(stream_error=0xBAD)
    assert run(ctypes.addressof(frame.frame), None) == 0xBAD
    assert driver.asked == []


def test_a_refusal_ends_the_call(handler) -> None:
    run, driver, _ = handler
    driver.asked.clear()
    driver.refusal = 3
    frame = Frame()
    assert run(ctypes.addressof(frame.frame), None) == 0xE
    driver.refusal = 0
    text = "qdtrace: program `affine`: the driver refused : k: FAKE_ERROR_3"
    assert frame.errors == [(text, abi.INTERNAL)]
    assert len(driver.asked) == 1


def test_what_is_enqueued_may_be_recorded(handler) -> None:
    run, _, _ = handler
    frame = Frame()
    metadata = (ctypes.c_int64 * 6)(*[-1] * 6)
    extension = (ctypes.c_int64 * 4)(0, abi.EXTENSION_IS_METADATA, 0, ctypes.addressof(metadata))
    frame.frame[abi.FRAME_EXTENSION // 8] = ctypes.addressof(extension)
    assert run(ctypes.addressof(frame.frame), None) is None
    assert metadata[abi.METADATA_TRAITS // 8] & 0xFFFFFFFF == abi.COMMAND_BUFFER == 1


def test_the_same_launcher_is_compiled_for_hip() -> None:
    text = launcher_text(HIP, Target.host().triple)
    assert "cuLaunchKernel" not in text
    assert all(f"@{name}(" in text for name in HIP.all)
    assert object_code(text, Target.host())
