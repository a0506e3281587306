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
    return jax.jvp(_by_eigenvectors, primals, tangents)


def _by_eigenvectors(matrix: Any) -> Any:
    """Returns the same by equations that have derivatives: rotations have none where their angle is any."""
    found, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * jnp.maximum(found, 0)) @ vectors.T
