"""Sorting and what stands on it, for whole arrays: JAX functions that run as tasks of this package on a CPU."""

from qdtrace.algorithms.box_trees import Boxes, boxes
from qdtrace.algorithms.combining import reduce_by_key, scan
from qdtrace.algorithms.grids import Grid, grid
from qdtrace.algorithms.packing import compact, segments
from qdtrace.algorithms.sorting import argsort, sort
from qdtrace.trace.pushes.append import append

__all__ = [
    "Boxes", "Grid", "append", "argsort", "boxes", "compact", "grid", "reduce_by_key", "scan", "segments", "sort",
]  # fmt: skip
