"""Times of launches on a device, by events around them; kernels have the names of their tasks."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from qdtrace.ir.program import Program
from qdtrace.launches import Listening
from qdtrace.profile_table import Row
from qdtrace.profiling import _rows
from tests.gpu.fake import FakeDriver, fake_backend
from tests.runtime.programs import chain, total, uncached

OPTIONS = uncached(block_dim=4, fuse_tasks="off")


def rows_of(program: Program, *operands: Any, options: Any = OPTIONS) -> tuple[list[Row], FakeDriver]:
    program = replace(program, tasks=tuple(replace(task, name=f"t{k}") for k, task in enumerate(program.tasks)))
    with fake_backend() as (backend, driver):
        call = jax.jit(backend.compile(program, options).call)
        jax.block_until_ready(call(*operands))
        with Listening(devices=True) as listening:
            jax.block_until_ready(call(*operands))
        assert listening.left_out == 0
        return list(_rows([listening.launches])), driver


def f32(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def test_each_launch_has_a_time() -> None:
    rows, driver = rows_of(chain(100), f32(100))
    assert [(row.task, row.launches, row.iterations) for row in rows] == [(f"t{k}", 1, 100) for k in range(3)]
    assert [row.seconds for row in rows] == pytest.approx([1e-3] * 3)
    assert [name for name, _, _ in driver.kernels] == ["t0__qd_kernel"]  # equal tasks share the code of the first
    assert all(row.bytes >= 800 for row in rows)


def test_kernels_of_one_task_are_one_launch() -> None:
    rows, driver = rows_of(total(100), f32(100), np.float32(1))
    names = [name.rpartition("__")[2] for name, _, _ in driver.kernels]
    assert "qd_combine" in names
    (row,) = [row for row in rows if row.task]
    assert row.launches == 1
    assert row.seconds == pytest.approx(1e-3 * len(names))


def test_tasks_of_one_kernel_are_one_launch() -> None:
    (row,), driver = rows_of(chain(8), f32(8), options=uncached())
    assert (row.name, row.task, row.launches, row.iterations) == ("t0 to t2", "t0", 1, 24)
    assert [name for name, _, _ in driver.kernels] == ["t0_to_t2__qd_kernel"]


def test_nothing_is_timed_for_others() -> None:
    with fake_backend() as (backend, driver):
        call = jax.jit(backend.compile(chain(100), OPTIONS).call)
        with Listening() as listening:
            jax.block_until_ready(call(f32(100)))
        assert listening.launches == []
        assert driver._times == []


def test_launches_that_have_no_time_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDriver, "elapsed", lambda *_: None)
    assert rows_of(chain(100), f32(100))[0] == []
