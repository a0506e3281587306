"""`python -m qdtrace info` and `cache`: what is installed, what it compiles for, and what is kept on disk."""

from __future__ import annotations

from importlib.metadata import entry_points, version

import jax

from lowering.backend import artifact_cache
from qdtrace import config


def show() -> int:
    """Prints backends, devices, versions and the cache."""
    print(f"qdtrace {version('qdtrace')}")
    print("devices: " + ", ".join(f"{d.platform} ({d.device_kind})" for d in jax.devices()))
    for entry in sorted(entry_points(group="qdtrace.backends"), key=lambda e: e.name):
        print(f"backend {entry.name}")
        facts = entry.load()().info(config.current())
        for name, value in facts.items():
            print(f"  {name}: {value}")
    return 0


def show_cache() -> int:
    """Prints where the artifact cache is and how large."""
    cache = artifact_cache(config.current())
    if cache is None:
        print("artifact cache: off")
    else:
        count, size = cache.size()
        print(f"artifact cache: {cache.folder}, {count} files, {size / 1024:.0f} KiB")
    return 0


def clear_cache() -> int:
    """Removes all artifacts."""
    cache = artifact_cache(config.current())
    if cache is None:
        print("artifact cache: off")
    else:
        print(f"artifact cache: {cache.clear()} files removed from {cache.folder}")
    return 0
