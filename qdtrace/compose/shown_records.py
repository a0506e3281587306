"""Prints of a direct call: its compiled function gives the records beside its results, and they are shown.

A callback of JAX could show them, and does so under `jax.jit` and in loops around tasks. But a function with a callback
is called more slowly, through Python and another thread. So a direct call reads the records itself.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.compose.record_thread import show_later, waits
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from jax import Array

    Shows = tuple[tuple[Callable[..., None], int], ...]


class Left(NamedTuple):
    """Records that a call leaves to be shown, or tracers of them."""

    show: Callable[..., None]
    """Function that shows the records, given the content of the memory."""
    memory: Sequence[Array]
    """The count and the ring of words of each task that tells."""

    def by_jax(self) -> None:
        """Stages a callback of JAX that shows the records after the call."""
        any_told = reduce(jax.lax.max, self.memory[::2]) > 0
        jax.lax.cond(any_told, lambda: jax.debug.callback(self.show, *self.memory), lambda: None)

    def now(self) -> None:
        """Shows the records: at once if the call ran on the CPU, else from a thread that waits for the device."""
        memory, first = self.memory, self.memory[0]
        if any(isinstance(x, Tracer) for x in memory):
            self.by_jax()
            return
        if not first.is_fully_addressable:  # each process has them
            memory = [x.addressable_data(0) for x in memory] if jax.process_index() == 0 else []
        look = partial(_look, self.show, memory)
        if not is_here(first):
            show_later(look)
        else:
            look()


class Told:
    """Results of a function, and the records that its programs leave to be shown."""

    __slots__ = ("memory", "results", "shows")

    def __init__(self, results: object, memory: Sequence[Array], shows: Shows) -> None:
        self.results = results
        self.memory = memory
        """Counts and rings of words of all tasks that tell, program by program."""
        self.shows = shows
        """The function that shows the records of each program, and the number of its arrays in `memory`."""

    def whole(self) -> object:
        """Shows the records and returns the results."""
        at = 0
        for show, length in self.shows:
            Left(show, self.memory[at : at + length]).now()
            at += length
        return self.results


def with_left(results: object, left: Sequence[Left]) -> object:
    """Returns the results of a function with the records that its programs leave; unchanged if there are none."""
    memory = tuple(x for one in left for x in one.memory)
    return Told(results, memory, tuple((one.show, len(one.memory)) for one in left)) if left else results


def shown(told: Told) -> object:
    """Shows the records of a function and returns its results; quick if nothing was told."""
    for count in told.memory[::2]:
        if isinstance(count, Tracer) or not count.is_fully_addressable or not is_here(count) or np.asarray(count):
            return told.whole()
    return told.results


def is_here(array: Any) -> bool:
    """Returns whether an array can be read now: it is computed, or on the CPU, which a direct call may wait for."""
    return (array.is_ready() and not waits()) or compat.is_on_host(array)


def _look(show: Callable[..., None], memory: Sequence[Array]) -> None:
    """Waits for the counts, and shows the records if there are any."""
    if any(map(np.asarray, memory[::2])):
        show(*memory)


jax.tree_util.register_pytree_node(
    Told, lambda told: ((told.results, told.memory), told.shows), lambda shows, children: Told(*children, shows)
)
