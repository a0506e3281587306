"""The programs that a function was staged into: if one may fail, a call waits for its end.

Each compiled function has a list of programs. While a function is traced its list is open, and so are those of the
functions around it, as a call fails if a program of a function that it calls does.
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
        """True if a program runs in the interpreter, whose failures belong to the call."""
        self.suspects: dict[StagedProgram, None] = {}
        """Programs that are not known to be free of checks."""

    def add(self, program: StagedProgram) -> None:
        """Adds a program."""
        if program not in self.all:
            self.all[program] = None
            self.suspects[program] = None
            self.interpreted |= bool(program.options.debug)

    def may_fail(self) -> bool:
        """Returns whether a program has a check that no pass has proven."""
        for program in tuple(self.suspects):
            if program.may_fail:
                return True
            self.suspects.pop(program, None)  # another thread may have been here
        return False

    @contextmanager
    def open(self) -> Generator[None]:
        """Opens a block in which staged programs are added to this list."""
        token = _open.set((*_open.get(), self))
        try:
            yield
        finally:
            _open.reset(token)


def note_programs(programs: Iterable[StagedProgram]) -> None:
    """Adds programs to the lists of all functions being traced."""
    for owner in _open.get():
        for program in programs:
            owner.add(program)
