"""Checks name source lines, and neither compiled code nor the names of targets depend on them."""

import json
import os
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import qdtrace as qd
from tests import fresh

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
import qdtrace as qd
from qdtrace.stats import stats
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
def f(x, j):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = x[j[i]] ** 2
    return out
f = qd.jit(f)
def errors(g, *args):
    try:
        jax.block_until_ready(g(*args))
    except Exception as error:
        return [line for line in str(error).splitlines() if "program.py" in line]
x = jnp.ones(4)
good, bad = jnp.array([3, 2, 1, 0]), jnp.array([3, 2, 1, 4])
total = jax.jit(jax.grad(lambda x, j: f(x, j).sum()))
assert total(x, good).tolist() == [2, 2, 2, 2] and f(x, good).tolist() == [1, 1, 1, 1]
print(json.dumps({
    "errors": [errors(f, x, bad), errors(total, x, bad)],
    "missed": sum(event.endswith("cache_misses") for event in seen),
    "compiled": stats().compiled,
}))
"""


def _run(folder: Path, above: str) -> dict:
    (folder / "program.py").write_text(above + PROGRAM)
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(folder / "ours"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(folder / "program.py"), str(folder / "xla")]
    done = fresh.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_edit_above_a_function_compiles_nothing(tmp_path):
    line = PROGRAM.splitlines().index("        out[i] = x[j[i]] ** 2") + 1
    before, after = _run(tmp_path, ""), _run(tmp_path, "# a comment\n\n\n")
    assert before["missed"] > 0
    assert before["compiled"] > 0
    assert (after["missed"], after["compiled"]) == (0, 0)
    for made, at in (before, line), (after, line + 3):
        for texts in made["errors"]:
            assert texts
            assert all(f"program.py:{at} " in text or f"program.py:{at}:" in text for text in texts), texts


def _made():
    @qd.jit
    def f(x, j):
        for i in qd.range(x.shape[0]):
            x[i] += x[j[i]]  # the first
        return x

    return f


def _made_again():
    @qd.jit
    def f(x, j):
        for i in qd.range(x.shape[0]):
            x[i] += x[j[i]]  # the second
        return x

    return f


def test_equal_programs_of_one_process_name_their_own_lines():
    lines = Path(__file__).read_text().splitlines()
    for make, comment in (_made, "# the first"), (_made_again, "# the second"), (_made, "# the first"):
        (line,) = (n for n, text in enumerate(lines, 1) if text.endswith(f"x[j[i]]  {comment}"))
        with pytest.raises(qd.BoundsError, match=f"test_moved_lines.py:{line} "):
            make()(jnp.ones(4), jnp.array([0, 1, 2, 9])).block_until_ready()
