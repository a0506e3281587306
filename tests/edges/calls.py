"""Calls of `lax` that few programs make, of any dtype and shape: windows, scatters, sorts, factorisations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .steps import Draw, Step, is_number, tame, whole

PLACES = np.array([[0], [2], [-1], [9]], np.int32)
ROWS = lax.ScatterDimensionNumbers((), (0,), (0,))


def _pool(name: str, padding: str = "VALID") -> Callable[[Any], Any]:
    starts = {"sum": lambda d: 0, "max": lambda d: -np.inf if d.kind in "fc" else np.iinfo(d).min,
              "min": lambda d: np.inf if d.kind in "fc" else np.iinfo(d).max}  # fmt: skip
    combine = {"sum": lax.add, "max": lax.max, "min": lax.min}[name]

    def run(x: Any) -> Any:
        start = np.asarray(starts[name](x.dtype), x.dtype)
        return lax.reduce_window(x, start, combine, (2,) * x.ndim, (1,) * x.ndim, padding)

    return run


def _scatter(fn: Callable[..., Any], mode: str) -> Callable[[Any], Any]:
    return lambda x: fn(x, PLACES, jnp.full((4,), whole(x)).astype(x.dtype), ROWS, mode=mode)


def _square(x: Any) -> Any:
    return tame(x) + 3 * jnp.eye(x.shape[-1], dtype=x.dtype)


CALLS: dict[str, Callable[[Any], Any]] = {
    "pooled sum": _pool("sum"),
    "pooled max": _pool("max"),
    "pooled min": _pool("min", "SAME"),
    "window of a function": lambda x: lax.reduce_window(
        x, jnp.ones((), x.dtype), lambda a, b: a * b, (2,) * x.ndim, (2,) * x.ndim, "SAME"
    ),
    "reduce": lambda x: lax.reduce(tame(x), jnp.ones((), x.dtype), lambda a, b: a * b, (x.ndim - 1,)),
    "reduce_max": lambda x: lax.reduce_max(x, (0,)),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 10),
    "reduce_and": lambda x: lax.reduce_and(x, (0,)),
    "reduce_xor": lambda x: lax.reduce_xor(x, (x.ndim - 1,)),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(tame(x), 0),
    "cummin": lambda x: lax.cummin(x, x.ndim - 1, reverse=True),
    "argmax": lambda x: lax.argmax(x, 0, np.uint8),
    "argmin": lambda x: lax.argmin(x, 0, np.int64),
    "sort of two": lambda x: lax.sort((x, x), dimension=0, num_keys=1),
    "sort by two": lambda x: lax.sort((x, -x, jnp.zeros_like(x)), dimension=x.ndim - 1, num_keys=2),
    "top_k": lambda x: lax.top_k(x, 1),
    "approx_max_k": lambda x: lax.approx_max_k(x + jnp.arange(x.shape[-1], dtype=x.dtype) / 8, 1),  # none equal
    "scatter": _scatter(lax.scatter, "drop"),
    "scatter_add": _scatter(lax.scatter_add, "clip"),
    "scatter_mul": _scatter(lax.scatter_mul, "drop"),
    "scatter_min": _scatter(lax.scatter_min, "drop"),
    "scatter_max": _scatter(lax.scatter_max, "clip"),
    "scatter_sub": lambda x: x.at[jnp.array([0, 0])].subtract(whole(x)),
    "apply at": lambda x: x.at[0].apply(jnp.negative),
    "gather fill": lambda x: x.at[jnp.array([[0, 7]])].get(mode="fill"),
    "gather none": lambda x: x.at[jnp.zeros((0, 1), int)].get(mode="fill"),
    "take_along_axis": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 0), 0),
    "segment_max": lambda x: jax.ops.segment_max(x, jnp.arange(x.shape[0]) % 2, 3),
    "segment_prod": lambda x: jax.ops.segment_prod(tame(x), jnp.arange(x.shape[0]) % 2, 3),
    "pad inside": lambda x: lax.pad(x, jnp.ones((), x.dtype), [(1, 0, 1)] * x.ndim),
    "pad away": lambda x: lax.pad(x, jnp.ones((), x.dtype), [(-1, 0, 0)] * x.ndim),
    "rev": lambda x: lax.rev(x, tuple(range(x.ndim))),
    "clamp": lambda x: lax.clamp(jnp.zeros((), x.dtype), x, jnp.ones((), x.dtype)),
    "nextafter": lambda x: lax.nextafter(x, jnp.zeros_like(x)),
    "round": jnp.round,
    "ldexp": lambda x: jnp.ldexp(tame(x), 3),
    "frexp": lambda x: jnp.frexp(tame(x)),
    "divmod": lambda x: jnp.divmod(x, x.dtype.type(3)),
    "integer_pow": lambda x: lax.integer_pow(tame(x), 3),
    "power": lambda x: jnp.power(1.5 + jnp.abs(tame(x)), 2.5),
    "atan2": lambda x: jnp.arctan2(x, x + 1),
    "logaddexp": lambda x: jnp.logaddexp(tame(x), 1),
    "erf": lambda x: jax.scipy.special.erf(x),
    "gammaln": lambda x: jax.scipy.special.gammaln(2 + tame(x)),
    "sqrt": lambda x: jnp.sqrt(2 + tame(x)),
    "exp and log": lambda x: jnp.log(jnp.exp(tame(x)) + 1),
    "sinc": jnp.sinc,
    "mulhi": lambda x: lax.mulhi(x, x),
    "rotated bits": lambda x: (x << 3) | lax.shift_right_logical(x, x.dtype.type(x.dtype.itemsize * 8 - 3)),
    "packbits": jnp.packbits,
    "unpackbits": jnp.unpackbits,
    "bincount": lambda x: jnp.bincount(jnp.abs(x).ravel() % 3, length=3),
    "histogram": lambda x: jnp.histogram(tame(x), 3, (-1, 1))[0],
    "digitize": lambda x: jnp.digitize(x, jnp.array([0, 1, 2])),
    "nonzero": lambda x: jnp.nonzero(x, size=2, fill_value=0),
    "unique": lambda x: jnp.unique(x, size=2),
    "percentile": lambda x: jnp.percentile(tame(x), 30),
    "meshgrid": lambda x: jnp.meshgrid(x, x),
    "tril_indices": lambda x: x[jnp.tril_indices(x.shape[0])],
    "polyval": lambda x: jnp.polyval(tame(x), 0.5),
    "cov": lambda x: jnp.cov(tame(x)),
    "cross": lambda x: jnp.cross(x, x + 1),
    "einsum trace": lambda x: jnp.einsum("ii", x),
    "batched matmul": lambda x: jnp.einsum("...ij,...kj->...ik", x, x),
    "wide product": lambda x: lax.dot(x, x, preferred_element_type=jnp.promote_types(x.dtype, np.float32)),
    "convolution": lambda x: lax.conv_general_dilated(
        tame(x)[None, None], jnp.ones((1, 1, 2), x.dtype), (1,), [(1, 0)]
    ),
    "lu": lambda x: jax.scipy.linalg.lu_factor(_square(x))[0],
    "qr": lambda x: jnp.abs(jnp.linalg.qr(_square(x))[1]),
    "eigvalsh": lambda x: jnp.linalg.eigvalsh(_square(x + jnp.conj(x).T) + jnp.diag(jnp.arange(x.shape[0]))),
    "svd": lambda x: jnp.linalg.svd(tame(x) + 0.1, compute_uv=False),
    "det": lambda x: jnp.linalg.det(_square(x)),
    "slogdet": lambda x: jnp.linalg.slogdet(_square(x)),
    "triangular": lambda x: jax.scipy.linalg.solve_triangular(_square(x), jnp.ones(x.shape[-1]), lower=True),
    "expm": lambda x: jax.scipy.linalg.expm(tame(x) * 0.1),
    "matrix_power": lambda x: jnp.linalg.matrix_power(tame(x), 3),
    "matrix_norm": lambda x: jnp.linalg.norm(1 + jnp.abs(tame(x)), ord=1, axis=(0, 1)),
    "rfft": lambda x: jnp.fft.rfft(tame(x)),
    "ifft": lambda x: jnp.fft.ifft(tame(x)),
    "irfft": lambda x: jnp.fft.irfft(tame(x)),
    "fftshift": jnp.fft.fftshift,
    "optimisation barrier": lambda x: lax.optimization_barrier((x, None, ()))[0],
    "split evenly": lambda x: lax.split(x, (0, x.shape[0])),
    "empty": lambda x: lax.empty(x.shape, x.dtype) * 0 if x.dtype.kind in "iu" else x,
    "dynamic rows": lambda x: lax.dynamic_index_in_dim(x, -1, 0),
    "update row": lambda x: lax.dynamic_update_index_in_dim(x, x[0], 5, 0),
    "jvp": lambda x: jax.jvp(tame, (x,), (x,))[1],
    "vjp": lambda x: jax.vjp(lambda y: (tame(y) ** 2, None), x)[1]((x, None))[0],
    "linearize": lambda x: jax.linearize(tame, x)[1](x),
    "nested grad": lambda x: jax.grad(lambda y: jnp.real(jnp.sum(tame(y) ** 2)))(jnp.real(x)),
}


def call(d: Draw) -> Step | None:
    chosen = d.some(1, is_number)
    if chosen is None:
        return None
    name = d.of(list(CALLS))
    return Step(name, chosen, CALLS[name])
