"""Graph to graph, before code is emitted: what an emitter need not know."""
