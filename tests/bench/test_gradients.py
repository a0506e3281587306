"""The gradients of the benchmark at small sizes: what is timed must be right, and checks must notice what is wrong."""

import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gradients import by_hand, compile_time, links, memory
from benchmarks.gradients.programs import GRADIENTS
from benchmarks.peers import jax_gradients, qdtrace_gradients, simd_gradients
from benchmarks.programs import WrongResultError

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {p.name: p for p in GRADIENTS}
SMALL = {
    "gradient_while_10000": 16,
    "gradient_ragged": 320,
    "gradient_csr": 300,
    "gradient_mpm": 400,
    "gradient_links": 4,
}
TABLES = {
    "gradient": qdtrace_gradients.GRADIENTS,
    "primal": qdtrace_gradients.PRIMALS,
    "jax.vjp": jax_gradients.GRADIENTS,
    "simd": simd_gradients.PROGRAMS,
}


def outputs(peer: str, name: str):
    given = BY_NAME[name].inputs(SMALL.get(name, 64))
    try:
        run = TABLES[peer][name](**given)
    except simd_gradients.CompilerError as error:
        pytest.skip(str(error))  # SIMD by hand is built on demand: a machine need not have a compiler
    return given, run.result(run.call(run.prepare()))


def check_of(peer: str, name: str):
    program = BY_NAME[name]
    return program.other_checks.get(peer, program.check)


def case(peer: str, name: str):
    """The robot is thousands of equations: its code takes minutes."""
    return pytest.param(peer, name, marks=[pytest.mark.slow] if name == "gradient_links" else [])


@pytest.mark.parametrize(("peer", "name"), [case(peer, name) for peer, table in TABLES.items() for name in table])
@pytest.mark.full
def test_a_gradient_is_right(peer: str, name: str) -> None:
    given, out = outputs(peer, name)
    check_of(peer, name)(given, out)


@pytest.mark.full
@pytest.mark.parametrize("piece", [1, 2, 5])
def test_the_adjoint_by_hand_is_right(piece: int) -> None:
    given = BY_NAME["gradient_lorenz"].inputs(64)
    BY_NAME["gradient_lorenz"].check(given, (np.asarray(by_hand.lorenz_adjoint(100, piece)(given["rho"])),))


@pytest.mark.full
@pytest.mark.sample(8)
@pytest.mark.parametrize(("peer", "name"), [case(peer, name) for peer in ("gradient", "primal") for name in BY_NAME])
def test_a_wrong_result_is_noticed(peer: str, name: str) -> None:
    given, out = outputs(peer, name)
    shifted = tuple(np.roll(a, 1, axis=-1 if name == "gradient_links" else 0) for a in out)
    with pytest.raises(WrongResultError):
        check_of(peer, name)(given, shifted)


@pytest.mark.full
def test_the_robot_moves_as_in_numpy() -> None:
    """A free base that falls and legs that touch the ground: in JAX's f32, step by step."""
    import jax
    import jax.numpy as jnp

    torques = np.random.default_rng(0).normal(size=(20, links.LINKS)).astype(np.float32)
    ours, theirs = links.start(np), links.start(jnp)
    move = jax.jit(lambda state, now: tuple(vars(links.step(jnp, links.Robot(*state), now)).values()))
    state = tuple(vars(theirs).values())
    for now in torques:
        ours, state = links.step(np, ours, now.astype(np.float64)), move(state, now)
    for one, other in zip(vars(ours).values(), state, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-3)
    # it has fallen less than in free fall, as the ground pushes
    fallen = 0.38 - ours.place[2]
    assert 0 < fallen < 0.5 * links.GRAVITY * (20 * links.DT) ** 2


def test_every_peer_that_is_compared_has_the_program() -> None:
    for program in GRADIENTS:
        assert program.name in qdtrace_gradients.GRADIENTS
        for peer in set(program.peers) & set(TABLES):
            assert program.name in TABLES[peer]
        assert ("by hand" in program.peers) == (program.name in qdtrace_gradients.BY_HAND)


@pytest.mark.full
def test_the_report_of_memory() -> None:
    report = memory.measure(ROOT, with_robots=False)
    assert report.ran
    lines = report.text.splitlines()
    assert lines[1].startswith("  lorenz, 100 steps: stacks ")
    assert "arrays  at most 4" in lines[-1]
    # 4 slopes and their sum; far fewer would mean that the loop was not found
    assert 60 < memory.variables_of_a_step() < 200


@pytest.mark.full
def test_a_first_call_is_a_part_of_its_process() -> None:
    began = time.perf_counter()
    taken = compile_time.first_call("lorenz", "gradient")
    assert 0 < taken < time.perf_counter() - began
