"""A driver's library of C functions, which give 0 or the code of an error."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_void_p
from typing import TYPE_CHECKING, Any

from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from lowering.gpu.driver import Functions


class Library:
    """What the drivers of all makers do with their libraries. Raises BackendError with the driver's words."""

    functions: Functions
    maker: str
    """In words: "NVIDIA"."""
    needs: str
    """What a library that lacks a function is too old for: "needs ..."."""
    _library: Any
    """As ctypes has loaded it."""

    def _function(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise BackendError(f"{self.needs}, got one without {name}") from None

    def _at(self, name: str) -> int:
        """Where a function is."""
        return ctypes.cast(self._function(name), c_void_p).value or 0

    def _elapsed(self, wait: str, measure: str, first: int, second: int) -> float | None:
        """Seconds between two events, by the functions of those names; None where the driver has no time of them."""
        milliseconds = c_float()
        if self._function(wait)(c_void_p(second)):
            return None
        code: int = self._function(measure)(byref(milliseconds), c_void_p(first), c_void_p(second))
        return None if code else milliseconds.value * 1e-3

    def _call(self, name: str, *arguments: object, log: ctypes.Array[ctypes.c_char] | None = None) -> None:
        """Calls a function, which may leave words in `log` when it fails."""
        code: int = self._function(name)(*arguments)
        if code:
            error = c_char_p()
            self._function(self.functions.error_name)(c_int(code), byref(error))
            words = (error.value or b"an unknown error").decode()
            notes = (log.value.decode(errors="replace").strip(),) if log is not None and log.value else ()
            raise BackendError(f"{self.maker}'s driver: {name} failed: {words}", notes=notes)
