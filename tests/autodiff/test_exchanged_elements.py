"""Values and derivatives of programs that exchange what is in arrays, in place, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.autodiff.exchanged_elements import arguments, drawn_program
from tests.selection import drawn


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = drawn_program(rng)
    x, limit = arguments(program, rng)
    f, want = program.body(), program.by_numpy(x, limit)
    step, weight = (rng.integers(-4, 5, x.shape).astype(np.float32) for _ in range(2))
    slope = program.by_numpy(x + step, limit) - want
    run = lambda x: f(x, limit)  # noqa: E731
    value, back = jax.vjp(run, x)
    np.testing.assert_array_equal(value, want, err_msg=str(program))
    np.testing.assert_array_equal(jax.jvp(run, (x,), (step,))[1], slope, err_msg=str(program))
    (got,) = back(jnp.asarray(weight))
    assert np.vdot(np.asarray(got, float), step) == np.vdot(weight.astype(float), slope), program


@pytest.mark.full
def test_random_programs():
    for seed in range(drawn(6)):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_many_random_programs(part):
    for seed in range(1000 + 10 * part, 1010 + 10 * part):
        check(seed)
