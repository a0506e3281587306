"""Random loops that push give what a serial loop gives, in its order."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.compose.pushing import N, Traced, body, by_python


def compare(seed: int, **options: object) -> int:
    """Compares a random program with Python, returns how many elements it pushes."""
    draw = random.Random(seed)
    statements = body(draw, 0, 1)
    x = np.round(np.random.default_rng(seed).uniform(0, 1, N), 1).astype(np.float32)

    def pushed(x: jax.Array) -> object:
        outs = [qd.append(N * 64, like=(0.0, 0)) for _ in range(2)]
        other = qd.zeros(N, jnp.int32)
        for i in qd.range(N):
            run = Traced(x, i, outs, other, index=[0])
            run.cell = qd.local(0.0)
            run.run(statements)
        return outs, other

    outs, other = qd.jit(pushed, options=options)(x)  # type: ignore[call-overload]
    wanted, sums = by_python(x, statements)
    np.testing.assert_array_equal(other, sums)
    for out, want in zip(outs, wanted, strict=True):
        count = int(out.count)
        assert count == len(want)
        for values, part in zip(out.values, zip(*want, strict=True), strict=False):
            # where no float decides, products and sums may be fused
            np.testing.assert_allclose(values[:count], np.array(part), rtol=3e-7 if values.dtype == np.float32 else 0)
            assert not np.any(values[count:])
    return sum(map(len, wanted))


@pytest.mark.full
def test_programs_in_random_order() -> None:
    assert sum(compare(seed) for seed in range(5)) > 0


@pytest.mark.full
def test_the_interpreter_agrees() -> None:
    assert sum(compare(seed, debug=True) for seed in range(100, 102)) > 0


@pytest.mark.slow
def test_many_programs() -> None:
    assert sum(compare(seed) for seed in range(1000, 1300)) > 1000
