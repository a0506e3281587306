"""The pause of Python's collector: what was made in it is not walked when it goes on."""

import gc
import weakref

import pytest

from qdtrace.compose import garbage
from qdtrace.compose.garbage import paused_garbage_collection


@pytest.fixture
def collector(monkeypatch):
    monkeypatch.setattr(garbage, "_not_walked", 0)
    monkeypatch.setattr(garbage, "_others_froze", False)
    gc.unfreeze()  # what an earlier test froze
    was_on, before = gc.isenabled(), gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # Python's own
    gc.collect()
    gc.enable()
    yield
    gc.set_threshold(*before)
    if not was_on:
        gc.disable()


@pytest.mark.parametrize("count", [2000, 50_000])
@pytest.mark.full
def test_what_is_made_meanwhile_is_old(collector, count, monkeypatch):
    """A full collection that is due is not made either: it took 30 ms of a process's first gradient."""
    seen, made = [], []
    gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
    gc.set_threshold(700, 1, 1)
    monkeypatch.setattr(garbage, "_allowed", 1_000_000)
    monkeypatch.setattr(garbage, "_others_froze", False)  # other tests did
    try:
        for _ in range(5):
            with paused_garbage_collection():
                made += [[k] for k in range(count)]
                assert not gc.isenabled()
                assert gc.get_count()[0] > 0.9 * count  # what older objects are freed meanwhile counts down
            assert gc.isenabled()
            assert gc.get_count()[0] < gc.get_threshold()[0]
    finally:
        gc.callbacks.pop()
    assert seen == []
    assert len(made) == 5 * count


@pytest.mark.full
def test_what_is_frozen_stays_frozen(collector):
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        for _ in range(2):
            with paused_garbage_collection():
                made = [[k] for k in range(2000)]
        assert gc.get_freeze_count() == count
        assert len(made) == 2000
    finally:
        gc.unfreeze()


@pytest.mark.full
def test_many_blocks_end_in_a_full_collection(collector, monkeypatch):
    """What a block leaves in cycles was never found: the process grew with each trace."""
    monkeypatch.setattr(garbage, "_not_walked", 0)
    monkeypatch.setattr(garbage, "_allowed", 190_000)

    class Node:
        pass

    lost, made = [], []
    for _ in range(5):
        with paused_garbage_collection():
            node = Node()
            node.itself = node
            lost.append(weakref.ref(node))
            del node
            made += [[k] for k in range(50_000)]
    assert len(made) == 250_000
    assert [ref() is None for ref in lost[:4]] == [True] * 4


@pytest.mark.full
def test_small_blocks_leave_ages_alone(collector, monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("was called"))
    with paused_garbage_collection():
        made = [[k] for k in range(500)]
    assert len(made) == 500
