"""Cases of factorisations and solvers, on matrices that are well conditioned; and of random numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax import linalg as private

from .points import COMPLEX, between, definite, upper, well_conditioned
from .table import ARRAYS, MATRIX, SCALAR, array, case

REAL = ("float32", "float64")
BOTH = (*REAL, *COMPLEX)
STEPS = "a factorisation in another order of steps"
LARGE = (3, 2, 1, 7)
options: dict[str, Any] = {"among": BOTH, "ulps": 4096, "why": STEPS, "costly": True}
SQUARE = array("n", "n", points=well_conditioned, kinds=ARRAYS)
SPD = array("n", "n", points=definite, kinds=ARRAYS)
TALL = array("n+1", "n", points=well_conditioned, kinds=ARRAYS)
UPPER = array("n", "n", points=upper, kinds=ARRAYS)
SIDES = array("n", 2, points=between(-1, 1))
OFF = array("n", points=between(-0.3, 0.3), kinds=ARRAYS)
MAIN = array("n", points=between(2, 3), kinds=ARRAYS)


def _projections(v: Any) -> Any:
    """Of vectors, whatever their sign or phase is."""
    return v[:, None, :] * jnp.conj(v[None, :, :])


def _eigen(a: Any) -> Any:
    w, v = jnp.linalg.eigh(a)
    return w, _projections(v)


def _singular(a: Any) -> Any:
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    return s, _projections(u), _projections(jnp.conj(v).T)


def _values(a: Any) -> Any:
    """What does not depend on the order of eigenvalues."""
    w = lax.linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
    return jnp.sum(w), jnp.sum(w * w), jnp.prod(w)


def _schur(a: Any) -> Any:
    t, q = lax.linalg.schur(a)
    return q @ t @ jnp.conj(q).T


def _packed(a: Any) -> Any:
    return lax.linalg.householder_product(*private.geqrf(a))


def _reflected(a: Any, c: Any) -> Any:
    packed, taus = private.geqrf(a)
    return private.ormqr(packed, taus, c, left=True, transpose=False)


case("cholesky", jnp.linalg.cholesky, SPD, sizes=MATRIX, **options)
case("cholesky_update", lambda r, w: jax.custom_batching.sequential_vmap(lax.linalg.cholesky_update)(r, w),
     array("n", "n", points=upper, kinds=ARRAYS), OFF, sizes=LARGE, **{**options, "among": REAL})  # fmt: skip
case("eigh", _eigen, SPD, sizes=LARGE, **options)
case("svd", _singular, SQUARE, sizes=LARGE, **options)
case("svd", lambda a: jnp.linalg.svd(a, compute_uv=False), TALL, sizes=LARGE, **options)
case(
    "eig", _values, SQUARE, sizes=LARGE, **{**options, "ulps": 1e5, "why": "slopes by the inverse of the eigenvectors"}
)
case("schur", _schur, SQUARE, sizes=LARGE, **{**options, "among": COMPLEX})
case("lu", lax.linalg.lu, SQUARE, sizes=MATRIX, **options)
case("lu", lambda a: lax.linalg.lu(a)[0], TALL, sizes=LARGE, **options)
case("lu_pivots_to_permutation", lambda p: lax.linalg.lu_pivots_to_permutation(p % 3, 4),
     array(3, points=between(0, 3)), among=("int32",), sizes=(SCALAR,))  # fmt: skip
case("qr", lambda a: lax.linalg.qr(a, full_matrices=False), TALL, sizes=LARGE, **options)
case("qr", lambda a: lax.linalg.qr(a, full_matrices=True), SQUARE, sizes=LARGE, **options)
case("geqrf householder_product", _packed, SQUARE, sizes=LARGE, **options)
case("geqp3", lambda a: private.geqp3(a, jnp.zeros(a.shape[1], jnp.int32))[0], SQUARE, sizes=LARGE, **options)
case("ormqr", _reflected, SQUARE, SIDES, sizes=LARGE, **options)
case("hessenberg", lax.linalg.hessenberg, SQUARE, sizes=(3, 2, 7), **options)
case("tridiagonal", lambda a: lax.linalg.tridiagonal(a, lower=True)[1:3], SPD, sizes=(3, 2, 7), **options)
case("tridiagonal_solve", lax.linalg.tridiagonal_solve, OFF, MAIN, OFF, SIDES, sizes=(3, 7, 17), **options)
case("triangular_solve", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=False), UPPER, SIDES,
     sizes=MATRIX, **options)  # fmt: skip
case("triangular_solve", lambda a, b: lax.linalg.triangular_solve(a, b.T, transpose_a=True, conjugate_a=True), UPPER,
     SIDES, sizes=LARGE, **options)  # fmt: skip
case("symmetric_product", lambda a, c: lax.linalg.symmetric_product(a, c, symmetrize_output=True), SQUARE, SPD,
     sizes=LARGE, **options)  # fmt: skip

KEY = array(2, dtype=np.uint32, points=between(0, 2**32), kinds=("argument", "view"))


def _key(raw: Any) -> Any:
    return jax.random.wrap_key_data(raw, impl="threefry2x32")


random: dict[str, Any] = {"among": REAL, "sizes": (2, 17, 40), "costly": True}
case(
    "random_bits random_wrap threefry2x32 iota_2x32_shape",
    lambda k, x: jax.random.uniform(_key(k), x.shape, x.dtype) * x,
    KEY,
    array("n"),
    **random,
)
case("random_split random_unwrap", lambda k, x: jax.random.key_data(jax.random.split(_key(k), x.shape[0])), KEY,
     array("n"), **random)  # fmt: skip
case("random_fold_in", lambda k, x: jax.random.normal(jax.random.fold_in(_key(k), 7), x.shape, x.dtype) * x, KEY,
     array("n"), **random)  # fmt: skip
case("random_clone", lambda k, x: jax.random.uniform(jax.random.clone(_key(k)), x.shape, x.dtype) + x, KEY, array("n"),
     **random)  # fmt: skip
case("random_seed", lambda i: jax.random.key_data(jax.random.key(i)), array(points=between(0, 99)),
     among=("int32", "uint32", "int64"), sizes=(SCALAR,))  # fmt: skip
case("random_gamma", lambda k, a: jax.random.gamma(_key(k), a), KEY,
     array(points=between(0.3, 4), kinds=("argument",)), among=REAL, sizes=(SCALAR,), ulps=1e5, costly=True,
     why="a power of a sample, and its slope by a series")  # fmt: skip
