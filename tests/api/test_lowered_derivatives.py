"""`Lowered` of derivatives: their tasks, stacks, reasons and report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd

if TYPE_CHECKING:
    from pathlib import Path

X = np.linspace(0.5, 1, 64, dtype=np.float32)
STEPS = 100


@qd.jit
def decay(x):
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0], name="decay"):
        v = qd.local(x[i])
        for _ in qd.range(STEPS):
            v.value = v.value - 0.01 * jnp.sin(v.value)
        out[i] = v.value
    return out


def total(x):
    return decay(x).sum()


def test_the_tasks_of_a_gradient_and_none_of_the_primal() -> None:
    low = qd.jit(jax.grad(total)).lower(X)
    assert [t.name for t in low.tasks] == ["decay_reverse"]
    assert low.graph().startswith("program decay_r0(")


def test_what_nobody_uses_is_not_there() -> None:
    low = qd.jit(lambda x: (decay(x), x[...] + 1)[1]).lower(X)
    assert low.tasks == []


def test_directional_derivatives() -> None:
    low = qd.jit(lambda x: jax.jvp(total, (x[...],), (x[...],))[1]).lower(X)
    assert [t.name for t in low.tasks] == ["decay"]
    assert "cos" in low.graph()


def test_higher_orders() -> None:
    low = qd.jit(lambda x: jax.jvp(jax.grad(total), (x[...],), (x[...],))[1]).lower(X)
    (name,) = [t.name for t in low.tasks]
    assert name == "decay_reverse"
    (choice,) = low.storage
    # a state and its tangent
    assert low.memory_analysis()["stack_per_lane"] == choice.nbytes == 8 * STEPS


def test_stacks_are_counted_by_lane_and_in_all() -> None:
    with qd.options(num_threads=3):
        low = qd.jit(jax.grad(total)).lower(X)
    (task,), found = low.tasks, low.memory_analysis()
    assert found["stack_per_lane"] == task.private_bytes == sum(c.nbytes for c in low.storage) == 4 * STEPS
    assert found["stacks"] == task.at_once * 4 * STEPS
    assert task.at_once % 3 == 0
    assert (found["arguments"], found["results"]) == (2 * X.nbytes, X.nbytes)


def test_a_serial_task_runs_alone() -> None:
    def f(x):
        for i in qd.range(x.shape[0], serial=True):
            x[i] = x[i] * 2 + x[0]
        return x

    assert [t.at_once for t in qd.jit(f).lower(X).tasks] == [1]


def test_the_primal_has_no_storage() -> None:
    assert qd.jit(decay).lower(X).storage == []


def test_the_report_says_what_is_kept(tmp_path: Path) -> None:
    low = qd.jit(jax.grad(total)).lower(X)
    page = low.report(tmp_path / "page.html").read_text()
    assert "<h3>Reverse mode</h3>" in page
    assert "all of at most 100 states of 4 bytes are kept: 400 bytes a lane" in page
    assert "test_lowered_derivatives.py:25" in page
    primal = qd.jit(decay).lower(X).report(tmp_path / "primal.html").read_text()
    assert "<h3>Reverse mode</h3>" not in primal
