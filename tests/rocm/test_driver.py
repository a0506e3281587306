"""The call through HIP, with a library that stands in for it; what is said where it is missing, too old, or refuses;
and code for chips that are not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.gpu.backend import GpuBackend
from lowering.rocm import driver as driver_module
from lowering.rocm.backend import RocmBackend
from lowering.rocm.driver import RocmDriver
from qdtrace.backend import backend
from qdtrace.config import current
from tests.gpu.fake import FakeDriver, Filled, fake_backend
from tests.lowering import code_objects
from tests.rocm.hip import VERSION, Hip, OnHost, launched, of_stream, write
from tests.runtime.programs import affine as affine_program
from tests.runtime.programs import chain, total, uncached

MISSING = "libqd_nonesuch.so"
OPTIONS = uncached(block_dim=4)


def no_driver() -> RocmDriver:
    return RocmDriver((MISSING, MISSING + ".6"))


def made(monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[RocmDriver, Hip]:
    hip = Hip(FakeDriver(), **given)
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda _: hip)
    return OnHost(hip), hip


@pytest.fixture
def hip_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    @contextmanager
    def opened(devices: int = 2) -> Iterator[tuple[GpuBackend, OnHost]]:
        with fake_backend() as (made, fake):
            hip = Hip(fake, devices)
            monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda _: hip)
            driver = OnHost(hip)
            monkeypatch.undo()
            made._find_driver = lambda: driver
            launched.clear()
            of_stream[0] = 0
            yield made, driver

    return opened


def f32(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def by_llvm(function: Any) -> Any:
    return qd.jit(function, options={"codegen": "llvm"})


@by_llvm
def affine(x):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = 2 * x[i] + 1
    return out


@pytest.mark.parametrize("n", [0, 1, 7, 100])
def test_one_task(hip_backend: Any, n: int) -> None:
    with hip_backend() as (made, _):
        done = made.compile(affine_program(n), OPTIONS)
        assert np.array_equal(jax.jit(done.call)(f32(n))[0], f32(n) * 2 + 1)
        assert len(launched) == bool(n)


def test_tasks_sums_and_fills(hip_backend: Any) -> None:
    with hip_backend() as (made, driver):
        assert np.array_equal(made.compile(chain(50), OPTIONS).call(f32(50))[0], f32(50) * 8 + 7)
        done = made.compile(total(100), OPTIONS)
        assert done.call(f32(100), np.float32(1))[0] == 4951
        assert all(not isinstance(asked, Filled) for asked in driver.hip.fake.asked)


def test_a_kernel_is_launched_on_the_device_of_the_stream(hip_backend: Any) -> None:
    """Each device has a module of its own, and none is current afterwards that was not before."""
    with hip_backend(devices=3) as (made, driver):
        driver.hip.device = 1
        done = made.compile(affine_program(20), OPTIONS)
        assert driver.hip.device == 1
        assert {device for device, _ in driver.hip.loaded} == {0, 1, 2}
        call = jax.jit(done.call)
        for device in (2, 0, 1):
            of_stream[0] = device
            assert np.array_equal(call(f32(20))[0], f32(20) * 2 + 1)
            assert driver.hip.owner[launched[-1]] == device


def test_a_stream_without_a_device(hip_backend: Any) -> None:
    with hip_backend() as (made, _):
        done = made.compile(affine_program(21), OPTIONS)
        of_stream[0] = -101
        with pytest.raises(Exception, match=r"the driver refused .*: FAKE_ERROR_101"):
            jax.block_until_ready(jax.jit(done.call)(f32(21)))
        assert launched == []


def test_a_machine_without_a_driver() -> None:
    with pytest.raises(qd.BackendError) as raised:
        no_driver()
    rule, *notes, help_ = str(raised.value).splitlines()
    assert rule == f"needs AMD's driver ({MISSING}), which is not on this machine"
    assert [note.split(":")[1].strip() for note in notes] == [MISSING, MISSING + ".6"]
    assert help_ == 'help: name the chip to look at code without a device: f.lower(*args, target="gfx942")'


def test_lowering_for_rocm_needs_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    backend.cache_clear()
    monkeypatch.setattr("lowering.rocm.backend.driver", no_driver)
    try:
        with pytest.raises(qd.BackendError, match="needs AMD's driver"):
            jax.jit(affine).trace(jnp.ones(3)).lower(lowering_platforms=("rocm",))
        with pytest.raises(qd.BackendError, match="needs AMD's driver"):
            affine.lower(jnp.ones(3), target="rocm")
    finally:
        backend.cache_clear()


@pytest.mark.parametrize("kind", ["gfx90a", "gfx942", "gfx950", "gfx1100"])
def test_code_for_chips_that_are_not_there(kind: str) -> None:
    low = affine.lower(jnp.ones(300), target=kind)
    assert f'.amdgcn_target "amdgcn-amd-amdhsa--{kind}"' in low.as_text("amdgcn")
    assert "define amdgpu_kernel void @qd_kernel(" in low.as_text("llvm")
    assert "range_for" in low.graph()
    (task,) = low.tasks
    assert (task.codegen, task.bounds) == ("llvm", (0, 300))
    assert task.at_once > 90_000
    assert low.memory_analysis()["stack_per_lane"] == 0
    with pytest.raises(qd.BackendError) as raised:
        low.as_text("ptx")
    assert str(raised.value) == f"needs a dialect out of graph, triton, llvm, amdgcn for target {kind!r}, got 'ptx'"


def test_the_code_of_the_driver_is_a_code_object(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="its linker makes code objects")
    driver, _ = made(monkeypatch)
    kind = RocmBackend("gfx942")
    text = kind.text(affine_program(8).tasks[0], current(), "llvm")
    assert set(code_objects.read(RocmDriver.code(driver, text, kind.device)).kernels) == {"qd_kernel"}


def test_info_names_the_chip() -> None:
    facts = RocmBackend("gfx950").info(current())
    assert facts["device"] == "gfx950"
    assert {"artifact cache", "versions", "compiler"} < set(facts)


def test_the_kind_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch)[0].architecture() == "gfx942"
    with pytest.raises(qd.BackendError) as raised:
        made(monkeypatch, devices=0)[0].architecture()
    assert str(raised.value) == "needs devices of one kind, got none\nhelp: choose some with HIP_VISIBLE_DEVICES"
    with pytest.raises(qd.BackendError, match="needs devices of one kind, got gfx1100, gfx90a"):
        made(monkeypatch, devices=3, chip=["gfx90a:xnack-", "gfx90a", "gfx1100"])[0].architecture()


def test_old_and_broken_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(qd.BackendError, match=r"^needs ROCm 6 or newer, got 5$"):
        made(monkeypatch, hipRuntimeGetVersion=lambda out: write(out, VERSION - 10_000_000))
    driver, hip = made(monkeypatch, hipHostMalloc=lambda *_: 2)
    with pytest.raises(qd.BackendError) as raised:
        driver.host_memory(8)
    assert str(raised.value) == "AMD's driver: hipHostMalloc failed: hipError2"
    hip.device, hip.hipModuleLoadData = 1, lambda *_: 209
    with pytest.raises(qd.BackendError, match="hipModuleLoadData failed: hipError209"):
        driver.load(b"code")
    assert hip.device == 1
    with pytest.raises(qd.BackendError, match="needs ROCm 6 or newer, got one without hipNonesuch"):
        driver.address("hipNonesuch")
    with pytest.raises(qd.BackendError, match="needs ROCm 6 or newer, got one without hipNonesuch"):
        driver._call("hipNonesuch")
