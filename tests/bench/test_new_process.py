"""The benchmark of new processes: its function, and what a process says."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import new_process


@pytest.mark.full
def test_the_function_is_what_it_says() -> None:
    x = jnp.linspace(0, 1, 50)
    a = np.asarray(x, np.float64)
    for k in range(new_process.TASKS):
        a = np.sin(a * (1 + 0.01 * k)) + 0.1 * np.roll(a, -(k + 1))
    got = new_process.calls(pure=False)["forward"](x)
    np.testing.assert_allclose(got, a, rtol=1e-4)  # 64 roundings of f32 in a row


@pytest.mark.parametrize("kind", new_process.LIMITS)
def test_a_process_says_what_it_took(kind: str) -> None:
    assert new_process.first_call(kind, pure=False)["seconds"] > 0
