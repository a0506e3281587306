"""Fixtures of tests of caches."""

import pytest

import qdtrace as qd
from qdtrace.compose import source_key
from qdtrace.trace.importer import registry


@pytest.fixture
def pure(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "TAUGHT", {})  # other tests of this process leave import rules
    monkeypatch.setattr(source_key, "TAUGHT", {})
    kept = {"offline_cache_passes": True, "pure": True, "offline_cache_dir": tmp_path}
    with qd.options(offline_cache=True, **kept):
        yield tmp_path
