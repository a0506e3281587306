"""Every kind of GPU that code is made for has a backend of its name, so that `lower(..., target=kind)` finds it."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

from lowering.simt.devices import KINDS

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
BACKENDS = PROJECT["entry-points"]["qdtrace.backends"]


def test_no_other_backends() -> None:
    assert BACKENDS.keys() == KINDS.keys() | {"cpu", "cuda", "rocm", "spirv64"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_backend(kind: str) -> None:
    module, _, name = BACKENDS[kind].partition(":")
    make = getattr(importlib.import_module(module), name)
    assert make.args == (kind,)
