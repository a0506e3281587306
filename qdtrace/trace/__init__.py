"""Translates Python to regions of JAX equations; has all that a user touches inside a traced function."""
