"""The memory budget of reverse mode's stacks: the option `ad_stack_memory` in bytes per lane."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine
    from qdtrace.config import Options

LANES = 32
"""Approximate iterations that a thread of the host runs at a time: two vectors."""


def memory_of(machine: Machine) -> int:
    """Returns the bytes of free memory of the host, or of memory of the device."""
    if machine.memory_bytes is None:
        return free_memory()
    return min(machine.memory_bytes, device_memory(machine.platform))


@functools.cache
def device_memory(platform: str) -> int:
    """Returns the bytes that JAX may take of the smallest device of this process on a platform, or a large number if it
    has none or does not say."""
    try:
        found = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices(backend=platform)]
    except RuntimeError:
        found = []
    return min((nbytes for nbytes in found if nbytes), default=1 << 62)


def lane_budget(options: Options, machine: Machine) -> int:
    """Returns the bytes of one lane if all lanes that run at a time take the fraction of memory that the option allows.

    For the host it is a fraction of free memory, otherwise of the device's. It is a power of 2, so that programs do
    not change with every byte of free memory.
    """
    lanes = machine.lanes or (options.num_threads or os.cpu_count() or 1) * LANES
    part = min(options.ad_stack_memory * memory_of(machine) / lanes, machine.reverse.lane_bytes)
    return 1 << int(part).bit_length() >> 1


def memory_part(options: Options) -> int:
    """Returns the bytes of free memory that the option allows, as a power of 2."""
    return 1 << int(options.ad_stack_memory * free_memory()).bit_length() >> 1


def free_memory() -> int:
    """Returns the bytes of free memory for this process, or a large number if the system does not say."""
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
    """Returns the bytes left below the limits of the process's control groups (v2), which containers have."""
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
    """Returns the bytes of cached files, which the system drops first."""
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0
