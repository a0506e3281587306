"""Failed checks of GPUs: words of the host's memory that kernels store to.

A program whose checks may fail has a word a task. Nobody waits for it: the words are looked at when the host is in our
code anyway, and then belong to a call that began before.
"""

from __future__ import annotations

import ctypes
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lowering.tables import FAILURE_BITS, FIELD
from qdtrace.errors import QdError
from qdtrace.failures import with_others
from qdtrace.ir.faults import fault_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 512
"""Words that are asked for at a time: a page."""


@dataclass
class _Block:
    """Words that lie together."""

    memory: np.ndarray[Any, np.dtype[np.uint64]]
    used: int = 0
    words: np.ndarray[Any, np.dtype[np.uint64]] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Those that programs have."""
    owners: dict[int, tuple[int, tuple[str, ...]]] = field(default_factory=dict[int, tuple[int, tuple[str, ...]]])
    """For the number of a word: where those of its program end, and the texts of its checks."""

    def take(self, faults: Sequence[tuple[str, ...]]) -> int:
        first, self.used = self.used, self.used + len(faults)
        self.owners |= {first + k: (self.used, texts) for k, texts in enumerate(faults)}
        self.words = self.memory[: self.used]
        return self.memory[first:].ctypes.data

    def failures(self) -> list[QdError]:
        """The first failure of each program that has one; what fails in its later tasks may fail because of it."""
        errors: list[QdError] = []
        end = 0
        for k in np.flatnonzero(self.words).tolist():
            word, self.words[k] = int(self.words[k]), 0
            if k >= end and word:
                end, texts = self.owners[k]
                errors.append(error_of(word, texts))
        return errors


class Words:
    """The words of all programs that use one driver."""

    def __init__(self, allocate: Callable[[int], int]) -> None:
        """`allocate(bytes)` gives the address of memory that is zero and that devices reach too."""
        self._allocate = allocate
        self._lock = threading.Lock()
        self._blocks: list[_Block] = []

    def take(self, faults: Sequence[tuple[str, ...]]) -> int:
        """The address of a word for each task of a program, given by the texts of its checks."""
        with self._lock:
            if not self._blocks or self._blocks[-1].used + len(faults) > len(self._blocks[-1].memory):
                size = max(len(faults), BLOCK)
                memory = (ctypes.c_uint64 * size).from_address(self._allocate(size * FIELD))
                self._blocks.append(_Block(np.ctypeslib.as_array(memory)))
            return self._blocks[-1].take(faults)

    def failure(self) -> QdError | None:
        """The error of a check that failed since the last time, with a note for each further program that failed; the
        words are cleared."""
        with self._lock:
            errors = [error for block in self._blocks for error in block.failures()]
        return with_others(errors)

    def memory(self) -> list[memoryview]:
        """The words that programs have: zero while nothing has failed."""
        return [block.words.data for block in self._blocks]


def error_of(word: int, texts: Sequence[str]) -> QdError:
    """What a word that is not zero says: the number of a check, counted from 1, above the value that it refused."""
    number, value = word >> FAILURE_BITS, word & ((1 << FAILURE_BITS) - 1)
    value -= value >> (FAILURE_BITS - 1) << FAILURE_BITS
    text = re.sub("%(%|ll[du])", lambda hole: "%" if hole[1] == "%" else str(value), texts[number - 1])
    error = fault_in(text) or QdError(text)
    most = (1 << FAILURE_BITS - 1) - 1
    if value in (most, ~most):
        error.add_note(f"a report has {FAILURE_BITS} bits: the index is this number, or further away from 0")
    return error
