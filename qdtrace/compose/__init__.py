"""Traced programs inside of a JAX program: staging and the call primitive."""
