"""Benchmarks on one GPU, beside CUDA written by hand, `jax.vmap` and Quadrants: `python -m benchmarks.gpu`."""
