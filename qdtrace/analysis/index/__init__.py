"""Index sets: which elements accesses touch over all iterations, and what follows for tasks (docs/design/0010)."""
