"""The executable semantics of the graph: a reference interpreter over NumPy scalars, and its race detector."""
