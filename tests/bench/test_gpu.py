"""The GPU's benchmarks at small sizes on the CPU: works are right, their checks look, one that fails is a line."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import bench as bench_module
from benchmarks.gpu import cuda, gradients, launches, lbm, loops, results, streams, timing
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.row import Ask, Row, summary, table
from benchmarks.gpu.works import WORKS
from benchmarks.programs import WrongResultError


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Works check what they compute and are timed once."""
    once = timing.Times(1.0, 1.0, 2.0)
    monkeypatch.setattr(bench_module, "alternate", lambda calls, *_: [once for call in calls if call() is not None])


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("name", [n for n in WORKS if n not in ("first_call", "robots")])
@pytest.mark.full
def test_a_work_is_right_and_gives_rows(name: str) -> None:
    with Bench(small=True) as bench:
        rows = list(WORKS[name](bench))
    assert rows
    assert not any(r.failed for r in rows)
    assert all(r.ours is not None for r in rows)
    assert any(r.asked is not None for r in rows)
    assert len({r.name for r in rows}) == len(rows)


@pytest.mark.full
def test_a_first_call_is_timed_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def separate(root: Path, cache: str, module: str, lanes: str) -> float:
        asked.append((cache, module, lanes))
        return 0.5 if len(asked) % 2 else 0.01

    monkeypatch.setattr(launches, "separate", separate)
    with Bench(small=True) as bench:
        cold, warm = launches.first_call(bench)
    assert (cold.ours, warm.ours) == (0.5, 0.01)
    assert asked[0] == asked[1], "the second process finds what the first has left"
    from benchmarks.gpu import first_call

    assert 0 < first_call.seconds(16) < 60


CHECKS = {
    "oscillator": (loops.oscillator_check, lambda: loops.oscillator_inputs(300)),
    "beginnings": (streams.beginnings_check, lambda: {"x": np.linspace(1, 2, 50, dtype=np.float32)}),
    "lattice": (lbm.check, lambda: lbm.inputs(6)),
    "while": (
        gradients.each_check,
        lambda: {"rho": np.linspace(0, 21, 20, dtype=np.float32), "end": np.arange(50, 70, dtype=np.float32)},
    ),
}
CALLS: dict[str, Any] = {
    "oscillator": lambda start, trips: loops.qd.vmap(loops.lanes.oscillator)(start, trips),
    "beginnings": streams.beginnings,
    "lattice": lbm.step,
    "while": lambda rho, end: gradients.reverse(gradients.qdtrace_gradients.lorenz_while(rho, end))[0](),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CHECKS)
def test_checks_look(name: str) -> None:
    check, make = CHECKS[name]
    given = make()
    out = tuple(np.asarray(x) for x in jax.tree.leaves(CALLS[name](*given.values())))
    check(given, out)
    with pytest.raises(WrongResultError):
        check(given, tuple(np.roll(x, 1, axis=-1) for x in out))


@pytest.mark.full
def test_the_lattice_keeps_mass_and_momentum() -> None:
    given = lbm.inputs(5)
    before, after = given["f"].astype(np.float64), np.asarray(lbm.step(given["f"], np.float32(1.7)), np.float64)
    assert len(lbm.VELOCITIES) == 19
    assert sum(lbm.WEIGHTS) == pytest.approx(1)
    np.testing.assert_allclose(after.sum(), before.sum(), rtol=1e-6)
    c = np.array(lbm.VELOCITIES)
    np.testing.assert_allclose(c.T @ after.sum((1, 2, 3)), c.T @ before.sum((1, 2, 3)), atol=1e-4)
    # equilibrium at rest stays as it is
    rest = np.broadcast_to(np.array(lbm.WEIGHTS, np.float32)[:, None, None, None], (19, 3, 4, 5))
    np.testing.assert_allclose(lbm.step(rest, np.float32(1.0)), rest, rtol=1e-6)


def test_a_prefix_sum_by_one_thread_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PATIENCE", 0.0)
    with Bench(small=True) as bench:
        (row,) = streams.prefix(bench)
    assert row.ours is None
    assert row.reached is None
    assert "one thread" in row.note


def test_a_work_that_fails_is_a_line_and_the_others_go_on() -> None:
    def bad(_: Any):
        yield Row("first half", 1.0, ask=Ask.MOST, asked=2.0)
        raise ValueError("something\nbroke")

    said: list[str] = []
    with Bench(small=True) as bench:
        rows = command.run({"bad": bad, "chain": WORKS["chain"]}, bench, said.append)
    assert [r.name for r in rows][:3] == ["first half", "bad", "chain of 8"]
    assert rows[1].failed
    assert rows[1].note == "ValueError: something broke"
    assert any("bad  FAILED" in line for line in said)
    assert "failed: bad" in summary(rows)


ROWS = [
    Row("a", 2.0, "ms", "CUDA by hand", 4.0, Ask.RATIO, 1.0),
    Row("b", 2.0, "ms", "jax.vmap", 4.0, Ask.FASTER, 9.0, "slow"),
    Row("c", 21_000, "MLUPS", "its bytes", None, Ask.LEAST, 20_000),
    Row("d", None, "ms", "x", None, Ask.MOST, 1.0, "not there"),
    Row("e", None, note="ValueError: b", failed=True),
    Row("f", 1.0, "ms", "p", 2.0),
]


def test_the_table() -> None:
    assert table(ROWS).splitlines() == [
        "work  ours         beside          ratio  asked",
        "a     2 ms         CUDA by hand 4  0.5    <= 1 x          ok",
        "b     2 ms         jax.vmap 4      2      >= 9 x faster   MISS    slow",
        "c     21000 MLUPS  its bytes              >= 20000 MLUPS  ok",
        "d     -            x                      <= 1 ms                 not there",
        "e     -                                                   FAILED  ValueError: b",
        "f     1 ms         p 2             0.5",
    ]
    assert summary(ROWS).splitlines() == [
        "4 figures asked for, 2 reached",
        "not reached: b",
        "not measured: d",
        "failed: e",
    ]


def test_the_page_has_every_row_and_what_falls_short() -> None:
    with Bench(small=True) as bench:
        written = json.loads(json.dumps(command.report(ROWS, bench, "3 passed")))
    assert [Row.of_json(values) for values in written["rows"]] == ROWS
    text = results.page(written)
    assert sum(line.startswith("| ") for line in text.splitlines()) == 1 + len(ROWS)
    assert "3 passed" in text
    assert text[text.index("## What falls short") :].splitlines()[2:] == [
        "- b: slow",
        "- d: not there",
        "- e: ValueError: b",
    ]


def test_the_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    assert command.main(["--small", "chain", "--out", str(out)]) == 0
    assert "chain of 8" in capsys.readouterr().out
    assert json.loads(out.read_text())["rows"][0]["name"] == "chain of 8"
    with pytest.raises(SystemExit):
        command.main(["nothing"])


def test_a_program_in_cuda_that_is_not_there_or_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "SOURCES", tmp_path)
    (tmp_path / "bad.cu").write_text("int main() { return missing; }")
    monkeypatch.setattr(cuda.shutil, "which", lambda _: "false")
    peers = cuda.CudaPeers(tmp_path)
    for name in ("bad", "other"):
        with pytest.raises(cuda.PeerMissingError, match="CUDA by hand"):
            peers[name]
    peers.close()
    assert peers.results == {}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_programs_in_cuda_compile(tmp_path: Path) -> None:
    peers = cuda.CudaPeers(tmp_path, "sm_90")
    for name in ("limits", "stacks", "ragged", "escape"):
        assert peers.built(name).exists()


@pytest.mark.full
def test_every_figure_that_a_work_asks_of_cuda_is_printed_by_its_program() -> None:
    """Without a GPU nothing prints: the names stand in the sources, in formats that are filled in."""
    asked: set[tuple[str, str]] = set()

    class Noting(Bench):
        def by_hand(self, program: str, figure: str) -> tuple[float | None, str]:
            asked.add((program, figure))
            return 1.0, ""

    with Noting(small=True) as bench:
        for name in ("lorenz", "mandelbrot", "kepler", "oscillator", "chain", "ragged", "gradient_ragged"):
            list(WORKS[name](bench))
    assert len(asked) > 10
    for program, figure in asked:
        text = (cuda.SOURCES / f"{program}.cu").read_text()
        stem, _, number = figure.rpartition("_")
        assert f'"{figure}' in text or f'\\"{figure}\\"' in text or (number.isdigit() and f'\\"{stem}_%d\\"' in text)


def test_times_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    found = timing.alternate([lambda: order.append("a"), lambda: order.append("b")], 3, 1e-9)
    assert len(found) == 2
    assert order[-6:] == ["a", "b"] * 3
    assert timing.Times(1.0, 1.0, 1.1).words == ""
    assert timing.Times(1.0, 1.0, 2.0).words == "one call 2 ms"
