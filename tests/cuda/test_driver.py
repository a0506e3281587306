"""Errors where NVIDIA's driver is missing, too old, or refuses; and code for chips that are not there."""

import ctypes
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd
from lowering.cuda import driver as driver_module
from lowering.cuda.backend import CudaBackend
from lowering.cuda.driver import CudaDriver
from lowering.gpu.driver import CUDA
from qdtrace.backend import backend
from qdtrace.config import current
from tests.cuda.programs import affine

MISSING = "libqd_nonesuch.so"


def no_driver() -> CudaDriver:
    return CudaDriver(MISSING)


def test_a_machine_without_a_driver() -> None:
    with pytest.raises(qd.BackendError) as raised:
        no_driver()
    rule, note, help_ = str(raised.value).splitlines()
    assert rule == f"needs NVIDIA's driver ({MISSING}), which is not on this machine"
    assert note.startswith(f"note: {MISSING}: ")
    assert help_ == 'help: name the chip to look at code without a device: f.lower(*args, target="sm_90")'


def test_lowering_for_cuda_needs_the_driver(monkeypatch) -> None:
    backend.cache_clear()
    monkeypatch.setattr("lowering.cuda.backend.driver", no_driver)
    try:
        with pytest.raises(qd.BackendError, match="needs NVIDIA's driver"):
            jax.jit(affine).trace(jnp.ones(3)).lower(lowering_platforms=("cuda",))
        with pytest.raises(qd.BackendError, match="needs NVIDIA's driver"):
            affine.lower(jnp.ones(3), target="cuda")
    finally:
        backend.cache_clear()


@pytest.mark.parametrize("kind", ["sm_80", "sm_90", "sm_100"])
def test_code_for_chips_that_are_not_there(kind: str) -> None:
    low = affine.lower(jnp.ones(300), target=kind)
    assert f".target {kind}" in low.as_text("ptx")
    assert "define ptx_kernel void @qd_kernel(" in low.as_text("llvm")
    assert "@triton.jit\ndef qd_kernel(" in low.as_text("triton")
    assert "range_for" in low.graph()
    (task,) = low.tasks
    assert (task.codegen, task.bounds) == ("llvm", (0, 300))
    assert task.at_once > 100_000
    assert low.memory_analysis()["stack_per_lane"] == 0
    with pytest.raises(qd.BackendError) as raised:
        low.as_text("asm")
    assert str(raised.value) == f"needs a dialect out of graph, triton, llvm, ptx for target {kind!r}, got 'asm'"


def test_info_names_the_chip() -> None:
    facts = CudaBackend("sm_90").info(current())
    assert facts["device"] == "sm_90"
    assert {"artifact cache", "versions", "compiler"} < set(facts)


class Library(SimpleNamespace):
    """A driver's library: each function gives 0 unless it says something else."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            return lambda *_: 0
        raise AttributeError(name)


def write(pointer: Any, value: int) -> int:
    pointer._obj.value = value
    return 0


def library(**functions: Any) -> Library:
    """A driver for CUDA 13 with one device of compute capability 9.0."""

    def attribute(out: Any, asked: ctypes.c_int, device: ctypes.c_int) -> int:
        return write(out, 9 if asked.value == 75 else 0)

    def name(code: ctypes.c_int, out: Any) -> int:
        out._obj.value = b"CUDA_ERROR_%d" % code.value
        return 0

    given = {
        "cuDriverGetVersion": lambda out: write(out, 13000),
        "cuDeviceGetCount": lambda out: write(out, 1),
        "cuDeviceGet": lambda out, number: write(out, number.value),
        "cuDeviceGetAttribute": attribute,
        "cuGetErrorName": name,
    }
    return Library(**(given | functions))


def made(monkeypatch, **functions: Any) -> CudaDriver:
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda _: library(**functions))
    return CudaDriver()


def test_the_kind_of_the_devices(monkeypatch) -> None:
    assert made(monkeypatch).architecture() == "sm_90"
    none = made(monkeypatch, cuDeviceGetCount=lambda out: write(out, 0))
    with pytest.raises(qd.BackendError) as raised:
        none.architecture()
    assert str(raised.value) == (
        "needs devices of one kind, got none\nhelp: choose some with CUDA_VISIBLE_DEVICES"
    )
    two = made(
        monkeypatch,
        cuDeviceGetCount=lambda out: write(out, 3),
        cuDeviceGetAttribute=lambda out, asked, device: write(out, 8 + device.value // 2 if asked.value == 75 else 0),
    )
    with pytest.raises(qd.BackendError, match="needs devices of one kind, got sm_80, sm_90"):
        two.architecture()
    assert [CudaDriver(numbers=[k]).architecture() for k in (1, 2)] == ["sm_80", "sm_90"]


def test_contexts_are_those_of_the_devices_that_jax_uses(monkeypatch) -> None:
    retained: list[int] = []
    found = made(monkeypatch, cuDevicePrimaryCtxRetain=lambda out, device: retained.append(device.value) or 0)
    found._given = [3, 4]
    monkeypatch.setattr(ctypes, "memset", lambda *_: None)
    found.host_memory(8)
    found.host_memory(8)
    assert retained == [3]


def test_the_driver_is_that_of_the_devices_of_jax(monkeypatch) -> None:
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda _: library())
    driver_module.driver.cache_clear()
    assert driver_module.driver()._given is None or jax.default_backend() == "gpu"
    driver_module.driver.cache_clear()
    monkeypatch.setattr(jax, "local_devices", lambda backend: [SimpleNamespace(local_hardware_id=k) for k in (2, 5)])
    assert driver_module.driver()._given == [2, 5]
    driver_module.driver.cache_clear()


def test_old_drivers(monkeypatch) -> None:
    with pytest.raises(qd.BackendError, match=r"^needs a driver for CUDA 12 or newer, got one for 11\.8$"):
        made(monkeypatch, cuDriverGetVersion=lambda out: write(out, 11080))

    class Without(Library):
        def __getattr__(self, name: str) -> Any:
            if name == "cuLibraryLoadData":
                raise AttributeError(name)
            return super().__getattr__(name)

    old = made(monkeypatch)
    old._library = Without(**vars(library()))
    with pytest.raises(qd.BackendError, match="needs a driver for CUDA 12 or newer, got one without cuLibraryLoadData"):
        old.load(b"")


def test_what_the_linker_says_is_in_the_error(monkeypatch) -> None:
    logs: list[Any] = []
    done: list[str] = []

    def create(count: Any, options: Any, values: Any, out: Any) -> int:
        assert list(options) == [5, 6]
        logs.append(values[0])
        return write(out, 1)

    def add(*arguments: Any) -> int:
        ctypes.memmove(logs[-1], b"line 4: bogus\n\0", 15)
        return 218

    def tell(name: str) -> Any:
        return lambda *_: done.append(name) or 0

    broken = made(
        monkeypatch, cuLinkCreate_v2=create, cuLinkAddData_v2=add, cuLinkDestroy=tell("destroyed"),
        cuCtxPushCurrent_v2=tell("pushed"), cuCtxPopCurrent_v2=tell("popped"),
    )  # fmt: skip
    with pytest.raises(qd.BackendError) as raised:
        broken.link("bogus")
    assert str(raised.value) == "NVIDIA's driver: cuLinkAddData_v2 failed: CUDA_ERROR_218\nnote: line 4: bogus"
    assert done == ["pushed", "destroyed", "popped"]
    refused = made(monkeypatch, cuMemHostAlloc=lambda *_: 2)
    with pytest.raises(qd.BackendError) as raised:
        refused.host_memory(8)
    assert str(raised.value) == "NVIDIA's driver: cuMemHostAlloc failed: CUDA_ERROR_2"


def test_much_shared_memory_is_asked_for_on_all_devices(monkeypatch) -> None:
    asked: list[tuple[int, ...]] = []

    def attribute(*arguments: Any) -> int:
        asked.append(tuple(a.value for a in arguments))
        return 0

    found = made(
        monkeypatch, cuDeviceGetCount=lambda out: write(out, 2), cuKernelSetAttribute=attribute,
        cuLibraryGetKernel=lambda out, library, name: write(out, 77),
    )  # fmt: skip
    assert found.kernel(1, "k", 48 * 1024) == 77
    assert asked == []
    assert found.kernel(1, "k", 48 * 1024 + 1) == 77
    assert asked == [(8, 48 * 1024 + 1, 77, 0), (8, 48 * 1024 + 1, 77, 1)]


def test_functions_that_handlers_call_are_looked_up_by_name() -> None:
    """On a library that is there: the C library's functions stand in."""
    found = object.__new__(CudaDriver)
    found._library = ctypes.CDLL(None)
    strlen = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_char_p)(found.address("strlen"))
    assert strlen(b"four") == 4
    assert len(set(CUDA.all)) == 6
