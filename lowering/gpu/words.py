"""Failed checks of GPUs: words of the host's memory that kernels store to.

A program whose checks may fail has a word per task. Nobody waits for it: the host reads the words whenever it runs our
code anyway, so a failure that it finds belongs to an earlier call.
"""

from __future__ import annotations

import ctypes
import re
import threading
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from lowering.tables import FAILURE_BITS, FIELD
from qdtrace.errors import QdError
from qdtrace.failures import with_others
from qdtrace.fault_texts import fault_in
from qdtrace.frozen import mutable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 512
"""Words that are allocated at a time: a page."""


@mutable
class _Block:
    """Words in one allocation."""

    memory: np.ndarray[Any, np.dtype[np.uint64]]
    used: int = 0
    words: np.ndarray[Any, np.dtype[np.uint64]] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The words that programs own, at the beginning of `memory`."""
    owners: dict[int, tuple[int, tuple[str, ...]]] = field(default_factory=dict[int, tuple[int, tuple[str, ...]]])
    """Maps the number of a word to the end of its program's words and the texts of its task's checks."""

    def take(self, faults: Sequence[tuple[str, ...]]) -> int:
        first, self.used = self.used, self.used + len(faults)
        self.owners |= {first + k: (self.used, texts) for k, texts in enumerate(faults)}
        self.words = self.memory[: self.used]
        return self.memory[first:].ctypes.data

    def failures(self) -> list[QdError]:
        """Returns the first failure of each program and clears all; failures of its later tasks may follow from it."""
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
        """`allocate(bytes)` returns the address of zeroed memory that devices reach too."""
        self._allocate = allocate
        self._lock = threading.Lock()
        self._blocks: list[_Block] = []

    def take(self, faults: Sequence[tuple[str, ...]]) -> int:
        """Returns the address of new words, one for each task of a program; `faults` has the texts of its checks."""
        with self._lock:
            if not self._blocks or self._blocks[-1].used + len(faults) > len(self._blocks[-1].memory):
                size = max(len(faults), BLOCK)
                memory = (ctypes.c_uint64 * size).from_address(self._allocate(size * FIELD))
                self._blocks.append(_Block(np.ctypeslib.as_array(memory)))
            return self._blocks[-1].take(faults)

    def failure(self) -> QdError | None:
        """Returns the error of a check that failed since the last call, with a note for each further program that
        failed, and clears the words."""
        with self._lock:
            errors = [error for block in self._blocks for error in block.failures()]
        return with_others(errors)

    def memory(self) -> list[memoryview]:
        """Returns the words of all programs; they are zero while no check has failed."""
        return [block.words.data for block in self._blocks]


def error_of(word: int, texts: Sequence[str]) -> QdError:
    """Decodes a nonzero word: the number of a check, counted from 1, above the value that the check refused."""
    number, value = word >> FAILURE_BITS, word & ((1 << FAILURE_BITS) - 1)
    value -= value >> (FAILURE_BITS - 1) << FAILURE_BITS
    text = re.sub("%(%|ll[du])", lambda hole: "%" if hole[1] == "%" else str(value), texts[number - 1])
    error = fault_in(text) or QdError(text)
    most = (1 << FAILURE_BITS - 1) - 1
    if value in (most, ~most):
        error.add_note(f"a report has {FAILURE_BITS} bits: the index is this number, or further away from 0")
    return error
