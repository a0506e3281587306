"""Commands of `python -m qdtrace`."""
