"""Random programs with unsafe indices: a call fails where plain Python would index outside, and only there.

Whatever the options, whether what is accessed is used or not; with `bounds="clip"` the results are those of the nearest
elements.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import qdtrace as qd
from tests.api.unsafe_programs import Outside, UnsafeProgram, unsafe_program
from tests.selection import drawn

OPTIONS: list[dict[str, Any]] = [
    {}, {"opt_level": 0}, {"debug": True}, {"fuse_tasks": "off"}, {"advanced_optimization": False},
    {"constant_folding": False}, {"cfg_optimization": False}, {"fuse_tasks": "aggressive", "num_threads": 1},
]  # fmt: skip
LONG = [pytest.param(first, marks=pytest.mark.slow) for first in range(1000, 2000, 50)]


def meaning(program: UnsafeProgram, *, clips: bool = False) -> dict[str, np.ndarray] | None:
    """What Python gives; None where it indexes outside."""
    try:
        return program.plain(program.x, program.keys, clips=clips)
    except Outside:
        return None


def agree(got: Any, want: dict[str, np.ndarray], where: str) -> None:
    for name, array in want.items():
        np.testing.assert_array_equal(np.asarray(got[name]), array, f"{name} of {where}")


def _is_refused(function: Callable[..., Any], arguments: Any) -> bool:
    try:
        qd.block_until_ready(function(*arguments))
    except qd.BoundsError:
        return True
    return False


def check(seed: int, options: dict[str, Any], wide: bool) -> bool:
    """Compares one program in all modes; gives whether it fails."""
    where = f"seed {seed}, {options}, {'64' if wide else '32'} bits"
    program = unsafe_program(seed, wide=wide)
    want = meaning(program)
    with jax.enable_x64(wide):
        raising = qd.jit(program.traced, options=options)
        if want is None:
            assert _is_refused(raising, program.arguments), where
        else:
            agree(raising(*program.arguments), want, where)
            agree(qd.jit(program.traced, options=options | {"bounds": "unchecked"})(*program.arguments), want, where)
        clipped = meaning(program, clips=True)
        assert clipped is not None
        agree(qd.jit(program.traced, options=options | {"bounds": "clip"})(*program.arguments), clipped, where)
    return want is None


@pytest.mark.full
@pytest.mark.sample(2, full=8)
@pytest.mark.parametrize("first", [*range(0, 24, 6), *LONG])
def test_calls_fail_where_python_does(first: int) -> None:
    for seed in range(first, first + (drawn(6) if first < 1000 else 50)):
        check(seed, OPTIONS[seed % len(OPTIONS)], wide=seed % 3 == 2)


def test_some_fail_and_some_do_not() -> None:
    failing = [meaning(unsafe_program(seed, wide=seed % 3 == 2)) is None for seed in range(200)]
    assert 0.3 * len(failing) < sum(failing) < 0.8 * len(failing)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 300, 20))])
@pytest.mark.full
def test_options_do_not_decide(first: int) -> None:
    """One program fails with all of them, or with none."""
    for seed in range(first, first + (1 if first < 100 else 20)):
        for options in OPTIONS:
            check(seed, options, wide=False)


@pytest.mark.full
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(300, 500, 20))])
def test_many_calls_at_once_fail_where_one_of_them_does(first: int) -> None:
    for seed in range(first, first + (3 if first < 100 else 20)):
        program, other = unsafe_program(seed), unsafe_program(seed + 5000)
        other.statements = program.statements
        want = [meaning(program), meaning(other)]
        both = jax.tree.map(lambda *x: np.stack(x), program.arguments, other.arguments)
        function = jax.vmap(qd.jit(program.traced))
        if None in want:
            assert _is_refused(function, both), f"seed {seed}"
        else:
            got = function(*both)
            for k, one in enumerate(want):
                assert one is not None
                agree({name: x[k] for name, x in got.items()}, one, f"seed {seed}, {k}")
