"""Calls on a GPU: results, memory in place, failed checks, loops of XLA, recorded graphs, a warm cache."""

import ctypes
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.cuda.driver import CudaDriver
from lowering.gpu import handler
from lowering.gpu.backend import GpuBackend
from lowering.simt.devices import device
from tests.cuda.programs import affine, shifted
from tests.runtime.programs import affine as affine_program
from tests.runtime.programs import uncached

pytestmark = pytest.mark.gpu

GRAPHS = {"xla_gpu_graph_min_graph_size": 1}


def f32(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


@pytest.mark.parametrize("n", [0, 1, 7, 1024, 100_003])
def test_sizes(n: int) -> None:
    x = jnp.asarray(f32(n))
    assert np.array_equal(affine(x), f32(n) * 2 + 1)
    assert np.array_equal(jax.jit(affine)(x), f32(n) * 2 + 1)
    assert np.array_equal(jax.vmap(affine)(jnp.stack([x, x])), np.stack([f32(n) * 2 + 1] * 2))


DTYPES = ["bool", "int8", "uint16", "float16", "bfloat16", "int32", "float32", "int64", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_initial_values(dtype: str) -> None:
    with jax.enable_x64(True):
        for value in (0, 1, 3):
            for n in (1, 7, 1001):

                @qd.jit
                def filled(k, n=n, value=value):
                    out = qd.full(n, value, dtype)
                    for i in qd.range(k.shape[0]):
                        out[k[i]] = out[0]
                    return out

                wanted = np.full(n, value).astype(jnp.dtype(dtype))
                assert np.asarray(filled(jnp.zeros(1, jnp.int32))).tobytes() == wanted.tobytes()


def test_sums_have_the_same_bits_in_each_call() -> None:
    @qd.jit
    def sums(x):
        total, bins = qd.zeros((), x.dtype), qd.zeros(16, jnp.int32)
        for i in qd.range(x.shape[0]):
            total[()] += x[i]
            bins[jnp.int32(x[i]) % 16] += 1
        return total, bins

    x = np.random.default_rng(0).integers(0, 1000, 300_001).astype(np.float32)
    total, bins = sums(x)
    np.testing.assert_allclose(total, x.sum(dtype=np.float64), rtol=1e-6)
    assert np.array_equal(bins, np.bincount(x.astype(int) % 16, minlength=16))
    assert all(np.array_equal(sums(x)[0], total) for _ in range(3))


def test_bounds_that_tasks_change() -> None:
    @qd.jit
    def f(x, n):
        for i in qd.range(n):
            x[i] += 1
        for i in qd.range(jnp.int32(x[0])):
            x[i] *= 2
        return x

    wanted = f32(100) + 4
    wanted[:50] += 1
    wanted[:5] *= 2
    assert np.array_equal(f(f32(100) + 4, 50), wanted)


def test_constants_of_tasks_with_equal_code() -> None:
    @qd.jit(options={"fuse_tasks": "off"})
    def f(x):
        out = qd.empty((8, x.shape[0]), x.dtype)
        for k in range(8):
            for i in qd.range(x.shape[0]):
                out[k, i] = x[i] * (1.5 + k)
        return out

    assert np.array_equal(f(f32(1000)), np.stack([f32(1000) * np.float32(1.5 + k) for k in range(8)]))


def test_in_place() -> None:
    def more(x):
        for i in qd.range(x.shape[0]):
            x[i] += 1
        return x

    x = jnp.zeros(1000)
    where = x.unsafe_buffer_pointer()
    assert qd.jit(more, donate_argnums=0)(x).unsafe_buffer_pointer() == where
    x = jnp.zeros(1000)
    assert np.array_equal(qd.jit(more)(x), np.ones(1000))
    assert np.array_equal(x, np.zeros(1000))


def test_a_failed_check_is_raised_when_somebody_waits() -> None:
    x = jnp.arange(3.0)
    out = shifted(x, 1)
    with pytest.raises(qd.BoundsError, match=r"index 3 is out of bounds(.|\n)*out\[i\] = x\[i \+ by\]"):
        qd.block_until_ready(out)
    assert np.array_equal(qd.block_until_ready(shifted(x, 0)), f32(3))


def test_or_by_the_next_call() -> None:
    x = jnp.arange(3.0)
    shifted(x, -5).block_until_ready()
    with pytest.raises(qd.BoundsError, match=r"index -[345] is out of bounds"):
        affine(x)
    assert np.array_equal(affine(x), f32(3) * 2 + 1)


def test_or_by_the_handler_in_functions_of_jax() -> None:
    around = jax.jit(lambda x, by: shifted(x, by))
    x = jnp.arange(3.0)
    around(x, 7).block_until_ready()
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"OUT_OF_RANGE: index [789] is out of bounds"):
        around(x, 0).block_until_ready()
    assert np.array_equal(around(x, 0), f32(3))


def test_checks_of_the_user() -> None:
    @qd.jit
    def positive(x):
        for i in qd.range(x.shape[0]):
            qd.check(x[i] > 0, "100% positive")
        return x

    assert np.array_equal(qd.block_until_ready(positive(jnp.ones(3))), np.ones(3))
    out = positive(jnp.zeros(3))
    with pytest.raises(qd.CheckError, match="check failed: 100% positive"):
        qd.block_until_ready(out)


def test_the_interpreter_fails_in_the_call_itself() -> None:
    @qd.jit(options={"debug": True})
    def last(x):
        out = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            out[()] += x[i + 1]
        return out

    with pytest.raises(qd.BoundsError, match="index 3"):
        last(jnp.arange(3.0))
    qd.block_until_ready(affine(jnp.arange(3.0)))


@pytest.mark.parametrize("options", [None, GRAPHS])
def test_loops_of_xla(options: dict[str, Any] | None) -> None:
    wanted = f32(1000)
    for _ in range(100):
        wanted = (wanted * 2 + 1) * np.float32(0.25)
    step = lambda x: affine(x) * 0.25  # noqa: E731
    counted = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, x: step(x), x), compiler_options=options)

    def until(x, n):
        return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, step(s[1])), (0, x))[1]

    unknown = jax.jit(until, compiler_options=options)
    for _ in range(4):
        np.testing.assert_allclose(counted(f32(1000)), wanted, rtol=1e-6)
        np.testing.assert_allclose(unknown(f32(1000), 100), wanted, rtol=1e-6)


def test_derivatives() -> None:
    @qd.jit
    def f(x):
        out = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            v = qd.local(x[i])
            for _ in qd.range(10):
                v.value = jnp.sin(v.value) + v.value
            out[()] += v.value
        return out

    def g(x):
        for _ in range(10):
            x = jnp.sin(x) + x
        return x.sum()

    x = jnp.linspace(0, 3, 1000)
    np.testing.assert_allclose(jax.grad(f)(x), jax.grad(g)(x), rtol=1e-4, atol=1e-5)


def test_calls_from_several_threads() -> None:
    wrong: list[float] = []

    def work(first: int) -> None:
        for k in range(200):
            value = float(first + k)
            if not np.array_equal(affine(jnp.full(1000, value)), np.full(1000, 2 * value + 1)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


class CountingDriver(CudaDriver):
    """Counts the launches that handlers ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        types = [ctypes.c_void_p, *[ctypes.c_int] * 7, *[ctypes.c_void_p] * 3]
        launch = ctypes.CFUNCTYPE(ctypes.c_int, *types)(super().address(self.functions.launch))

        def counted(*arguments: Any) -> int:
            self.launches += 1
            return launch(*arguments)

        self._counted = ctypes.CFUNCTYPE(ctypes.c_int, *types)(counted)

    def address(self, function: str) -> int:
        if function == self.functions.launch:
            return ctypes.cast(self._counted, ctypes.c_void_p).value or 0
        return super().address(function)


def test_a_loop_is_recorded(monkeypatch) -> None:
    """Once its graph is there, a loop of a thousand calls runs no handler."""
    text = handler.launcher_text
    monkeypatch.setattr("lowering.gpu.backend.launcher_text", lambda *names: text(*names) + "; counted\n")
    driver = CountingDriver()
    backend = GpuBackend(lambda: device(driver.architecture()), lambda: driver)
    call = backend.compile(affine_program(64, 0.5, name="recorded"), uncached()).call

    def loop(x):
        return jax.lax.fori_loop(0, 1000, lambda _, x: call(x)[0], x)

    plain, recorded = jax.jit(loop), jax.jit(loop, compiler_options=GRAPHS)
    x = jnp.arange(64.0)
    for run, launches in ((plain, 1000), (recorded, 0)):
        run(x).block_until_ready()
        run(x).block_until_ready()
        before = driver.launches
        out = run(x).block_until_ready()
        assert driver.launches - before == launches
        np.testing.assert_allclose(out, np.full(64, 2.0), rtol=1e-6)


def test_a_warm_process_compiles_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(tmp_path)}

    def run() -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.cuda.child"]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    cold, warm = run(), run()
    assert cold["stats"]["compiled"] > 0
    assert warm["stats"] == {**cold["stats"], "compiled": 0, "loaded": cold["stats"]["compiled"]}
    assert warm["loaded"] == []
    assert warm["bits"] == cold["bits"]


def test_several_devices() -> None:
    gpus = jax.devices()
    if len(gpus) < 2:
        pytest.skip("needs two GPUs")
    for gpu in gpus:
        out = affine(jax.device_put(f32(1000), gpu))
        assert out.devices() == {gpu}
        assert np.array_equal(out, f32(1000) * 2 + 1)
        wrong = shifted(jax.device_put(f32(3), gpu), 1)
        with pytest.raises(qd.BoundsError):
            qd.block_until_ready(wrong)
    mesh = jax.make_mesh((len(gpus),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    n = 1000 * len(gpus)
    x = jax.device_put(f32(n), jax.sharding.NamedSharding(mesh, spec))
    step = jax.jit(partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)(affine))
    for _ in range(5):
        assert np.array_equal(step(x), f32(n) * 2 + 1)
