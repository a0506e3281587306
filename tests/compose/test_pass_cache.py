"""The pass cache: what is read is what was written, and whatever changes a program is another key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.machine import CPU, GPU
from qdtrace.compose.pass_cache import _Reader, graph_key, kept, optimised, written
from qdtrace.config import current
from qdtrace.errors import Loc
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Literal, Stage
from qdtrace.ir.types import DType, ScalarType
from qdtrace.ir.walk import walk_program
from qdtrace.passes.pipelines import optimise
from qdtrace.tools.info import prune_cache

ROOT = Path(__file__).parents[2]

TEXT = """program p(x: ref[f32,8], n: ref[i32])
  buffer out: ref[f32,8] = -0.0:f32
  range_for i in 0:i32 : 8:i32 @"a task \\"named\\" é"
    v0: f32 = load x i
    v1: f32 = mul v0 1.5:f32
    v2: bool = lt v1 2.0:f32
    check[message="needs \\"less\\" é\\nthan 2"] v2
    store out v1 i
  return out
"""


@pytest.fixture
def on_disk(tmp_path):
    with qd.options(offline_cache=True, offline_cache_passes=True, offline_cache_dir=tmp_path):
        yield tmp_path


def _program(text: str = TEXT, lines: int = 0):
    locs = {k: Loc("/f.py", k + lines, "f") for k in range(1, 10)}
    return parse_program(text, locs=locs)


def _read(data, key):
    import io

    return _Reader(io.BytesIO(data), key.locs).load()


def test_a_second_look_runs_no_pass_and_gives_the_same(on_disk):
    program = _program()
    before = qd.stats()
    made = optimised(program, current())
    again = optimised(_program(), current())
    work = qd.stats() - before
    assert (work.pipelines, work.hits, work.misses) == (1, {"passes": 1}, {"passes: not there": 1})
    assert again is not made
    assert print_program(again, locs=True) == print_program(made, locs=True)
    assert print_program(made, locs=True) == print_program(optimise(program, current()), locs=True)
    assert again.stage is Stage.FINAL


def test_pruning_keeps_graphs_of_this_version(on_disk, capsys):
    optimised(_program(), current())
    (file,) = on_disk.iterdir()
    assert prune_cache() == 0
    assert capsys.readouterr().out == f"{on_disk}: 0 files removed\n"
    assert file.exists()


def test_lines_that_moved_are_the_new_ones(on_disk):
    optimised(_program(), current())
    before = qd.stats()
    moved = optimised(_program(lines=100), current())
    assert (qd.stats() - before).hits == {"passes": 1}
    lines = {e.loc.line for e in walk_program(moved) if e.loc} | {t.loc.line for t in moved.tasks if t.loc}
    assert lines
    assert min(lines) > 100


OTHERS = {
    "number": _program(TEXT.replace("1.5:f32", "1.25:f32")),
    "sign of zero": _program(TEXT.replace("= -0.0:f32", "= 0.0:f32")),
    "infinity": _program(TEXT.replace("1.5:f32", "inf:f32")),
    "name": _program(TEXT.replace("program p", "program q")),
    "message": _program(TEXT.replace("than 2", "than two")),
    "type": _program(TEXT.replace("f32", "f64")),
    "name of a task": _program(TEXT.replace("named", "called")),
    "name of a buffer": _program(TEXT.replace("out", "other")),
    "stage": replace(_program(), stage=Stage.CANONICAL),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_graph_is_another_key(other):
    assert graph_key(other).digest != graph_key(_program()).digest


def test_lines_that_become_one_are_another_key():
    one = parse_program(TEXT, locs=dict.fromkeys(range(1, 10), Loc("/f.py", 3)))
    assert graph_key(one).digest != graph_key(_program()).digest
    assert graph_key(_program(lines=7)).digest == graph_key(_program()).digest


BITS = {DType.f32: np.uint32, DType.f64: np.uint64, DType.f16: np.uint16, DType.bf16: np.uint16}
PAYLOADS = {DType.f32: 0x7FC12345, DType.f64: 0xFFF8000012345678, DType.f16: 0x7E12, DType.bf16: 0x7FC1}


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_bits_of_numbers_are_kept(dtype):
    """NaN with a payload, signed zeros, infinities, the smallest number."""
    (minus_zero, inf) = (np.asarray(v, dtype.numpy).view(BITS[dtype]) for v in (-0.0, np.inf))
    keys = set()
    for bits in (PAYLOADS[dtype], int(minus_zero), 0, int(inf), 1):
        value = Literal(np.asarray(bits, BITS[dtype]).view(dtype.numpy)[()], ScalarType(dtype))
        program = _program()
        program = replace(program, initial=dict.fromkeys(program.buffers, value))
        key = graph_key(program)
        keys.add(key.digest)
        (read,) = _read(written(program, key.locs), key).initial.values()
        assert np.asarray(read.value).view(BITS[dtype]) == bits
        assert read.dtype is dtype
    assert len(keys) == 5


@pytest.mark.parametrize(
    "changed",
    [{"machine": GPU}, {"until": Stage.CANONICAL}, {"differentiable": True}, {"fast_math": False}, {"num_threads": 3}],
    ids=str,
)
def test_other_options_and_machines_are_looked_up_apart(on_disk, changed):
    optimised(_program(), current())
    before = qd.stats()
    options = {k: v for k, v in changed.items() if k in ("fast_math", "num_threads")}
    with qd.options(**options):
        optimised(_program(), current(), **{k: v for k, v in changed.items() if k not in options})
    assert (qd.stats() - before).misses == {"passes: not there": 1}


def test_reasons_of_misses(on_disk):
    program = _program()
    for options, reason in (
        ({"offline_cache": False}, "off"),
        ({"offline_cache_passes": False}, "off"),
        ({"verify": True}, "passes are watched"),
    ):
        before = qd.stats()
        with qd.options(**options):
            optimised(program, current())
        assert (qd.stats() - before).misses == {f"passes: {reason}": 1}
    assert list(on_disk.iterdir()) == []


def test_objects_of_users_are_neither_written_nor_read(on_disk):
    key = graph_key(_program())
    assert written(lambda: None, key.locs) is None
    assert written([Loc("/other.py", 1)], key.locs) is None
    with pytest.raises(Exception, match=r"posix\.system is no part of a graph"):
        _read(written(os.system, key.locs), key)
    before = qd.stats()
    assert [kept(key, ("test",), current(), lambda: os.getpid) for _ in range(2)] == [os.getpid] * 2
    assert (qd.stats() - before).misses == {"passes: not there": 1, "passes: not readable": 1}


def test_a_python_rule_keeps_only_what_has_no_rule(on_disk):
    @jax.custom_jvp
    def square(v):
        return v * v

    square.defjvp(lambda x, t: (square(x[0]), 3 * x[0] * t[0]))

    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = square(x[i])
        return x

    for _ in range(2):
        assert jax.grad(lambda x: f(x).sum())(jnp.full(3, 2.0)).tolist() == [6.0] * 3
        jax.clear_caches()


PROGRAM = """
import json, sys
import jax, jax.numpy as jnp, numpy as np, qdtrace as qd
K = {k}
captured = np.asarray({captured})
def inner(v):
    return v * {inner} + captured[0]
def helper(v):
    return inner(v) * K
def f(x, n={default}):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = helper(x[i]) + n
    for i in qd.range(x.shape[0]):
        out[i] = jnp.sin(out[i]) * out[i]
    return out
g = jax.grad(lambda x: qd.jit(f)(x).sum())
x = jnp.arange(4.0)
values = [np.asarray(qd.jit(f)(x)).tolist(), np.asarray(g(x)).tolist()]
def plain(x):
    v = ((x * {inner} + captured[0]) * K) + {default}
    return jnp.sin(v) * v
good = np.allclose(values[0], plain(x), rtol=1e-5, atol=1e-5)
good = good and np.allclose(values[1], jax.grad(lambda x: plain(x).sum())(x), rtol=1e-4, atol=1e-4)
work = qd.stats()
print(json.dumps([bool(good), values, work.pipelines, work.misses, work.compiled]))
"""
AS_IT_IS = {"k": "2.0", "captured": "[1.5, 2.5]", "inner": "3.0", "default": "0.5"}
CHANGES = {
    "helper two calls away": {"inner": "4.0"},
    "global": {"k": "2.5"},
    "captured array": {"captured": "[1.75, 2.5]"},
    "default": {"default": "0.25"},
}


def _run(folder, *, above="", x64="0", **changed):
    script = folder / "program.py"
    script.write_text(above + PROGRAM.format(**{**AS_IT_IS, **changed}))
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    environment |= {"QD_OFFLINE_CACHE_PASSES": "1", "JAX_ENABLE_X64": x64}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_new_process_runs_no_pass_unless_the_program_changed(tmp_path):
    good, values, pipelines, misses, _ = _run(tmp_path)
    assert good
    assert pipelines == misses["passes: not there"] > 0
    good, again, pipelines, misses, compiled = _run(tmp_path, above="# a comment\n\n")
    assert (good, again, pipelines, misses, compiled) == (True, values, 0, {}, 0)
    for changed in (*CHANGES.values(), {"x64": "1"}):
        good, other, pipelines, _, _ = _run(tmp_path, **changed)
        assert good, changed
        assert pipelines > 0, changed
        assert other != values, changed


def test_machines_are_told_apart():
    assert repr(CPU) != repr(GPU)
