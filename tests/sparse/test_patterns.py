"""`qd.sparsity`, `qd.sparse_hessian` and `qd.sparse_jacobian` against dense derivatives, on random programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.sparse.programs import Program, dense, draw

pytestmark = pytest.mark.usefixtures("_additions")


def check(program: Program, *, array: bool) -> None:
    pattern = qd.sparsity(program.f)(*program.args)
    values = (qd.sparse_jacobian if array else qd.sparse_hessian)(program.f, pattern)
    found, wanted = np.asarray(pattern.to_bcoo(values(*program.args)).todense()), dense(program, array=array)
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4, err_msg=program.text)  # sums in another order
    at = np.asarray(pattern.row).astype(np.int64) * pattern.shape[1] + np.asarray(pattern.col)
    assert (np.diff(at) > 0).all(), program.text
    assert at.size == pattern.nse


def test_a_random_program() -> None:
    check(draw(2, array=True), array=True)


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 7])
def test_some_random_programs(seed: int) -> None:
    check(draw(seed, array=False), array=False)


def check_projected(program: Program) -> None:
    """Each iteration's term, which is linear in its weight, is projected by the entries that it loads."""
    pattern = qd.sparsity(program.f)(*program.args)
    values = qd.sparse_hessian(program.f, pattern, psd=True)(*program.args)
    x, ends, weights = program.args
    hessian = jax.jit(jax.hessian(qd.jit(program.f)))
    wanted = np.zeros((x.size, x.size))
    for k in range(weights.size):
        term = hessian(x, ends, weights * (jnp.arange(weights.size) == k))
        found, vectors = np.linalg.eigh(np.asarray(term, np.float64).reshape(x.size, x.size))
        wanted += (vectors * np.maximum(found, 0)) @ vectors.T
    got = pattern.to_scipy(values).toarray()
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3, err_msg=program.text)


@pytest.mark.full
@pytest.mark.parametrize("seed", [3, 4])
def test_projections_of_random_programs(seed: int) -> None:
    check_projected(draw(seed, array=False))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 65))
def test_projections_of_more_random_programs(seed: int) -> None:
    check_projected(draw(seed, array=False))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 205))
@pytest.mark.parametrize("array", [False, True])
def test_random_programs(seed: int, array: bool) -> None:
    check(draw(seed, array=array), array=array)
