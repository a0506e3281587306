"""Counts the indices of realistic programs that are proven to be in range, so that no check is made."""

import importlib
from typing import Any

import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.checked import indexed_accesses
from qdtrace.analysis.machine import CPU
from qdtrace.compose.staged_program import StagedProgram
from tests.importer.bodies import BODIES

ENOUGH = 0.7
"""Part of the accesses: what is left are indices that are loaded or computed from floats."""


def counts(programs: list[StagedProgram]) -> tuple[int, int]:
    """Accesses that are proven, and all."""
    found = [a for p in programs for a in indexed_accesses(p.program, p.optimised_for(CPU))]
    return sum(a.count for a in found if not a.axes), sum(a.count for a in found)


def lowered(name: str) -> list[StagedProgram]:
    fn, args = BODIES[name]
    given = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in args]
    return qd.jit(lambda *xs: fn(qd, *xs)).lower(*given).programs


@pytest.mark.full
def test_most_accesses_of_the_corpus_are_proven() -> None:
    found = {name: counts(lowered(name)) for name in BODIES}
    proven, total = (sum(c[k] for c in found.values()) for k in (0, 1))
    assert proven >= ENOUGH * total, found
    # of rows of a sparse matrix the column is loaded, and so are both ends of an edge
    unproven = {name for name, (some, every) in found.items() if some < every}
    assert unproven <= {"material_points_2d", "mass_spring", "sparse_rows"}, found


@pytest.mark.slow
def test_most_accesses_of_the_benchmarks_are_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers import MODULES
    from benchmarks.programs import PROGRAMS
    from qdtrace.compose import staging

    programs: dict[Any, None] = {}
    monkeypatch.setattr(staging, "note_programs", lambda found: programs.update(dict.fromkeys(found)))
    module, table = MODULES["qdtrace"]
    runs = getattr(importlib.import_module(f"benchmarks.peers.{module}"), table)
    for program in PROGRAMS:
        run = runs[program.name](**program.inputs(program.sizes[0]))
        run.call(run.prepare())
    proven, total = counts(list(programs))
    assert proven >= ENOUGH * total
