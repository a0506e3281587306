"""Which programs a function was staged into: what runs may fail, and then a call waits for its end.

A list of programs is kept for each compiled function. While a function is traced its list is open, and so are those of
the functions around it: a call fails where a program of a function that it calls does.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from qdtrace.compose.staged_program import StagedProgram

_open: ContextVar[tuple[Programs, ...]] = ContextVar("qdtrace_staged", default=())


class Programs:
    """The programs of one compiled function, over all its traces."""

    def __init__(self) -> None:
        self.all: dict[StagedProgram, None] = {}
        self.interpreted = False
        """A program runs in the interpreter, whose failures belong to the call."""
        self.suspects: dict[StagedProgram, None] = {}
        """Those that may fail, as far as is known."""

    def add(self, program: StagedProgram) -> None:
        """Takes note of a program."""
        if program not in self.all:
            self.all[program] = None
            self.suspects[program] = None
            self.interpreted |= bool(program.options.debug)

    def may_fail(self) -> bool:
        """True when a program has a check that no pass has proven."""
        for program in tuple(self.suspects):
            if program.may_fail:
                return True
            self.suspects.pop(program, None)  # another thread may have been here
        return False

    @contextmanager
    def open(self) -> Generator[None]:
        """Programs that are staged inside belong to the function."""
        token = _open.set((*_open.get(), self))
        try:
            yield
        finally:
            _open.reset(token)


def note_programs(programs: Iterable[StagedProgram]) -> None:
    """Says that the functions being traced run these programs."""
    for owner in _open.get():
        for program in programs:
            owner.add(program)
