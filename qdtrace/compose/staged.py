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
        self.unseen: list[StagedProgram] = []
        """Those that `may_fail` has not looked at."""
        self.failing = False
        """One of those it has looked at may fail."""

    def add(self, program: StagedProgram) -> None:
        """Takes note of a program."""
        if program not in self.all:
            self.all[program] = None
            self.unseen.append(program)
            self.interpreted |= bool(program.options.debug)

    def may_fail(self) -> bool:
        """True when a program has a check that no pass has proven."""
        while self.unseen and not self.failing:
            self.failing = self.unseen.pop().may_fail
        return self.failing

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
