"""Transformations of programs, one a file; `pipelines` is the only place that knows an order."""
