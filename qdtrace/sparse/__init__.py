"""Sparse derivatives: patterns read from loops, and values in their order."""

from qdtrace.sparse.finding import sparsity
from qdtrace.sparse.pattern import Sparsity
from qdtrace.sparse.values import sparse_hessian, sparse_jacobian

__all__ = ["Sparsity", "sparse_hessian", "sparse_jacobian", "sparsity"]
