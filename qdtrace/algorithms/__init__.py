"""Sorting and what stands on it, for whole arrays: JAX functions that run as tasks of this package on a CPU."""
