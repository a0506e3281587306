"""`qd.stats`: the same counts in a process that finds all code on disk as in one that finds none."""

import json
import os
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd
from qdtrace import counters
from tests import fresh

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
from dataclasses import asdict
import jax, jax.numpy as jnp, qdtrace as qd
from qdtrace.compose import stack_budget
stack_budget.free_memory = lambda: 1 << 34  # what is free while other tests run decides what a derivative keeps
@qd.jit
def decay(x, n):
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.range(n[i]):
            v.value = jnp.sin(v.value)
        x[i] = v.value
    return x
x, n = jnp.ones(5), jnp.arange(5)
decay(x, n)
decay(x, n)
first = qd.stats()
jax.jit(jax.grad(lambda x, n: decay(x, n).sum()))(x, n)
jax.jit(lambda x: qd.vmap(jnp.exp)(x))(x)
print(json.dumps([asdict(first), asdict(qd.stats() - first)]))
"""


def _run(folder: Path, **more: str) -> list[dict]:
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    environment |= {"QD_OFFLINE_CACHE_PASSES": "1", **more}
    script = folder / "program.py"
    script.write_text(PROGRAM)
    done = fresh.run([sys.executable, script], env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def cold(tmp_path_factory) -> tuple[Path, list[dict]]:
    """What a process counts that finds no code, and the folder with its cache."""
    folder = tmp_path_factory.mktemp("cold")
    return folder, _run(folder)


def test_cold_and_warm_processes_count_the_same(cold):
    folder, cold = cold
    warm, off = _run(folder), _run(folder, QD_OFFLINE_CACHE="0")
    launcher, task_and_handler = 1, 2
    first, rest = cold
    assert (first["traces"], first["programs"], first["derivations"]) == (1, 1, 0)
    assert first["compiled"] == first["linked"] >= launcher + task_and_handler  # and functions of maths
    assert (rest["traces"], rest["derivations"]) == (1, 1)  # the function of `qd.vmap`
    for before, after, without in zip(cold, warm, off, strict=True):
        for name in ("traces", "programs", "linked"):
            assert before[name] == after[name] == without[name], name
        assert (before["loaded"], after["compiled"], without["loaded"]) == (0, 0, 0)
        assert before["compiled"] == after["loaded"] == without["compiled"]
        assert after["misses"] == without["hits"] == {}
        graphs, derived = before["pipelines"], before["derivations"]
        assert graphs > 0
        assert (after["pipelines"], without["pipelines"]) == (0, graphs)
        assert (after["derivations"], without["derivations"]) == (0, derived)
        # one derivative is asked for twice: once of all residuals, once of those that are kept, with the same tangents
        asked = {"passes": graphs} | ({"derivations": 2 * derived, "tangents": 2} if derived else {})
        assert before["hits"] == {}
        assert before["misses"] == {f"{k}: not there": n for k, n in {"code": before["compiled"], **asked}.items()}
        # the joined graphs are only read to derive from them
        assert after["hits"] == {"code": after["loaded"], **asked, "passes": graphs - derived}
        assert without["misses"] == {f"{k}: off": n for k, n in {"code": without["compiled"], **asked}.items()}
        assert (before["bytes_written"] > after["bytes_read"]) == (derived > 0)
        assert 0 < after["bytes_read"] <= before["bytes_written"]
        assert (before["bytes_read"], after["bytes_written"]) == (0, 0)
        assert before["seconds"].keys() == after["seconds"].keys()
    assert rest["bytes_written"] == rest["bytes_on_disk"]
    assert first["seconds"].keys() == {"tracing", "importing", "optimising", "compiling"}
    assert rest["seconds"].keys() >= {"importing", "differentiating", "optimising", "compiling"}
    assert [made["bytes_on_disk"] for made in off] == [0, 0]


def test_a_damaged_file_is_a_reason(cold, tmp_path):
    shutil.copytree(cold[0] / "cache", tmp_path / "cache")
    for path in (tmp_path / "cache").glob("*.qdo"):
        path.write_bytes(path.read_bytes()[:-1])
    first, _ = _run(tmp_path)
    assert first["misses"] == {"code: damaged": first["compiled"], "passes: damaged": 1}


@pytest.mark.full
def test_only_the_work_in_between_is_in_a_difference():
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] *= 1.625
        return x

    f(jnp.ones(3))
    before = qd.stats()
    f(jnp.ones(3))
    work = qd.stats() - before
    assert work == qd.Stats(0, 0, 0, 0, 0, 0, 0, 0, {}, {}, {}, 0, 0, work.bytes_on_disk)
    f(jnp.ones(4))
    assert (qd.stats() - before).traces == 1
    jax.jit(lambda x: f(x) + f(2 * x))(jnp.ones(4))
    assert (qd.stats() - before).traces == 1


def test_a_stage_inside_of_another_counts_for_itself(monkeypatch):
    now = iter([0, 1, 3, 4, 8, 16])
    monkeypatch.setattr(counters.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(counters, "seconds", type(counters.seconds)())
    with counters.timed("outer"):
        with counters.timed("inner"):
            pass
        with pytest.raises(KeyError), counters.timed("inner"):
            raise KeyError
    assert counters.seconds == {"outer": 10, "inner": 6}
