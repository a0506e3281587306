"""Times tracing and compiling of large functions: many loops in one function.

`heavy`: each loop computes a sum over 9 neighbours with branches, a product of 3x3 matrices and a determinant.
`stages`: 12 updates a loop, each with a store and a load at a shifted place. `mixed`: the same, but no two loops have
the same operations, so none shares code with another.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import qdtrace as qd
from benchmarks.compile_time import Report, limited, run_small, separate

if TYPE_CHECKING:
    from collections.abc import Callable

PROCESSES = 3
LOOPS, LANES, PLACES, UPDATES = 64, 4096, 1024, 12
HEAVY_LIMIT, GROWTH_LIMIT, STAGES_LIMIT, EDITED_LIMIT = 2.0, 4.2, 1.5, 0.15
TRACE_LIMITS = {"heavy": 0.65, "stages": 1.0}
"""Trace and import beside `jax.make_jaxpr` of the same arithmetic on arrays."""


def heavy_lane(t: int, a: Any, b: Any) -> Any:
    """One element of one heavy loop, in jnp."""
    s: Any = 0.0
    for j in range(9):
        c = jnp.cos(a * (t + 1.0) + j) + b * j
        s = jnp.where(c > 0.3, s + jnp.sqrt(c * c + 1.0) * a - b, s - (jnp.exp(-c * c) * b + a * c))
    m = jnp.array([[a, b, s], [s, a, b], [b, s, a + 2.0]])
    m = m @ m + m
    return m[0, 0] * 0.1 + m[1, 2] * 0.01 - m[2, 1] + jnp.linalg.det(m) * 1e-3


def heavy(loops: int) -> Callable[[Any], Any]:
    """A function of that many heavy loops."""

    def run(x: Any) -> Any:
        y = qd.zeros((loops + 1, x.shape[0]), jnp.float32)
        for t in range(loops):
            for i in qd.range(x.shape[0]):
                y[t + 1, i] = heavy_lane(t, x[i], y[t, i])
        return y

    return run


def heavy_arrays(loops: int) -> Callable[[Any], Any]:
    """The same for `jax.jit`."""

    def run(x: Any) -> Any:
        rows = [jnp.zeros_like(x)]
        for t in range(loops):
            rows.append(jax.vmap(lambda a, b, t=t: heavy_lane(t, a, b))(x, rows[-1]))
        return jnp.stack(rows)

    return run


def stages(loops: int, *, mixed: bool = False, edited: bool = False) -> Callable[..., Any]:
    """A function of that many loops of 12 updates; `edited`: one of them has one operation more."""

    def run(a: Any, b: Any, w: Any) -> Any:
        for k in range(loops):
            s, d = (a, b) if k % 2 == 0 else (b, a)
            for i in qd.range(s.shape[0]):
                v = s[i]
                for m in range(UPDATES):
                    wave = jnp.cos if mixed and k >> m & 1 else jnp.sin
                    v = v * (1 + 0.01 * (k + m)) + wave(v + 0.1 * m)
                    w[i, m] = v
                    v = v + s[(i + m) % s.shape[0]]
                if edited and k == loops // 2:
                    v = jnp.tanh(v)
                d[i] = v
        return a, b, w

    return run


def stages_arrays(loops: int) -> Callable[..., Any]:
    """The stages for `jax.jit`: the same operations on arrays, the columns of `w` stacked."""

    def run(a: Any, b: Any, w: Any) -> Any:
        for k in range(loops):
            s = a if k % 2 == 0 else b
            i, v, columns = jnp.arange(s.shape[0]), s, []
            for m in range(UPDATES):
                v = v * (1 + 0.01 * (k + m)) + jnp.sin(v + 0.1 * m)
                columns.append(v)
                v = v + s[(i + m) % s.shape[0]]
            w = jnp.stack(columns, 1)
            a, b = (a, v) if k % 2 == 0 else (v, b)
        return a, b, w

    return run


def arguments(kind: str) -> tuple[Any, ...]:
    """Arrays for a function of that kind."""
    if kind == "heavy":
        return (jnp.arange(LANES, dtype=jnp.float32) * 0.001,)
    return jnp.linspace(0, 1, PLACES), jnp.zeros(PLACES), jnp.zeros((PLACES, UPDATES))


ARRAYS = {"heavy": heavy_arrays, "stages": stages_arrays}
FUNCTIONS: dict[str, Callable[[int], Callable[..., Any]]] = {
    "heavy": heavy,
    "stages": stages,
    "stages-edited": lambda n: stages(n, edited=True),
    "mixed": lambda n: stages(n, mixed=True),
    "mixed-edited": lambda n: stages(n, mixed=True, edited=True),
}


def first_call(kind: str, loops: int) -> dict[str, float]:
    """Seconds to the first result in a process that has run a small program: in all, and after trace and import."""
    run_small()
    function, given = qd.jit(FUNCTIONS[kind](loops)), jax.block_until_ready(arguments(kind.split("-")[0]))
    began = time.perf_counter()
    function.lower(*given)
    traced = time.perf_counter()
    jax.block_until_ready(function(*given))
    done = time.perf_counter()
    return {"total": done - began, "rest": done - traced}


def first_trace(kind: str, loops: int, *, of_jax: bool) -> dict[str, float]:
    """Processor seconds of trace and import, or of `jax.make_jaxpr` of the same arithmetic, in such a process."""
    run_small()
    given = arguments(kind)
    trace = jax.make_jaxpr(ARRAYS[kind](loops)) if of_jax else qd.jit(FUNCTIONS[kind](loops)).lower
    began = time.process_time()
    trace(*given)
    return {"trace": time.process_time() - began}


def first_call_jax(loops: int) -> dict[str, float]:
    """The heavy loops as arrays under `jax.jit`."""
    (x,) = arguments("heavy")
    began = time.perf_counter()
    jax.block_until_ready(jax.jit(heavy_arrays(loops))(x))
    return {"total": time.perf_counter() - began}


_QUADRANTS_HEAVY = """
    for i in range(x.shape[0]):
        a = x[i]; b = y[{t}, i]; s = 0.0
        for j in qd.static(range(9)):
            c = qd.cos(a * {t1}.0 + j) + b * j
            if c > 0.3:
                s += qd.sqrt(c * c + 1.0) * a - b
            else:
                s -= qd.exp(-c * c) * b + a * c
        m = qd.Matrix([[a, b, s], [s, a, b], [b, s, a + 2.0]])
        m = m @ m + m
        y[{t1}, i] = m[0, 0] * 0.1 + m[1, 2] * 0.01 - m[2, 1] + m.determinant() * 1e-3"""
_QUADRANTS_UPDATE = """
        v = v * {c} + qd.sin(v + {p})
        w[i, {m}] = v
        v = v + {s}[(i + {m}) % {s}.shape[0]]"""


def _quadrants_source(kind: str, loops: int) -> str:
    text = "import quadrants as qd\n@qd.kernel\ndef run("
    if kind == "heavy":
        text += "x: qd.types.ndarray(), y: qd.types.ndarray()):"
        return text + "".join(_QUADRANTS_HEAVY.format(t=t, t1=t + 1) for t in range(loops)) + "\n"
    text += ", ".join(f"{name}: qd.types.ndarray()" for name in "abw") + "):"
    for k in range(loops):
        s, d = "ab" if k % 2 == 0 else "ba"
        text += f"\n    for i in range({s}.shape[0]):\n        v = {s}[i]"
        for m in range(UPDATES):
            text += _QUADRANTS_UPDATE.format(c=1 + 0.01 * (k + m), p=0.1 * m, m=m, s=s)
        text += f"\n        {d}[i] = v"
    return text + "\n"


def first_call_quadrants(kind: str, loops: int) -> dict[str, float]:
    """The same loops in one Quadrants kernel, without its cache."""
    quadrants: Any = importlib.import_module("quadrants")
    quadrants.init(arch=quadrants.cpu, offline_cache=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loops.py"
        path.write_text(_quadrants_source(kind, loops))
        spec = importlib.util.spec_from_file_location("loops", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        shapes = [a.shape for a in arguments(kind)] + ([(loops + 1, LANES)] if kind == "heavy" else [])
        given = [quadrants.ndarray(quadrants.f32, shape=shape) for shape in shapes]
        began = time.perf_counter()
        module.run(*given)
        quadrants.sync()
        return {"total": time.perf_counter() - began}


def measure(root: Path) -> Report:
    """Times each function in new processes with an empty cache, one stage edited with a filled one, and the peers."""

    def process(cache: str, *what: object) -> dict[str, float]:
        return separate(root, cache, "benchmarks.large_functions", *map(str, what))

    def best(kind: str, loops: int, first: str = "") -> dict[str, float]:
        """The smallest times of some processes; in front of each of them `first` has run with the same cache."""
        found: list[dict[str, float]] = []
        for _ in range(PROCESSES):
            with tempfile.TemporaryDirectory() as cache:
                if first:
                    process(cache, first, loops)
                found.append(process(cache, kind, loops))
        return {name: min(times[name] for times in found) for name in found[0]}

    def beside_jaxpr(kind: str) -> tuple[str, float]:
        """Trace and import as a part of JAX's trace."""
        ours, of_jax = (best(f"{what}-{kind}", LOOPS)["trace"] for what in ("trace", "jaxpr"))
        return f"trace and import, {kind}: {ours:.3f} s; jax.make_jaxpr of its arrays {of_jax:.3f} s", ours / of_jax

    lines = [f"large functions, first call in a new process that has run a small program, smallest of {PROCESSES}"]
    try:
        small, large = best("heavy", LOOPS), best("heavy", 4 * LOOPS)
        lines += [limited(f"{LOOPS} heavy loops, cold", small["total"], "s", HEAVY_LIMIT)]
        growth = large["total"] / small["total"]
        lines += [limited(f"{4 * LOOPS} heavy loops: {large['total']:.3f} s", growth, "times", GROWTH_LIMIT)]
        stage = best("stages", LOOPS)
        lines += [limited(f"{LOOPS} stages of {UPDATES} updates, cold", stage["total"], "s", STAGES_LIMIT)]
        for kind, limit in TRACE_LIMITS.items():
            lines += [limited(*beside_jaxpr(kind), "of make_jaxpr", limit)]
        cold, edited = best("mixed", LOOPS), best("mixed-edited", LOOPS, first="mixed")
        text = f"{LOOPS} stages without common code, one edited: {edited['rest']:.3f} s of {cold['rest']:.3f} s"
        lines += [limited(f"{text} after the trace", edited["rest"] / cold["rest"], "of cold", EDITED_LIMIT)]
        edited = best("stages-edited", LOOPS, first="stages")
        text = f"{LOOPS} stages with common code, one edited, after the trace; cold {stage['rest']:.3f} s"
        lines += [f"  {text:<72} {edited['rest']:8.3f} s"]
    except subprocess.CalledProcessError as error:
        return Report("\n".join([*lines, f"  failed: {_last(error)}"]), False)
    for words, what in (
        (f"Quadrants, {LOOPS} heavy loops", ("quadrants-heavy", LOOPS)),
        (f"Quadrants, {LOOPS} stages", ("quadrants-stages", LOOPS)),
        (f"jax.jit, {LOOPS} heavy loops as arrays", ("jax-heavy", LOOPS)),
    ):
        try:
            lines.append(f"  {words:<72} {process('', *what)['total']:8.3f} s")
        except subprocess.CalledProcessError as error:
            lines.append(f"  {words:<72} {_last(error)}")
    return Report("\n".join(lines), True)


def _last(error: subprocess.CalledProcessError) -> str:
    return ((error.stderr or "").strip().splitlines()[-1:] or ["no message"])[0][:160]


def main(kind: str, loops: str) -> dict[str, float]:
    """Runs the measurement of one process; returns its times by name."""
    what, _, of = kind.partition("-")
    if kind == "jax-heavy":
        return first_call_jax(int(loops))
    if what == "quadrants":
        return first_call_quadrants(of, int(loops))
    if what in ("trace", "jaxpr"):
        return first_trace(of, int(loops), of_jax=what == "jaxpr")
    return first_call(kind, int(loops))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
