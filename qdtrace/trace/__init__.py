"""From Python to regions of JAX equations: what a user touches inside a traced function."""
