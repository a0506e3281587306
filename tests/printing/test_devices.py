"""Prints on several devices, and by kernels of a GPU that run on the host."""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import qdtrace as qd
from tests import fresh
from tests.gpu.fake import fake_backend

SHARDS = """
import jax, jax.numpy as jnp, numpy as np, qdtrace as qd
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))

@qd.jit
def f(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        jax.debug.print("{} {}", i, x[i])
        out[i] = 2 * x[i]
    return out

x = np.arange(4.0, dtype=np.float32)
apart = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
assert apart(x).tolist() == [0, 2, 4, 6]
jax.effects_barrier()
print("together")
assert jax.jit(f)(jax.device_put(x, NamedSharding(mesh, P("d")))).tolist() == [0, 2, 4, 6]
jax.effects_barrier()
"""


def test_shards_print_each_their_own(tmp_path):
    file = tmp_path / "shards.py"
    file.write_text(SHARDS)
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    env["PYTHONPATH"] = str(Path(qd.__file__).parent.parent)
    done = fresh.run([sys.executable, str(file)], env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    at = lines.index("together")
    assert sorted(lines[:at]) == ["0 0.0", "0 2.0", "1 1.0", "1 3.0"]
    assert lines[at + 1 :] == [f"{k} {k}.0" for k in range(4)]


def test_kernels_of_a_gpu_leave_records(capsys, monkeypatch):
    @qd.jit(options={"offline_cache": False, "block_dim": 4, "print_lines": 3})
    def f(x):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            with qd.when(x[i] > 5):
                jax.debug.print("{} {}", i, x[i])
            out[i] = 2 * x[i]
        return out

    with fake_backend() as (fake, _):
        monkeypatch.setattr("qdtrace.compose.call.backend", lambda _: fake)
        assert f(jnp.arange(8.0)).tolist() == [2.0 * k for k in range(8)]
        jax.effects_barrier()
        assert capsys.readouterr().out.splitlines() == ["6 6.0", "7 7.0"]
        f(jnp.arange(20.0)).block_until_ready()
        jax.effects_barrier()
        assert capsys.readouterr().out.splitlines()[-1] == "11 more lines of `f` were left out (option print_lines=3)"


def test_inner_loops_of_kernels_run_twice_where_they_tell(capsys, monkeypatch):
    @qd.jit(options={"offline_cache": False, "block_dim": 4})
    def f(x):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            v = qd.local(x[i])
            for k in qd.range(3):
                v.value = v.value * 2
                with qd.when(v.value > 20):
                    jax.debug.print("{} {} {}", i, k, v.value)
            out[i] = v
        return out

    with fake_backend() as (fake, _):
        monkeypatch.setattr("qdtrace.compose.call.backend", lambda _: fake)
        assert f(jnp.arange(6.0)).tolist() == [8.0 * k for k in range(6)]
        jax.effects_barrier()
        assert capsys.readouterr().out.splitlines() == ["3 2 24.0", "4 2 32.0", "5 2 40.0"]
