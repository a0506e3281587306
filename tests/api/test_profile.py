"""`qd.profile`: each task of a function once, with what it moves, whatever function it is that runs them."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.runtime.launch_log import log
from qdtrace.launches import Listening
from qdtrace.profile_table import Profile, Row

N = 1000


@pytest.fixture(autouse=True)
def small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdtrace.profiling.COPIED", 1 << 12)


@qd.jit
def histogram(x: Any) -> Any:
    squares = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0], name="squares"):
        squares[i] = x[i] * x[i]
    counts = qd.zeros(10, x.dtype)
    for i in qd.range(x.shape[0]):
        counts[i % 10] += squares[x.shape[0] - 1 - i]
    return counts


LINE = histogram.__wrapped__.__code__.co_firstlineno + 6
"""Of the second loop."""


def facts(profile: Profile) -> list[tuple[str, int, int, int]]:
    return [(row.name, row.launches, row.bytes, row.iterations) for row in profile.rows]


def test_each_task_has_a_row() -> None:
    profile = qd.profile(histogram)(jnp.ones(N))
    # a histogram adds to ten numbers: they are read and written
    assert facts(profile) == [
        ("squares", 1, 8 * N, N),
        (f"fill before histogram:{LINE}", 1, 40, 0),
        (f"histogram:{LINE}", 1, 4 * N + 80, N),
    ]
    squares, _, sums = profile.rows
    assert (squares.task, squares.program, squares.exact) == ("squares", "histogram", True)
    assert sums.loc is not None
    assert (sums.loc.file, sums.loc.line) == (__file__, LINE)
    assert sums.exact
    assert sums.task in [task.name for task in histogram.lower(jnp.ones(N)).tasks]


def test_times_are_part_of_the_call() -> None:
    profile = qd.profile(histogram, runs=3)(jnp.ones(N))
    assert profile.runs == 3
    assert all(row.seconds > 0 for row in profile.rows)
    assert profile.task_seconds > 0
    assert profile.other_seconds == max(0, profile.call_seconds - profile.task_seconds)
    assert profile.copy_gb_per_second > 0
    assert profile.rows[0].gb_per_second == pytest.approx(8 * N / profile.rows[0].seconds * 1e-9)


@pytest.mark.full
def test_most_of_a_long_call_is_in_its_tasks() -> None:
    @qd.jit
    def long(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            v = qd.local(x[i])
            for _ in qd.range(2000):
                v.value = jnp.sin(v.value)
            x[i] = v.value
        return x

    profile = qd.profile(long)(jnp.ones(1 << 15))
    assert profile.task_seconds > 0.5 * profile.call_seconds  # 0.9 and more where nothing else runs


def test_a_loop_of_xla_launches_many_times() -> None:
    @jax.jit
    def many(x: Any) -> Any:
        return jax.lax.fori_loop(0, 7, lambda _, y: y + histogram(y).sum(), x)

    assert facts(qd.profile(many)(jnp.ones(N)))[0] == ("squares", 7, 7 * 8 * N, 7 * N)


@pytest.mark.full
def test_derivatives_and_lanes() -> None:
    rows = qd.profile(qd.grad(lambda x: histogram(x).sum()))(jnp.ones(N)).rows
    assert {"squares", "squares_reverse", f"histogram:{LINE} reverse"} <= {row.name for row in rows}

    def root(a: Any) -> Any:
        return jax.lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-5 * a, lambda s: 0.5 * (s + a / s), a)

    (row,) = qd.profile(qd.vmap(root))(jnp.linspace(1, 9, N)).rows
    assert row.name.startswith("root:")
    assert row.iterations == N
    batched = qd.profile(jax.vmap(histogram))(jnp.ones((3, N)))
    assert sum(row.iterations for row in batched.rows if row.name == "squares") == 3 * N


def test_tasks_that_were_joined_have_one_row() -> None:
    @qd.jit
    def joined(x: Any) -> Any:
        for _ in range(2):
            for i in qd.range(x.shape[0]):
                x[i] = 2 * x[i]
        for i in qd.range(x.shape[0], name="last"):
            x[i] = x[i] + 1
        return x

    line = joined.__wrapped__.__code__.co_firstlineno + 3
    assert facts(qd.profile(joined)(jnp.ones(N))) == [(f"joined:{line}+...", 1, 8 * N, N)]


def test_plain_python_around_several_functions() -> None:
    def both(x: Any, *, times: int) -> Any:
        for _ in range(times):
            x = x + histogram(x).sum()
        return x

    assert facts(qd.profile(both)(jnp.ones(N), times=2))[0] == ("squares", 2, 16 * N, 2 * N)


def test_few_iterations() -> None:
    rows = {row.name: row for row in qd.profile(histogram)(jnp.ones(1)).rows}
    assert rows[f"histogram:{LINE}"].iterations == 1
    assert rows[f"fill before histogram:{LINE}"].bytes == 40
    # the body is not even traced
    with pytest.raises(qd.TraceValueError, match=r"no task ran in `histogram`(.|\n)*a loop without iterations"):
        qd.profile(histogram)(jnp.ones(0))


def test_bounds_known_at_run_time() -> None:
    @qd.jit
    def some(x: Any, n: Any) -> Any:
        out = qd.zeros_like(x)
        for i in qd.range(n):
            out[i] = x[i]
        return out

    profile = qd.profile(some)(jnp.ones(N), 12)
    assert profile.rows[-1].iterations == 12
    assert not profile.rows[-1].exact
    assert "  <= 8.0 kB  " in str(profile)
    assert "<td>&lt;= 8.0 kB</td>" in profile._repr_html_()


def test_donated_arguments_are_kept() -> None:
    @qd.jit(donate_argnums=0)
    def double(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = 2 * x[i]
        return x

    x = jnp.ones(N)
    assert qd.profile(double)(x).rows[0].iterations == N
    assert float(x.sum()) == N


def test_equal_functions_have_their_own_lines() -> None:
    def made() -> Any:
        @qd.jit
        def same(x: Any) -> Any:
            for i in qd.range(x.shape[0]):
                x[i] = 3 * x[i]
            return x

        return same

    def made_again() -> Any:
        @qd.jit
        def same(x: Any) -> Any:
            for i in qd.range(x.shape[0]):
                x[i] = 3 * x[i]
            return x

        return same

    (first,), (second,) = (qd.profile(make())(jnp.ones(N)).rows for make in (made, made_again))
    assert first.loc is not None
    assert second.loc is not None
    assert second.loc.line - first.loc.line == 9


def test_it_is_a_table() -> None:
    profile = qd.profile(histogram)(jnp.ones(N))
    lines = str(profile).splitlines()
    assert repr(profile) == str(profile)
    assert lines[0].startswith("histogram: ")
    assert "a call (median of 5)" in lines[0]
    assert lines[1].split() == ["launch", "time", "share", "times", "moved", "GB/s", "of", "a", "copy", "iterations"]
    assert lines[2].startswith("squares ")
    assert "8.0 kB" in lines[2]
    assert lines[4].endswith("1,000")
    assert "  4.1 kB  " in lines[4]
    page = profile._repr_html_()
    assert page.count("<tr>") == 5
    assert "<td>4.1 kB</td>" in page


def test_launches_without_room_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "room", 2)
    profile = qd.profile(histogram)(jnp.ones(8))
    assert profile.left_out == 1
    assert len(profile.rows) == 2
    assert "\n1 more launches found no room" in str(profile)


def test_what_no_task_does_has_a_row() -> None:
    rows = (Row("halve", 2e-3, 1, 8000, True, 1000, None, "halve.0", "halve"),)
    lines = str(Profile("f", rows, 8e-3, 5, 10.0)).splitlines()
    assert lines[0].startswith("f: 8.000 ms a call (median of 5), 25% of it in its tasks")
    assert lines[3].split() == ["XLA,", "dispatch", "6.000", "ms", "75%"]
    assert lines[4].startswith("most of the call is no task")
    assert len(str(Profile("f", rows, 3e-3, 5, 10.0)).splitlines()) == 4
    assert str(Profile("f", rows, 0.0, 5, 10.0)).splitlines()[3].split() == ["XLA,", "dispatch", "0.0", "us"]


def test_nothing_is_written_while_nobody_listens() -> None:
    x = jnp.ones(N)
    with Listening() as outer:
        histogram(x).block_until_ready()
        with Listening() as inner:
            histogram(x).block_until_ready()
    before = log.count()
    histogram(x).block_until_ready()
    assert log.count() == before
    assert [one.label for one in inner.launches] == [row.name for row in qd.profile(histogram)(x).rows]
    assert [one.label for one in outer.launches] == 2 * [one.label for one in inner.launches]


@pytest.mark.full
def test_a_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = qd.profile(histogram)(jnp.ones(N))
    with monkeypatch.context() as m:
        m.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ImportError, match=r"Profile\.plot needs matplotlib: pip install matplotlib"):
            profile.plot()
    figure = pytest.importorskip("matplotlib.figure").Figure()
    ax = profile.plot(figure.add_subplot())
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        *(row.name for row in profile.rows),
        "XLA, dispatch",
    ]
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches][:-1], [1e3 * r.seconds for r in profile.rows])


def test_what_is_refused() -> None:
    x = jnp.ones(N)
    with pytest.raises(qd.TraceTypeError, match=r"qd\.profile needs a function, got int\n  at .*test_profile\.py"):
        qd.profile(3)  # type: ignore[arg-type]
    for runs in (0, True, 2.0):
        with pytest.raises(qd.TraceValueError, match=r"needs runs to be a positive integer, got"):
            qd.profile(histogram, runs=runs)  # type: ignore[arg-type]
    with pytest.raises(qd.TraceTypeError, match=r"runs `histogram`, so it needs arrays, got a traced value"):
        jax.jit(qd.profile(histogram))(x)
    with pytest.raises(qd.TraceValueError, match=r"no task ran in `sin`(.|\n)*help: give a function that runs loops"):
        qd.profile(jnp.sin)(x)
    with qd.options(debug=True), pytest.raises(qd.TraceValueError, match="debug=True loops run in the interpreter"):
        qd.profile(histogram)(jnp.ones(3))
