"""`Lowered.report` and `Lowered.traffic`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

if TYPE_CHECKING:
    from pathlib import Path

X = np.arange(1000, dtype=np.float32)


def scale_and_gather(x, k):
    y = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0], name="scale"):
        x[i] = x[i] * 2
    middle = jnp.sort(x[...])
    for i in qd.range(x.shape[0], name="gather"):
        y[i] = middle[k[i]]
    return x, y


@pytest.fixture(scope="module")
def lowered() -> qd.Lowered:
    return qd.jit(scale_and_gather).lower(X, np.zeros(1000, np.int32))


def test_bytes_are_counted_over_all_programs(lowered: qd.Lowered) -> None:
    moved = lowered.traffic()
    assert (moved.read, moved.written, moved.total) == (4000 + 8000, 8000, 20000)
    assert not moved.exact  # the gather may read one element a thousand times


def test_bytes_at_a_stage() -> None:
    def f(x):
        a = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a[i] = x[i] + 1
        for i in qd.range(x.shape[0]):
            x[i] = a[i] * 2
        return x

    with qd.options(fuse_tasks="off"):
        low = qd.jit(f).lower(X)
        assert low.traffic().total == 16000
    assert low.traffic("trace").total == 16000
    assert low.traffic("trace").exact
    with pytest.raises(qd.BackendError, match=r"needs a stage out of trace, .*got 'nope'"):
        low.traffic("nope")


def test_the_report_has_stages_launches_and_source_lines(lowered: qd.Lowered, tmp_path: Path) -> None:
    path = lowered.report(tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    text = path.read_text(encoding="utf-8")
    assert "<title>scale_and_gather</title>" in text
    assert re.findall(r"<h2>(scale_and_gather, program \d of \d)</h2>", text)[:1] == [
        "scale_and_gather, program 1 of 2"
    ]
    for stage in ("trace", "mem2reg", "simplify_1_dead_code", "simplify"):
        assert f">{stage}</a>" in text
    for task in lowered.tasks:
        assert task.name in text
        assert f"<td>{task.reason}</td>" in text
    assert re.search(r">test_report\.py:\d+ in scale_and_gather</i>", text)
    assert lowered.report(str(tmp_path / "again.html")).read_text(encoding="utf-8") == text
