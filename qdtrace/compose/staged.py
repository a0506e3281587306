"""The programs that a function was staged into: if one may fail, a call waits for its end.

Each compiled function has a list of programs. While a function is traced its list is open, and so are those of the
functions around it, as a call fails if a program of a function that it calls does. What is told by the elements of
arguments (`races_of_arguments`) is noted with the number of the argument in the innermost list.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from qdtrace.compose.races_of_arguments import Doubt
    from qdtrace.compose.staged_program import StagedProgram
    from qdtrace.ir.program import Var

_open: ContextVar[tuple[Programs, ...]] = ContextVar("qdtrace_staged", default=())
_arguments: ContextVar[Sequence[object]] = ContextVar("qdtrace_arguments", default=())
"""Leaves of the arguments of the innermost function that is traced."""


class Programs:
    """The programs of one compiled function, over all its traces."""

    def __init__(self, *, array_tasks: bool = False) -> None:
        self.all: dict[StagedProgram, None] = {}
        self.interpreted = False
        """True if a program runs in the interpreter, whose failures belong to the call."""
        self.suspects: dict[StagedProgram, None] = {}
        """Programs that are not known to be free of checks."""
        self._fails = False
        """True once one was found that is not: each call asks, and the answer takes a walk over all of it."""
        self.doubts: list[Doubt] = []
        """Doubts that no call has decided yet."""
        self.array_tasks = array_tasks
        """True if array code between the function's loops is to become tasks."""

    def add(self, program: StagedProgram) -> None:
        """Adds a program."""
        if program not in self.all:
            self.all[program] = None
            self.suspects[program] = None
            self.interpreted |= bool(program.options.debug)

    def may_fail(self) -> bool:
        """Returns whether a program has a check that no pass has proven."""
        if self._fails:
            return True
        for program in tuple(self.suspects):
            if program.may_fail:
                self._fails = True
                return True
            self.suspects.pop(program, None)  # another thread may have been here
        return False

    def settle(self, arguments: object) -> None:
        """Tells the doubts that the arguments of a call decide."""
        leaves = jax.tree.leaves(arguments)
        self.doubts = [left for doubt in self.doubts if (left := doubt.settle(leaves)) is not None]

    @contextmanager
    def open(self, arguments: Sequence[object] = ()) -> Generator[None]:
        """Opens a block in which staged programs are added to this list; `arguments` are leaves of those traced."""
        token, given = _open.set((*_open.get(), self)), _arguments.set(arguments)
        try:
            yield
        finally:
            _open.reset(token)
            _arguments.reset(given)


def note_programs(programs: Iterable[StagedProgram]) -> None:
    """Adds programs to the lists of all functions being traced."""
    for owner in _open.get():
        for program in programs:
            owner.add(program)


def note_called(function: Programs) -> None:
    """Adds the programs of a function that is called, and what is doubted of its gradients, to those being traced."""
    note_programs(function.all)
    _note_kept(function.doubts)


def note_doubt(values: Mapping[Var, object], doubt: Doubt) -> None:
    """Leaves a doubt about arguments of the innermost function to its calls; about other values nothing is told."""
    numbers = {v: n for v, value in values.items() for n, argument in enumerate(_arguments.get()) if argument is value}
    if doubt.kept is not None:
        _note_kept([doubt])
    elif numbers:
        _open.get()[-1].doubts.append(doubt._replace(numbers=numbers))


def _note_kept(doubts: Iterable[Doubt]) -> None:
    """Adds doubts about gradients to the lists of all functions being traced, whose gradients they are, too."""
    kept = [doubt for doubt in doubts if doubt.kept is not None]
    for owner in _open.get() if kept else ():
        known = {id(doubt) for doubt in owner.doubts}
        owner.doubts += [doubt for doubt in kept if id(doubt) not in known]
