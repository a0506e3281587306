"""One computation in several processes: `jax.distributed` with collectives of processors, on one machine."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

pytestmark = pytest.mark.cpu


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def end(rate, start):
    return jax.lax.while_loop(lambda y: y > 1.0, lambda y: y * rate, start)


@pytest.mark.full
def test_two_processes() -> None:
    script, address = str(Path(__file__).parent / "machine_child.py"), f"127.0.0.1:{free_port()}"
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    variables["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    commands = [[sys.executable, script, address, "2", str(k)] for k in range(2)]
    running = [subprocess.Popen(c, stdout=-1, stderr=-1, text=True, env=variables) for c in commands]
    done = [process.communicate() for process in running]
    assert [p.returncode for p in running] == [0, 0], done[0][1] + done[1][1]
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in done)
    starts = jnp.linspace(1.0, 4.0, 8)

    def mean(rate):
        return qd.vmap(end, (None, 0))(rate, starts).mean()

    wanted, slope = mean(0.5), jax.grad(mean)(0.5)
    for found in (first, second):
        assert found["devices"] == 2
        np.testing.assert_allclose([found["mean"], found["arrays"]], wanted, rtol=1e-6)
        np.testing.assert_allclose([found["slope"], found["slope of arrays"]], slope, rtol=1e-6)
    assert first["fault"] == ""  # the one that is inside goes on; what it gets is wrong, and the other one says so
    assert second["fault"].startswith("BoundsError: index 4 is out of bounds for axis 0 of `x` with shape (4,)")
