"""Every kind of GPU that code is made for has a backend of its name, so that `lower(..., target=kind)` finds it."""

import pytest

from lowering.simt.devices import KINDS, device
from qdtrace.backend import backend


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_backend(kind: str) -> None:
    assert backend(kind).machine == device(kind).machine
