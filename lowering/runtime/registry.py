"""Registration of handlers with XLA, and the check that XLA's interface is the one that handlers use."""

from __future__ import annotations

import ctypes
import threading
from typing import NamedTuple

import jax

from lowering.runtime import abi
from qdtrace.errors import BackendError


class Platform(NamedTuple):
    """A platform with JAX's and XLA's names of it."""

    jax: str
    xla: str


CPU = Platform("cpu", "cpu")
_lock = threading.Lock()
_registered: dict[tuple[str, Platform], int] = {}


def register(name: str, address: int, api_seen: int, platform: Platform) -> None:
    """Makes a handler callable as foreign-function target `name` on a platform. A repeated call does nothing.

    `api_seen` is the address where the launcher keeps the version of XLA's interface. Raises BackendError if JAX does
    not have the platform or if XLA's interface is not the one known here.
    """
    with _lock:
        if _registered.get((name, platform)) == address:
            return
        # Before the platform is up, a registration is queued: a refusal would then break the platform for good.
        try:
            jax.devices(platform.jax)
        except RuntimeError as e:
            raise BackendError(
                f"needs JAX's {platform.jax} platform, which is not available", notes=(str(e),)
            ) from None
        try:
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform=platform.xla)
        except Exception as e:
            raise BackendError("XLA refused a handler", notes=(str(e), _describe(api_seen))) from e
        _check(api_seen)
        _registered[name, platform] = address


def _seen(address: int) -> tuple[int, int, int]:
    """Returns the size of XLA's function table and its major and minor version; zeros before XLA asked."""
    size = ctypes.c_int64.from_address(address).value
    version = (ctypes.c_int32 * 2).from_address(address + 8)
    return size, version[0], version[1]


def _describe(address: int) -> str:
    size, major, minor = _seen(address)
    return f"XLA's foreign-function interface is version {major}.{minor}, its function table has {size} bytes"


def _check(address: int) -> None:
    size, major, _ = _seen(address)
    if major != abi.API_MAJOR or size < abi.API_MIN_SIZE:
        raise BackendError(
            f"needs XLA's foreign-function interface {abi.API_MAJOR}.x with at least {abi.API_MIN_SIZE} bytes",
            notes=(_describe(address),),
            help="use a jaxlib version that this package supports",
        )
