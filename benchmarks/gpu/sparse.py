"""A sparse matrix times a vector, and its gradient by both, beside a copy of what they read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.gpu.gradients import reverse
from benchmarks.gpu.loops import called, checked
from benchmarks.gpu.row import Row
from benchmarks.gpu.streams import copied
from benchmarks.gradients import programs
from benchmarks.peers import qdtrace_gradients
from benchmarks.programs import ragged_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.bench import Bench

ELEMENTS = 1 << 26
"""Floats of an array that `copied` counts in."""
SECTOR = 8
"""Floats that a gather moves."""


def product(bench: Bench) -> Iterator[Row]:
    """2^22 rows of mean length 16, and rows by Zipf's law. Columns are in no order, so each gather moves 32 bytes."""
    rows = bench.size(1 << 22, 300)
    given = {**bench.shared("ragged", lambda: ragged_inputs(rows))}
    given["bar"] = given["x"][::-1].copy()
    for kind, inputs in (("", given), (", by Zipf's law", programs.csr_inputs(rows))):
        forward = called(qdtrace_gradients.csr_product, inputs, ("ptr", "col", "w", "x"))
        backward, _, _ = reverse(qdtrace_gradients.csr(**inputs))
        checked(backward, inputs, programs.csr_check)
        times = bench.times(forward, backward)
        moved = 2 * len(inputs["w"]) + 3 * rows, 3 * len(inputs["w"]) + 4 * rows
        for name, ours, count in zip(("sparse product", "its gradient"), times, moved, strict=True):
            limit, why = copied(bench, count / ELEMENTS)
            sectors = None if limit is None else limit * (count + SECTOR * len(inputs["w"])) / count
            note = why or f"with 32 bytes for each gather {sectors:.3g} ms"
            yield Row(f"{name}{kind}", ours.ms, "ms", "a copy of its bytes", limit, note=note)
