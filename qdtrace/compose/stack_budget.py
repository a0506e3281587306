"""How much memory the stacks of reverse mode may have: the option `ad_stack_memory` in bytes of a lane."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options

LANES = 32
"""Iterations that a thread of the host runs at a time, about: two vectors."""


def lane_budget(options: Options, machine: Machine) -> int:
    """Bytes of one lane when all lanes that run at a time take the part of the memory that the option allows.

    Of the memory of the machine; of what is free, where it is the host. A power of 2, so that programs do not change
    with every byte that is free.
    """
    lanes = machine.lanes or (options.num_threads or os.cpu_count() or 1) * LANES
    memory = machine.memory_bytes or free_memory()
    part = min(options.ad_stack_memory * memory / lanes, machine.reverse.lane_bytes)
    return 1 << int(part).bit_length() >> 1


def free_memory() -> int:
    """Bytes that this machine can give without taking them from somebody; plenty where nobody says."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 1 << 34
