"""The memory that reverse mode may take on a machine, by the options."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from qdtrace.autodiff.loops.policy import Stacks
from qdtrace.compose.stack_budget import lane_budget, memory_of

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options

FEWEST_LANES = 2
"""Iterations that a thread of the host runs at a time if they need much private memory."""
FEWEST_THREADS = 2048
"""Threads of a GPU that run at a time then."""


def stacks_for(options: Options, machine: Machine) -> Stacks:
    """Returns the memory for stacks that thin, by lane, and for what cannot be thinned, of all lanes together."""
    lanes = (options.num_threads or os.cpu_count() or 1) * FEWEST_LANES if machine.lanes is None else FEWEST_THREADS
    memory = int(options.ad_stack_memory * memory_of(machine))
    return Stacks(lane_budget(options, machine), machine.reverse, memory, lanes)
