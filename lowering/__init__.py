"""Backends: from a verified graph to code that runs inside XLA programs."""
