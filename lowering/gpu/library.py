"""A driver's library of C functions, which return 0 or an error code."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_void_p
from typing import TYPE_CHECKING, Any

from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from lowering.gpu.driver import Functions


class Library:
    """Calls into the library of one maker's driver. Raises BackendError with the driver's words."""

    functions: Functions
    maker: str
    """Name of the maker in errors: "NVIDIA"."""
    needs: str
    """Start of the error if the library is too old to have a function: "needs ..."."""
    _library: Any
    """The library as ctypes loaded it."""

    def _function(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise BackendError(f"{self.needs}, got one without {name}") from None

    def _at(self, name: str) -> int:
        """Returns the address of a function."""
        return ctypes.cast(self._function(name), c_void_p).value or 0

    def _elapsed(self, wait: str, measure: str, first: int, second: int) -> float | None:
        """Returns the seconds between two events, by driver functions `wait` and `measure`, or None if one fails."""
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
