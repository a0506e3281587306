"""Every function of the table as lanes against jax.vmap: none is wrong, none crashes."""

import numpy as np
import pytest

from . import document, sweep
from .calls import TABLE, function_of

CALLED = [
    (module, name)
    for module, entries in TABLE.items()
    for name, entry in entries.items()
    if entry.calls and function_of(module, name) is not None
]
STATUS = document.listed(document.PATH.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize(("module", "name"), CALLED, ids=[f"{m}.{n}" for m, n in CALLED])
def test_lanes(module, name, dtype):
    found = sweep.outcome(TABLE[module][name], dtype)
    assert found.kind in ("equal", "refused"), found.detail
    if found.kind == "refused":
        assert STATUS[module][name] == "refused", found.detail
