"""Answers that surprise of linear algebra: equal and vanishing eigenvalues, triangles that are read, signs."""

import jax
import jax.numpy as jnp
import numpy as np

from .rows import INF, NAN, NUMPY, ask, f32
from .slope_rows import ROWS

__all__ = ["ROWS"]

_EYE = np.eye(2, dtype=np.float32)[None]
for _name, _f, _at, _value, _slope in (
    ("eigenvalues", lambda m: jnp.linalg.eigh(m)[0].sum(), _EYE, 2, _EYE),
    ("eigenvectors", lambda m: jnp.linalg.eigh(m)[1][0, 0], _EYE, 1, NAN * _EYE),
    ("singular values", lambda m: jnp.linalg.svd(m, compute_uv=False).sum(), _EYE, 2, _EYE),
    ("singular values of 0", lambda m: jnp.linalg.svd(m, compute_uv=False).sum(), 0 * _EYE, 0, _EYE),
    ("2-norm", lambda m: jnp.linalg.norm(m, 2), _EYE, 1, _EYE / 2),
):
    ask(
        f"equal {_name}",
        _f,
        _at,
        value=[_value],
        slopes=[_slope + (0 * _slope if np.isfinite(_slope).all() else NAN)],
        source=f"{NUMPY}/linalg.py and jax/_src/lax/linalg.py",
    )
ask(
    "cholesky of half a matrix",
    jnp.linalg.cholesky,
    f32([[4, 2], [0, 10]]),
    value=[[[2, 0], [0.5, 3.1224990]]],
    source="jax/_src/lax/linalg.py: symmetrize_input",
    said="`jnp.linalg.cholesky`, `eigh`: the mean of both triangles (`UPLO` is ignored); `jax.scipy.linalg.cholesky` "
    "reads one",
)
ask(
    "cholesky of jax.scipy",
    lambda m: jax.scipy.linalg.cholesky(m, lower=True),
    f32([[4, 100], [2, 3]]),
    value=[[[2, 0], [1, 1.4142135]]],
    source="jax/_src/scipy/linalg.py: _cholesky",
)
ask(
    "eigenvalues by UPLO",
    lambda m: jnp.linalg.eigh(m, UPLO="L")[0],
    f32([[1, 5], [3, 1]]),
    value=[[-3, 5]],
    source=f"{NUMPY}/linalg.py: eigh symmetrises",
)
ask(
    "cholesky of what is not positive",
    jnp.linalg.cholesky,
    f32([[1, 2], [2, 1]], [[0, 0], [0, 1]]),
    value=[[[NAN, 0], [NAN, NAN]]] * 2,
    source="jax/_src/lax/linalg.py: _cholesky_lowering fills with NaN where LAPACK reports a leading minor",
)
ask(
    "signs of qr",
    lambda m: jnp.linalg.qr(m)[1],
    f32([[3, 1], [4, 1]], [[1, 0], [0, 1]], [[-1, 0], [0, -1]]),
    value=[[[-5, -1.4], [0, -0.2]], [[1, 0], [0, 1]], [[-1, 0], [0, -1]]],
    source="LAPACK: geqrf; a reflection that moves nothing is the identity",
    said="the diagonal of R of `qr`: negative where a column is reflected ([3, 4]: -5), kept where it is on its axis",
)
_SINGULAR = f32([[1, 2], [2, 4]])
ask(
    "svd of a singular matrix",
    lambda m: jnp.abs(jnp.linalg.svd(m)[0]),
    _SINGULAR,
    value=[[[0.4472136, 0.8944272], [0.8944272, 0.4472136]]],
    source="LAPACK: gesdd; the signs are its own",
    said="singular matrices: signs of vectors of `svd`, `cond` (large or infinite) and the last row of `qr` are "
    "roundings of a zero, and not those of JAX",
)
ask(
    "cond of a singular matrix",
    lambda m: jnp.linalg.cond(m) > 1e6,
    _SINGULAR,
    value=[True],
    source=f"{NUMPY}/linalg.py: cond divides by a rounding of zero",
)
ask(
    "cond of zeros",
    jnp.linalg.cond,
    0 * _EYE,
    value=[NAN],
    slopes=[NAN * _EYE + NAN],
    newer={"value": [INF]},
    source=f"{NUMPY}/linalg.py: cond",
)
ask(
    "qr of zeros",
    lambda m: jnp.linalg.qr(m)[1][0, 0],
    0 * _EYE,
    value=[0],
    slopes=[NAN * _EYE + NAN],
    source="jax/_src/lax/linalg.py: qr_jvp_rule solves with R",
)
