"""Solves in lanes whose matrices or right sides lie in memory: their transposes are those of their steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg

import qdtrace as qd

SIDES = (1, 2, 3, 4, 6, 7, 8, 9, 12, 15, 16, 17)
COLUMNS = (None, 1, 3, 5, 11, 13)


def bounded(x: Any) -> Any:
    """Returns a function of real or complex numbers that is smooth, and at most 1/2."""
    return x / (1 + jnp.real(x * x.conj()))


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "solve": jnp.linalg.solve,
    "of the transposed": lambda a, b: jnp.linalg.solve(a.T, b),
    "by factors": lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b),
    "by factors, transposed": lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b, trans=1),
    "by factors, adjoint": lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b, trans=2),
    "inverse": lambda a, b: jnp.linalg.inv(a) @ b,
    "definite": lambda a, b: linalg.solve(a @ a.T.conj() + jnp.eye(len(a), dtype=a.dtype), b, assume_a="pos"),
    "in turn": lambda a, b: jnp.linalg.solve(a, jnp.linalg.solve(a + jnp.eye(len(a), dtype=a.dtype), b)),
    "both sides": lambda a, b: jnp.linalg.solve(a, bounded(b) * jnp.trace(a)) - b,
}


class Program:
    """A random function of a matrix and right sides, alone or in a loop of products."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.n, columns = int(rng.choice(SIDES)), COLUMNS[rng.integers(len(COLUMNS))]
        self.form = [*FORMS][rng.integers(len(FORMS))]
        self.in_loop = bool(rng.random() < 0.5)
        self.dtype = ["float32", "float64", "complex128"][rng.integers(3 if self.form != "definite" else 2)]
        lanes = int(rng.choice((1, 3, 17)))

        def array(*shape: int) -> Any:
            x = rng.normal(size=(lanes, *shape))
            return jnp.asarray((x + 1j * rng.normal(size=x.shape) if "c" in self.dtype else x).astype(self.dtype))

        sides = (self.n,) if columns is None else (self.n, columns)
        self.args = array(self.n, self.n) / np.sqrt(self.n) + 3 * jnp.eye(self.n, dtype=self.dtype), array(*sides)

    def __str__(self) -> str:
        return f"{self.form} of {self.args[0].shape} and {self.args[1].shape}, {self.dtype}, loop: {self.in_loop}"

    def lane(self, a: Any, b: Any) -> Any:
        solve, n = FORMS[self.form], self.n
        if not self.in_loop:
            return solve(a, b)
        turned = lambda a: a @ a.T @ a / (9 * n) + 3 * jnp.eye(n, dtype=a.dtype)  # noqa: E731
        return lax.fori_loop(0, 2, lambda _, s: (turned(s[0]), bounded(solve(s[0], s[1])).astype(b.dtype)), (a, b))[1]

    def results(self, mapped: Callable[..., Any]) -> dict[str, Any]:
        """Returns value, tangent, cotangents, and the tangent of cotangents."""
        moved = tuple(bounded(3 * x) for x in self.args)

        def pulled(*args: Any) -> Any:
            y, pull = jax.vjp(mapped, *args)
            return pull(jnp.sin(jnp.arange(y.size, dtype=y.real.dtype)).reshape(y.shape).astype(y.dtype))

        return {
            "value": mapped(*self.args),
            "tangent": jax.jvp(mapped, self.args, moved)[1],
            "cotangents": pulled(*self.args),
            "second": jax.jvp(pulled, self.args, moved)[1],
        }


@pytest.mark.full
@pytest.mark.sample(full=60)
@pytest.mark.parametrize("seed", range(120))
def test_random_solves(seed: int) -> None:
    with jax.enable_x64(True), qd.options(array_mapping="lanes"):
        program = Program(seed)
        got, want = (jax.jit(lambda m=m: program.results(m(program.lane)))() for m in (qd.vmap, jax.vmap))
    digits = 2e-3 if program.dtype == "float32" else 1e-10  # conditions of some 100, and second derivatives
    for name in want:
        for g, w in zip(jax.tree.leaves(got[name]), jax.tree.leaves(want[name]), strict=True):
            assert g.dtype == w.dtype
            scale = float(jnp.abs(w).max())
            np.testing.assert_allclose(g, w, rtol=0, atol=digits * max(scale, 1e-3), err_msg=f"{name} of {program}")


@pytest.mark.full
def test_a_definite_matrix_of_complex_numbers() -> None:
    """The transpose is that of the tangents. JAX's own is not: it takes the matrix for equal to its transpose."""

    with jax.enable_x64(True), qd.options(array_mapping="lanes"):
        a, b = (x[:, :9] + 1j * jnp.sin(x[:, :9]) for x in (jnp.ones((2, 9, 9)) * jnp.arange(9.0), jnp.ones((2, 9, 5))))
        mapped = jax.jit(qd.vmap(FORMS["definite"]))
        moved = jnp.cos(3 * a), jnp.sin(b)
        y, tangent = jax.jvp(mapped, (a, b), moved)
        weights = jnp.cos(jnp.arange(y.size)).reshape(y.shape) + 0.5j
        cotangents = jax.vjp(mapped, a, b)[1](weights)
    along = sum(jnp.sum(c * t) for c, t in zip(cotangents, moved, strict=True))
    np.testing.assert_allclose(along.real, jnp.sum(weights * tangent).real, rtol=1e-10)


@pytest.mark.full
@pytest.mark.cpu  # a GPU has arrays of 225 elements as scalars
def test_many_right_sides_stay_in_memory() -> None:
    """They were written out as scalars, once for the value and once for each derivative."""

    def lane(a: Any, b: Any) -> Any:
        return lax.fori_loop(0, 4, lambda _, b: jnp.linalg.solve(a @ a.T, b) @ a, b)

    def lines(n: int) -> int:
        a = jnp.ones((3, n, n))
        f = jax.jit(jax.grad(lambda a, b: qd.vmap(lane)(a, b).sum()))
        low = qd.jit(lambda a: f(a, a), options={"array_mapping": "lanes"}).lower(a)
        return low.graph("canonical").count("\n")

    assert lines(15) < 1.2 * lines(9)
