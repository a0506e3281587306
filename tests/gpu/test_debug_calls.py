"""Calls of `debug=True`, from arguments to the end of the process: any dtype and shape, any thread, several devices."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace import hooks
from tests import fresh
from tests.gpu.faults import ORDER, X, read

DTYPES = ("bool", "int8", "uint8", "int16", "uint32", "int32", "float16", "bfloat16", "float32")
WIDE = ("int64", "uint64", "float64")


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 2), (2, 0)])
@pytest.mark.parametrize("dtype", [*DTYPES, *WIDE])
def test_bits_go_there_and_back(put, dtype: str, shape: tuple[int, ...]) -> None:
    @qd.jit(options={"debug": True})
    def copied(x):
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.ndrange(*(x.shape or (1,))):
            at = i if x.shape else ()
            out[at] = x[at]
        return out

    with jax.enable_x64(dtype in WIDE):
        bits = np.random.default_rng(0).integers(0, 256, (*shape, jnp.dtype(dtype).itemsize), np.uint8)
        given = (bits & 1 if dtype == "bool" else bits).view(jnp.dtype(dtype)).reshape(shape)
        given = np.where(given == given, given, given.dtype.type(1))
        for run in (copied, jax.jit(copied), lambda x: jax.vmap(copied)(x[None])[0]):
            out = run(put(given))
            assert out.dtype == given.dtype
            assert np.asarray(out).tobytes() == given.tobytes()


def late(put: Callable[[Any], Any], x: np.ndarray) -> Any:
    """The array, which is there in a while: calls that take it do not run in the thread that makes them."""
    work = jax.jit(lambda x, m: x + 0 * jax.lax.fori_loop(0, 200, lambda _, m: m @ m * 1e-3, m)[0, 0].astype(x.dtype))
    return work(*put((x, np.ones((400, 400), np.float32))))


@pytest.mark.full
def test_arguments_that_are_not_there_yet(put) -> None:
    """Python is called back in a thread of XLA's then, which knows nothing of a block of `jax.enable_x64`."""
    function = qd.jit(read, options={"debug": True})
    with jax.enable_x64(True):
        x, k = X.astype(np.float64) + 1e-12, put(ORDER.astype(np.int64))
        for run in (function, jax.jit(function)):
            out = run(late(put, x), k)
            assert out.dtype == np.float64
            np.testing.assert_array_equal(out, 2 * x[ORDER])
    wrong = put(np.array([0, 1, 4, 0], np.int32))
    for run in (function, jax.jit(function)):
        with pytest.raises(qd.BoundsError, match="index 4 is out of bounds"):
            qd.block_until_ready(run(late(put, X), wrong))
    jax.effects_barrier()  # nothing is left behind


@pytest.mark.full
def test_errors_of_others_stay() -> None:
    """A callback of the user's own that fails is JAX's to tell of, whatever fails beside it."""

    def fails(x: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("not ours")

    def own(x: Any) -> Any:
        return jax.pure_callback(fails, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def on_host(tree: Any) -> Any:
        return jax.device_put(tree, jax.devices("cpu")[0])

    out = jax.jit(own)(late(on_host, X))
    with pytest.raises(jax.errors.JaxRuntimeError, match="not ours"):
        qd.block_until_ready(out)
    hooks.forget_failed_runs(lambda error: "index" in str(error))
    with pytest.raises(jax.errors.JaxRuntimeError, match="not ours"):
        jax.effects_barrier()
    hooks.forget_failed_runs(lambda error: "not ours" in str(error))
    jax.effects_barrier()


def test_no_processor(monkeypatch) -> None:
    def devices(backend: str | None = None) -> list[Any]:
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", devices)
    with pytest.raises(qd.BackendError) as raised:
        qd.jit(read, options={"debug": True})(X, ORDER)
    assert str(raised.value) == (
        "read: debug=True runs on the processor: needs JAX's platform cpu, got none\n"
        "help: add it behind the platform of the arrays: JAX_PLATFORMS=cuda,cpu"
    )


ENDING = """
import sys
import jax, numpy as np
import qdtrace as qd
from tests.gpu.faults import X, read
from tests.gpu.test_debug_calls import late

device = jax.devices(sys.argv[1])[0]
put = lambda tree: jax.device_put(tree, device)
wrong = put(np.array([0, 1, 2, 4], np.int32))
function = qd.jit(read, options={"debug": True})
for run in (function, jax.grad(lambda x, k: function(x, k).sum()), jax.jit(function)):
    for x in (put(X), late(put, X)):
        try:
            qd.block_until_ready(run(x, wrong))
        except (qd.BoundsError, jax.errors.JaxRuntimeError, ValueError):
            print("caught")
if sys.argv[2] == "not caught":
    function(late(put, X), wrong)
"""
SHARDED = """
import sys
import jax, numpy as np
import qdtrace as qd
from tests.gpu.faults import read

devices = jax.devices(sys.argv[1])[:2]
assert len(devices) == 2
mesh = jax.sharding.Mesh(devices, ("d",))
spec = jax.sharding.PartitionSpec("d")
x = np.arange(8, dtype=np.float32)
right, wrong = np.array([1, 0, 3, 2, 2, 1, 0, 3]), np.array([1, 0, 3, 2, 2, 1, 0, 5])
wanted = 2 * np.concatenate([x[:4][right[:4]], x[4:][right[4:]]])
x, right, wrong = jax.device_put((x, right, wrong), jax.sharding.NamedSharding(mesh, spec))
function = qd.jit(read, options={"debug": True})
split = jax.shard_map(function, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
for run in (split, jax.jit(split)):
    for _ in range(2):
        np.testing.assert_array_equal(run(x, right), wanted)
        try:
            qd.block_until_ready(run(x, wrong))
        except (qd.BoundsError, jax.errors.JaxRuntimeError, ValueError) as error:
            assert "index 5 is out of bounds for axis 0 of `x` with shape (4,)" in str(error)
            print("caught")
for k in devices:
    out = function(*jax.device_put((np.ones(4), np.arange(4)), k))
    assert out.devices() == {k} and out.tolist() == [2, 2, 2, 2]
"""


def in_process(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *words]
    root, environment = Path(__file__).parents[2], {**os.environ, **environment}
    return fresh.run(command, cwd=root, env=environment)


@pytest.mark.parametrize("last", ["caught", "not caught"])
def test_a_failure_is_told_once(device: str, last: str) -> None:
    """Not again as the process ends: where nobody catches it, its text is the end of what a user sees."""
    done = in_process(ENDING, device, last)
    assert done.stdout == "caught\n" * 6, done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == (last == "not caught")
    if last == "not caught":
        error = done.stderr.rpartition("qdtrace.errors.BoundsError: ")[2]
        assert error.startswith("index 4 is out of bounds for axis 0 of `x` with shape (4,)")
        assert "Traceback" not in error


def test_several_devices(device: str) -> None:
    if device == "gpu" and len(jax.devices("gpu")) < 2:
        pytest.skip("needs two GPUs")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"} if device == "cpu" else {}
    done = in_process(SHARDED, device, **flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "caught\n" * 4
