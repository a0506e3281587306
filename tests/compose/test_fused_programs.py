"""Whole programs after all passes: tasks that are left, bytes that they move, values that stay in registers."""

import re

import numpy as np
import pytest

import qdtrace as qd
from benchmarks.peers.qdtrace_peer import eight_loops, spring_step
from benchmarks.programs import BY_NAME

N = 1 << 12


@pytest.fixture(scope="module")
def chain() -> qd.Lowered:
    return eight_loops.lower(np.zeros(N, np.float32))


@pytest.fixture(scope="module")
def springs() -> qd.Lowered:
    given = BY_NAME["springs"].inputs(8)
    return spring_step.lower(*given.values(), np.float32(0.01))


def test_a_chain_of_loops_is_one_task_and_two_passes_over_memory(chain: qd.Lowered) -> None:
    assert len(chain.tasks) == 1
    moved = chain.traffic()
    assert (moved.read, moved.written, moved.exact) == (4 * N, 4 * N, True)


def test_buffers_between_the_loops_of_a_chain_are_not_allocated(chain: qd.Lowered) -> None:
    assert chain.memory_analysis()["temporaries"] == 0


def test_a_chain_that_is_not_fused_moves_every_buffer_in_between() -> None:
    with qd.options(fuse_tasks="off"):
        apart = eight_loops.lower(np.zeros(N, np.float32))
    assert len(apart.tasks) == 8
    moved = apart.traffic()
    # each loop reads what the one before it wrote, and three of them x besides
    assert (moved.read, moved.written) == ((8 + 3) * 4 * N, 8 * 4 * N)


def accesses(graph: str, primitive: str, ref: str) -> int:
    name = rf"{primitive} {ref} \S+ \S+" if primitive == "load" else rf"{primitive} {ref} \S+ \S+ \S+"
    return len(re.findall(rf"\b{name}$", graph, re.MULTILINE))


def test_a_step_of_springs_is_two_launches(springs: qd.Lowered) -> None:
    assert len(springs.tasks) == 2


def test_velocities_that_a_step_of_springs_has_stored_are_not_loaded(springs: qd.Lowered) -> None:
    # two components, each read once and written once; the loop over positions would load both again
    assert accesses(springs.graph("trace"), "load", "v") == 4
    graph = springs.graph()
    assert accesses(graph, "store", "v") == 2
    assert accesses(graph, "load", "v") == 2
    _, stored, after = graph.partition("store v ")
    assert stored
    assert "load v " not in after
