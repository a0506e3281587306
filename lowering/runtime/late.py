"""Failures that are reported later: those of programs of several devices, whose calls go on (`faults`)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from lowering.tables import FIELD, LATE
from qdtrace.errors import QdError
from qdtrace.failures import with_others
from qdtrace.fault_texts import fault_in

if TYPE_CHECKING:
    from collections.abc import Mapping


class _List(NamedTuple):
    """The list of failures of one launcher."""

    head: memoryview
    take: ctypes._CFunctionType  # pyright: ignore[reportPrivateUsage]
    drop: ctypes._CFunctionType  # pyright: ignore[reportPrivateUsage]


_lists: dict[int, _List] = {}


def know(launcher: Mapping[str, int]) -> None:
    """Adds the list of a launcher, given by its addresses."""
    address = launcher["qd_late"]
    if address not in _lists:
        head = memoryview((ctypes.c_char * FIELD).from_address(address))
        take = ctypes.CFUNCTYPE(ctypes.c_void_p)(launcher["qd_take_late"])
        drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(launcher["qd_drop_late"])
        _lists[address] = _List(head, take, drop)


def memory() -> list[memoryview]:
    """Returns the heads of the lists, which are zero while nothing has failed."""
    return [one.head for one in _lists.values()]


def failure() -> QdError | None:
    """Returns the first error since the last call, with a note for each further failure, and empties the lists."""
    texts = [text for one in _lists.values() for text in _taken(one)]
    return with_others([fault_in(text) or QdError(text) for text in texts])


def _taken(one: _List) -> list[str]:
    """Takes the texts of a list, in the order in which they came."""
    texts: list[str] = []
    node = one.take()
    while node:
        texts.append(ctypes.string_at(node + LATE.size).decode(errors="replace"))
        following = ctypes.c_void_p.from_address(node + LATE.offsets["next"]).value
        one.drop(node)
        node = following
    return texts[::-1]
