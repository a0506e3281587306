"""The version of the installed Triton, found without importing it."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version

_OLDEST = (3, 5)
NEEDED = "the package triton, " + ".".join(map(str, _OLDEST)) + " or newer"


@functools.cache
def triton_version() -> str | None:
    """Returns the version of the package, or None if it is missing or too old to compile our source."""
    try:
        found = version("triton")
    except PackageNotFoundError:
        return None
    numbers = [int(part) for part in found.split(".")[:2] if part.isdecimal()]
    return found if tuple(numbers) >= _OLDEST else None
