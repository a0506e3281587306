"""The benchmark programs at small sizes: what is timed must be right, and the checks must notice what is wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import mpm88
from benchmarks.peers import jax_peer, qdtrace_peer
from benchmarks.programs import BY_NAME, PROGRAMS, WrongResultError
from benchmarks.run import Peer, Row, flags_of, table

SMALL = {
    "lorenz": 33,
    "mandelbrot": 24,
    "kepler": 1000,
    "ragged": 300,
    "nearest": 40,
    "sin": 1001,
    "exp": 1001,
    "springs": 17,
    "batch": 5,
}


def outputs(peer, name: str):
    given = BY_NAME[name].inputs(SMALL.get(name, 1024))
    run = peer.PROGRAMS[name](**given)
    return given, run.result(run.call(run.prepare()))


@pytest.mark.sample(3)
@pytest.mark.parametrize("peer", [jax_peer, qdtrace_peer], ids=["jax", "qdtrace"])
@pytest.mark.parametrize("name", [p.name for p in PROGRAMS])
def test_a_program_is_right(name: str, peer) -> None:
    if name not in peer.PROGRAMS:
        assert "jax" not in BY_NAME[name].peers
        return
    given, out = outputs(peer, name)
    BY_NAME[name].check(given, out)


@pytest.mark.full
def test_the_batch_by_hand_is_right() -> None:
    given = BY_NAME["batch"].inputs(3)
    run = qdtrace_peer.BY_HAND["batch"](**given)
    BY_NAME["batch"].check(given, run.result(run.call(None)))


@pytest.mark.full
def test_both_ways_to_write_lorenz_agree() -> None:
    given = BY_NAME["lorenz"].inputs(20)
    run = jax_peer.STACKED["lorenz"](**given)
    BY_NAME["lorenz"].check(given, run.result(run.call(None)))


@pytest.mark.full
def test_a_peer_with_flags_of_its_own_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert flags_of("jax") == "--xla_cpu_enable_fast_math=false"
    assert flags_of("jax-one-kernel").startswith("--xla_cpu_enable_fast_math=false --xla_backend_extra_options=")
    program = BY_NAME["kepler"]
    given: dict[str, Any] = dict(program.inputs(50))
    np.savez(tmp_path / "inputs.npz", **given)
    peer = Peer("jax-one-kernel", program.name, tmp_path / "inputs.npz", tmp_path)
    try:
        peer.ask("run")  # XLA ends a process whose flags it does not know
    finally:
        peer.close()
    program.check(given, peer.results())


@pytest.mark.full
@pytest.mark.parametrize("name", [p.name for p in PROGRAMS])
def test_a_wrong_result_is_noticed(name: str) -> None:
    given, out = outputs(jax_peer if name in jax_peer.PROGRAMS else qdtrace_peer, name)
    shifted = tuple(np.roll(a, 1, axis=0) if a.size > 1 else a + 1 for a in out)
    with pytest.raises(WrongResultError):
        BY_NAME[name].check(given, shifted)


def test_every_factor_is_stated_for_one_of_the_sizes() -> None:
    for program in PROGRAMS:
        assert program.size in program.sizes
        assert all(factor > 0 for factor in program.goals.values())


def test_the_table_says_what_was_reached() -> None:
    rows = [
        Row("a", "1 lanes", "jax", 8.0, 9.0, 2.0, 2.5, 3.0),
        Row("a", "1 lanes", "numba", 1.0, 1.0, 2.0, 2.5, 1.5),
        Row("b", "1 lanes", "drjit", note="not timed: no library", required=1.0),
    ]
    assert table(rows).splitlines() == [
        "program  size     peer   peer ms  qdtrace ms  ratio  required",
        "a        1 lanes  jax    8 (9)    2 (2.5)     4.00   3.00      reached",
        "a        1 lanes  numba  1 (1)    2 (2.5)     0.50   1.50      NOT reached",
        "b        1 lanes  drjit  -        -           -      1.00      not timed: no library",
    ]


@pytest.mark.full
def test_the_fluid_step_matches_numpy() -> None:
    import qdtrace as qd

    x, v, affine, ratio = mpm88.particles(500)
    rng = np.random.default_rng(1)
    v = rng.normal(size=v.shape).astype(np.float32)
    affine = rng.normal(size=affine.shape).astype(np.float32)
    ratio = rng.uniform(0.9, 1.1, ratio.shape).astype(np.float32)
    got = qd.jit(mpm88.substep)(x, v, affine, ratio)
    want = mpm88.substep_reference(*(a.astype(np.float64) for a in (x, v, affine, ratio)))
    # f32 sums of about ten terms; the affine matrix divides differences of them by the cell's size, 1/128
    for a, b, atol in zip(got, want, (1e-6, 2e-4, 2e-2, 1e-5), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol)
