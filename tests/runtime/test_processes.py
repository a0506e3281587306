"""Several processes over one artifact cache, and several devices in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def start(folder: Path, threads: int = 2) -> subprocess.Popen[str]:
    """A process with two devices and that many threads each, which compiles into folders below the one given."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "NPROC": str(threads)}
    command = [sys.executable, "-m", "tests.runtime.child", str(folder / "ours"), str(folder / "xla")]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def outcome(process: subprocess.Popen[str]) -> dict:
    """What it printed."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def cold(tmp_path_factory) -> tuple[Path, list[dict]]:
    """Two processes at the same time on one empty cache."""
    folder = tmp_path_factory.mktemp("cache")
    both = [start(folder), start(folder, threads=9)]
    return folder, [outcome(p) for p in both]


@pytest.mark.full
def test_two_processes_fill_one_cache(cold):
    folder, outcomes = cold
    assert all(o["good"] for o in outcomes)
    assert [o["sharded"] for o in outcomes] == [[True, False]] * 2
    assert outcomes[0]["names"] == outcomes[1]["names"]
    tasks_handlers_and_launcher = 2 + 2 + 1
    task_and_handler_of_the_sum = 2
    assert len(list((folder / "ours").iterdir())) == tasks_handlers_and_launcher + task_and_handler_of_the_sum
    for o in outcomes:
        assert o["both"]["compiled"] + o["both"]["loaded"] == tasks_handlers_and_launcher
    assert sum(o["both"]["compiled"] for o in outcomes) >= tasks_handlers_and_launcher


@pytest.mark.full
def test_a_warm_process_compiles_nothing_and_mends_a_damaged_file(cold):
    folder, outcomes = cold
    before = {p: p.read_bytes() for p in (folder / "ours").iterdir()}
    (handler,) = [p for p, data in before.items() if b"affine" in data]
    handler.write_bytes(before[handler][:-20])
    kept_by_jax = compiled_by_xla(folder)
    warm = outcome(start(folder))
    assert warm["compiler"] == outcomes[0]["compiler"], "the compiler's source changed while the test ran"
    assert warm["good"]
    assert warm["names"] == outcomes[0]["names"]
    assert warm["first"] == {"compiled": 0, "loaded": 3, "linked": 3}
    assert warm["both"] == {"compiled": 1, "loaded": 4, "linked": 5}
    assert {p: p.read_bytes() for p in (folder / "ours").iterdir()} == before
    assert warm["all"] == {"compiled": 1, "loaded": 6, "linked": 7}
    assert [o["sum"] for o in outcomes] == [warm["sum"]] * 2, "a sum has other bits with other threads"
    assert warm["loaded"] == []
    assert ["lowering.simd.emit"] in [o["loaded"] for o in outcomes]
    assert warm["sharded"] == [True, False]
    assert kept_by_jax
    assert compiled_by_xla(folder) == kept_by_jax, "JAX did not find its programs that call ours again"


def compiled_by_xla(folder: Path) -> set[str]:
    """Names of the programs in JAX's own cache."""
    return {p.name for p in (folder / "xla").iterdir() if p.name.endswith("-cache")}
