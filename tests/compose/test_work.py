"""Work of the compiler grows with the size of a function and no faster: calls of Python functions are counted.

Each function is compiled with n, 2n and 4n loops (or equations, or levels). What the second doubling adds is at most
twice what the first added: 4 times would be quadratic. The slack of a tenth is for rules that fire for some constants
only, and for caches that fill.
"""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import qdtrace as qd
from lowering.backend import CpuBackend
from lowering.legalize.share_code import share_code
from lowering.llvm.options import emit_options
from lowering.runtime.handler import TaskShape, handler_text
from lowering.runtime.keys import program_content, task_content
from lowering.runtime.layout import plan_layout
from qdtrace.analysis.machine import CPU
from tests import fresh

SLACK = 1.1
X = jnp.ones(64, jnp.float32)


def calls(run: Callable[[], Any]) -> int:
    """Python and C functions that were called."""
    count = 0

    def event(_: Any, kind: str, __: Any) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(event)
    try:
        run()
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    return count


def repeated(n: int) -> Any:
    def f(x: Any, y: Any) -> Any:
        for k in range(n):
            for i in qd.range(64):
                v = x[i] * k
                y[(i + k) % 64] = jnp.sin(v) + y[(i + k) % 64]
        return y

    return f


def _written(n: int, variable: str) -> Any:
    lines = ["def f(x, y):"]
    for k in range(n):
        v = variable.format(k=k)
        lines += ["    for i in qd.range(64):", f"        {v} = x[i] * {k}.5", f"        y[i] = jnp.sin({v}) + {v}"]
    names: dict[str, Any] = {"qd": qd, "jnp": jnp}
    exec(compile("\n".join([*lines, "    return y"]), __file__, "exec"), names)
    return names["f"]


def written_out(n: int) -> Any:
    return _written(n, "v")


def written_out_with_variables_of_their_own(n: int) -> Any:
    return _written(n, "v{k}")


def stores_between_loops(n: int) -> Any:
    def f(x: Any, y: Any) -> Any:
        for k in range(n):
            y[k % 4] = x[0] * 2 + k
            for i in qd.range(64):
                y[i] += x[i]
        return y

    return f


def scalars_between_loops(n: int) -> Any:
    def f(x: Any, y: Any) -> Any:
        for k in range(n):
            s = y[0] + x[k % 3]
            for i in qd.range(64):
                y[i] += x[i] * s
        return y

    return f


def arrays_between_loops(n: int) -> Any:
    def f(x: Any, y: Any) -> Any:
        for k in range(n):
            for i in qd.range(64):
                y[i] += x[i]
            x = qd.copy(jnp.sin(y[...]) * k)
        return y

    return f


def buffers(n: int) -> Any:
    def f(x: Any, y: Any) -> Any:
        for k in range(n):
            t = qd.empty(64)
            for i in qd.range(64):
                t[i] = x[i] + k
            for i in qd.range(64):
                y[i] += t[63 - i]
        return y

    return f


def long_body(n: int) -> Any:
    def f(x: Any, y: Any) -> Any:
        for i in qd.range(64):
            v = x[i]
            for k in range(8 * n):
                v = jnp.sin(v) * k + x[k % 64]
            y[i] = v
        return y

    return f


def nested_while(n: int) -> Any:
    def f(x: Any, y: Any) -> Any:
        def level(d: int) -> None:
            for _ in qd.while_(lambda: y[0] < d):
                for i in qd.range(64):
                    y[i] += x[i]
                if d:
                    level(d - 1)

        level(n)
        return y

    return f


CASES = [
    (repeated, 16), (written_out, 16), (written_out_with_variables_of_their_own, 16), (stores_between_loops, 16),
    (scalars_between_loops, 16), (arrays_between_loops, 8), (buffers, 16), (long_body, 16), (nested_while, 2),
]  # fmt: skip


def work(f: Any) -> dict[str, int]:
    """Calls of each part of the compiler."""
    found: dict[str, int] = {}
    lowered: list[Any] = []
    found["trace and staging"] = calls(lambda: lowered.append(qd.jit(f).lower(X, X)))
    programs = lowered[0].programs
    found["passes"] = calls(lambda: [staged.optimised_for(CPU) for staged in programs])
    shared = []

    def layouts() -> None:
        for staged in programs:
            code = share_code(staged.optimised_for(CPU))
            layout = plan_layout(code.program, code.literals)
            contents = [task_content(t, emit_options(staged.options)) for t in code.program.tasks]
            program_content(layout, contents, 0)
            handler_text(layout, [TaskShape(1, 1)] * len(contents))
            shared.append((staged.options, dict(zip(contents, code.program.tasks, strict=True)).values()))

    found["layout and keys"] = calls(layouts)
    backend = CpuBackend()
    found["emission"] = calls(lambda: [backend.emit(t, options) for options, tasks in shared for t in tasks])
    return found


@pytest.mark.sample(full=3)
@pytest.mark.parametrize(("make", "n"), CASES, ids=lambda case: getattr(case, "__name__", ""))
@pytest.mark.full
def test_twice_the_size_is_at_most_twice_the_work(make: Callable[[int], Any], n: int) -> None:
    work(make(4 * n + 1))  # caches of JAX and ours for what is the same in all sizes
    small, middle, large = (work(make(size)) for size in (n, 2 * n, 4 * n))
    for part, most in large.items():
        first, second = middle[part] - small[part], most - middle[part]
        assert second <= max(2 * SLACK * first, SLACK * middle[part]), (part, small[part], middle[part], most)


def _counting(body: str) -> str:
    return f"""
import jax.numpy as jnp
import qdtrace as qd
from qdtrace.stats import stats

def run(x, y, w, edited):
    for k, f in enumerate((jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.sqrt, jnp.log)):
        for i in qd.range(64):
            v = f(x[i]) * y[(i + k) % 64]
            w[i, k] = {body}
    return w

x = jnp.ones(64)
before = stats()
qd.jit(run, static_argnums=3, options={{"fuse_tasks": "off"}})(x, x, jnp.zeros((64, 6)), True)
after = stats()
print(after.compiled - before.compiled, after.loaded - before.loaded)
"""


def test_editing_one_loop_compiles_one_task(tmp_path: Path) -> None:
    def process(name: str, body: str) -> list[int]:
        script = tmp_path / f"{name}.py"
        script.write_text(_counting(body))
        environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(tmp_path / "cache"), "QD_OFFLINE_CACHE": "1"}
        done = fresh.run([sys.executable, script], env=environment, check=True)
        return list(map(int, done.stdout.split()))

    # six tasks, the slow paths of sine and of cosine, the handler and the launcher
    assert process("cold", "v + 1") == [10, 0]
    assert process("warm", "v + 1") == [0, 10]
    # that task and the handler
    assert process("edited", "jnp.abs(v) if edited and k == 3 else v + 1") == [2, 8]
