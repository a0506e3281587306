"""Projects a symmetric matrix of an iteration to the nearest one without negative eigenvalues."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from qdtrace.decompositions.jacobi import eigenpairs


@jax.custom_jvp
def projected(matrix: Any) -> Any:
    """Returns the nearest symmetric matrix without negative eigenvalues; NaN where one entry is no finite number.

    What negative eigenvalues contribute is taken from the matrix, so that one without any stays as it is.
    """
    whole = matrix + (matrix.T - matrix) / 2
    found, vectors = eigenpairs(whole)
    upper = jnp.triu(whole - (jnp.minimum(found, 0)[:, None] * vectors).T @ vectors)
    return upper + jnp.triu(upper, 1).T


@projected.defjvp
def _tangent(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """Returns the projection and its change: between eigenvectors, that of the matrix times the slope of the positive
    part from one eigenvalue to the other. It is a number between 0 and 1 where they are equal, too."""
    (matrix,), (change,) = primals, tangents
    found, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    positive, size = jnp.maximum(found, 0), jnp.abs(found)
    above, whole = positive[:, None] + positive, size[:, None] + size
    slopes = jnp.where(whole > 0, above / jnp.where(whole > 0, whole, 1), 0.5)
    between = vectors.T @ ((change + change.T) / 2) @ vectors
    return projected(matrix), vectors @ (slopes * between) @ vectors.T
