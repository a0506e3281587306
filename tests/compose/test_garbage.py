"""The pause of Python's collector: what was made in it is not walked when it goes on."""

from __future__ import annotations

import gc

import pytest

from qdtrace.compose.garbage import paused_garbage_collection


@pytest.fixture
def collector():
    was_on = gc.isenabled()
    gc.enable()
    yield
    if not was_on:
        gc.disable()


def test_what_is_made_meanwhile_is_old(collector):
    seen = []
    gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
    try:
        with paused_garbage_collection():
            made = [[k] for k in range(50_000)]
            assert not gc.isenabled()
            assert gc.get_count()[0] >= 50_000
        assert gc.isenabled()
        assert gc.get_count()[0] < gc.get_threshold()[0]
    finally:
        gc.callbacks.pop()
    assert seen == []
    assert len(made) == 50_000


def test_what_is_frozen_stays_frozen(collector):
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with paused_garbage_collection():
            pass
        assert gc.get_freeze_count() == count
    finally:
        gc.unfreeze()
