"""The memory that derivatives may take for what they keep, by options and machine, and derivatives made within it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from qdtrace.autodiff.loops.policy import Stacks
from qdtrace.compose.pass_cache import DERIVATIONS, kept
from qdtrace.compose.stack_budget import lane_budget, memory_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.analysis.machine import Machine
    from qdtrace.autodiff.loops.policy import StorageChoice
    from qdtrace.compose.linearised import Linearised
    from qdtrace.config import Options

T = TypeVar("T")

FEWEST_LANES = 2
"""Iterations that a thread of the host runs at a time if they need much private memory."""
FEWEST_THREADS = 2048
"""Threads of a GPU that run at a time then."""


def stacks_for(options: Options, machine: Machine) -> Stacks:
    """Returns the memory for stacks that thin, by lane, and for what cannot be thinned, of all lanes together."""
    lanes = (options.num_threads or os.cpu_count() or 1) * FEWEST_LANES if machine.lanes is None else FEWEST_THREADS
    memory = int(options.ad_stack_memory * memory_of(machine))
    return Stacks(lane_budget(options, machine), machine.reverse, memory, lanes)


def derived(tangents: Linearised, about: tuple[object, ...], stacks: Stacks, make: Callable[[], T]) -> T:
    """Returns what `make` derives of tangents within the memory of `stacks`, and adds its choices to them. It is taken
    from disk if it was made with the same budget, if it has choices, and asked for no more memory than there is."""

    def made() -> tuple[T, tuple[StorageChoice, ...], int | None, int]:
        result = make()
        return result, tuple(stacks.choices), stacks.budget if stacks.is_asked else None, stacks.needed

    def is_valid(found: tuple[T, tuple[StorageChoice, ...], int | None, int]) -> bool:
        return found[2] in (None, stacks.budget) and found[3] <= stacks.memory

    about = (*about, stacks.limits, stacks.fewest_lanes)
    result, choices, _, _ = kept(DERIVATIONS, lambda: tangents.key, about, tangents.options, made, is_valid)
    stacks.choices[:] = choices
    return result
