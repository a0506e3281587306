"""Functions of JAX without a graph primitive, as jnp functions that lanes run; see README.md in this folder."""

from qdtrace.decompositions import convolution, eigen, fourier, gammas, householder, jacobi, linalg, special, windows

__all__ = ["convolution", "eigen", "fourier", "gammas", "householder", "jacobi", "linalg", "special", "windows"]
