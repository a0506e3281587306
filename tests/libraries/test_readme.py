"""The README's program with Diffrax is right."""

from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.full
def test_the_program_of_the_readme() -> None:
    blocks = README.read_text().split("```")
    (program,) = [b for b in blocks if b.startswith("python") and "diffrax." in b]
    names = {"diffrax": diffrax, "jnp": jnp, "qd": qd}
    exec(program.removeprefix("python"), names)
    assert names["ends"].shape == (10_000, 1, 3)
    want = jax.vmap(names["end"])(jnp.linspace(0.0, 21.0, 10_000)[::2500])
    # a rounding may accept a step that another rejects: the tolerance of the solve
    np.testing.assert_allclose(names["ends"][::2500], want, rtol=2e-3)
