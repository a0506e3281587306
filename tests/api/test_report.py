"""`Lowered.report` and `Lowered.traffic`."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

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


def test_source_lines_stand_beside_their_graph(tmp_path: Path) -> None:
    def both(x):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0], name="only"):
            y = x[i] < 2 * x[0]
            out[i] = jnp.where(y, x[i], 3.0)
        return out

    low = qd.jit(both).lower(X)
    text = low.report(tmp_path / "page.html").read_text(encoding="utf-8")
    (table,) = re.findall(r'<table class="source">.*?</table>', text, re.DOTALL)
    row = r"<tr><td>\d+</td><td><pre>\s*(.*?)</pre></td><td><pre>(.*?)</pre></td></tr>"
    rows = dict(re.findall(row, table, re.DOTALL))
    assert re.search(r"store out \w+ i", rows["out[i] = jnp.where(y, x[i], 3.0)"])
    assert re.search(r"= lt \w+ \w+", rows["y = x[i] &lt; 2 * x[0]"])
    assert "range_for i in" in rows['for i in qd.range(x.shape[0], name=&quot;only&quot;):']
    assert f'<i title="{__file__}">test_report.py</i>' in table


@pytest.mark.full
def test_a_report_has_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdtrace.profiling.COPIED", 1 << 12)
    f = qd.jit(scale_and_gather)
    profile = qd.profile(f)(jnp.asarray(X), np.zeros(1000, np.int32))
    text = f.lower(X, np.zeros(1000, np.int32)).report(tmp_path / "page.html", profile).read_text(encoding="utf-8")
    for row in profile.rows:
        assert f"<td>{row.name}</td><td>{row.seconds * 1e6:.1f} us</td><td>{row.gb_per_second:.3g}</td>" in text


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
