"""Bodies of real programs: they trace, and no diagnosis stands in their way."""

import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace.markers import for_p
from qdtrace.trace.trace import trace_function
from tests.importer.bodies import BODIES, CONDITIONAL

PROGRAMS = {**BODIES, **CONDITIONAL}
TASKS = {"material_points_2d": 3, "mass_spring": 2}
"""Numbers of outermost loops; the others have one."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_traces(name) -> None:
    function, args = PROGRAMS[name]
    given = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in args]
    for _ in range(2):
        root = trace_function(lambda *xs: function(qd, *xs), given).root
        assert sum(item.primitive is for_p for item in root.items) == TASKS.get(name, 1)
