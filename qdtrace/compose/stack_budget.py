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


def memory_part(options: Options) -> int:
    """Bytes of the part of free memory that the option allows, as a power of 2."""
    return 1 << int(options.ad_stack_memory * free_memory()).bit_length() >> 1


def free_memory() -> int:
    """Bytes that this process can get without taking them from somebody; plenty where nobody says."""
    return min(_free_in_machine(), _free_in_group())


def _free_in_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 1 << 34


def _free_in_group(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """What is left of the limits of the control groups (v2) that the process is in; containers are such groups."""
    left = 1 << 62
    try:
        own = next((line[3:] for line in groups.read_text().splitlines() if line.startswith("0::")), "/")
        folder = root / own.lstrip("/")
        for group in (folder, *folder.parents):
            limit, used = group / "memory.max", group / "memory.current"
            if limit.exists() and (most := limit.read_text().strip()) != "max":
                left = min(left, max(int(most) - int(used.read_text()) + _reclaimable(group), 0))
            if group == root:
                break
    except (OSError, ValueError):
        pass
    return left


def _reclaimable(group: Path) -> int:
    """Bytes of files in memory that the system drops first."""
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0
