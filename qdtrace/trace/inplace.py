"""Finds the statement of an in-place operator: `b[k] += v`, whose result goes back to where it came from.

`t += v; b[k] = t` runs the same operators with the same values, but the user has written a store. Only the code
tells: the result of `b[k] += v` is consumed by the store instruction right behind the operator, in the same frame.
Knows the instruction sets of CPython 3.11 to 3.14; of a caller that is not such code nothing is said.
"""

from __future__ import annotations

import dis
import functools
import sys
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from types import CodeType, FrameType

_BETWEEN = {dis.opmap[name] for name in ("CACHE", "SWAP", "NOP", "EXTENDED_ARG")}
_PLACES = {dis.opmap[name] for name in ("STORE_SUBSCR", "STORE_SLICE", "STORE_ATTR") if name in dis.opmap}


@frozen
class Statement:
    """An in-place operation on a place: the frame that runs it, and the offset of its store."""

    frame: int
    code: CodeType
    store: int

    def is_storing(self) -> bool:
        """Returns True while its store runs, also when that calls a `__setitem__` or a property of the user's."""
        frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        while frame is not None:
            if id(frame) == self.frame and frame.f_code is self.code:
                return frame.f_lasti == self.store
            frame = frame.f_back
        return False


def running_statement(frame: FrameType) -> Statement | None:
    """Returns the statement whose operator the frame is at, when it is of the form `place += value`."""
    store = _store_behind(frame.f_code, frame.f_lasti)
    return None if store is None else Statement(id(frame), frame.f_code, store)


@functools.lru_cache(maxsize=1 << 12)
def _store_behind(code: CodeType, at: int) -> int | None:
    instructions = code.co_code
    if instructions[at] != dis.opmap["BINARY_OP"]:
        return None
    at += 2
    while instructions[at] in _BETWEEN:
        at += 2
    return at if instructions[at] in _PLACES else None
