"""DLPack capsules of memory of the host, by the functions of jaxlib that `jax.dlpack` calls after its checks.

Those checks take 30 us, ten times as long as the rest. Like `trace/compat`, this module knows differences of releases.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import jax

_jax: Any = import_module("jaxlib._jax")
_CPU = 1
"""DLPack's number of the host."""
_KIND_SINCE = 467
"""Version of jaxlib's interface that asks for the kind of device, too."""


@functools.cache
def _settings() -> tuple[Any, ...]:
    """Returns what is said of a capsule: device, stream, whether to copy, and the kind of device."""
    version: int = getattr(import_module("jaxlib.xla_client"), "_version", 0)
    return jax.local_devices(backend="cpu")[0], None, None, *((_CPU,) if version >= _KIND_SINCE else ())


def array_of_capsule(capsule: object) -> jax.Array:
    """Returns an array on the memory that a capsule hands over, or on a copy of memory at an address XLA cannot use."""
    return _jax.dlpack_managed_tensor_to_buffer(capsule, *_settings())


def capsule_of(array: jax.Array) -> object:
    """Returns a capsule of an array, which has to be there already."""
    return _jax.buffer_to_dlpack_managed_tensor(array, stream=None)
