"""Records of `tell`: memory for them among the results of a program, and what prints them when it has run."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np

from qdtrace.compose.items import has_tasks
from qdtrace.compose.jaxprs import largest_size
from qdtrace.compose.segment import with_token
from qdtrace.compose.shown_records import Left
from qdtrace.errors import UnsupportedError, warn
from qdtrace.ir.tells import HEAD, given_memory, sites, tells_in
from qdtrace.trace import compat
from qdtrace.trace.importer.tells import tells
from qdtrace.trace.markers import REGIONS, for_p, while_p
from qdtrace.trace.tree import inner_equations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jax import Array

    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.ir.tells import Records
    from qdtrace.trace.compat import JaxprEqn


class Telling:
    """The records of a program that prints or calls back, as its last results; false if it has none."""

    def __init__(self, program: Program, options: Options) -> None:
        found = tells_in(program)
        needs = next((e for e in found if sites[e.params["site"]].needs_debug), None)
        if needs is not None and not options.debug:
            raise UnsupportedError(
                "jax.debug.breakpoint needs a program that runs step by step, got machine code",
                loc=needs.loc,
                help='run it with `qd.jit(f, options={"debug": True})`, on small inputs',
            )
        self.name = program.name
        self.lines = options.print_lines
        self.first = len(program.results)
        self.records: list[Records] = []
        self.program = program
        """The program with memory for records; one that runs in the interpreter tells at once, and says that it ran."""
        self.at_once = bool(found and options.debug)
        if self.at_once:
            self.program = with_token(program, alone=not program.results)
        elif found:
            self.program, self.records = given_memory(program, options.print_lines)

    def __bool__(self) -> bool:
        return self.at_once or bool(self.records)

    def told(self, outs: Sequence[Array]) -> Left | None:
        """Returns the records that are shown after a call with these results has run, or None if there are none."""
        if self.at_once:
            jax.debug.callback(lambda _: None, outs[self.first])  # keeps JAX from dropping the call
        if not self.records:
            return None
        memory = outs[self.first : self.first + 2 * len(self.records)]
        return Left(partial(_show, tuple(self.records), self.lines, self.name), memory)


def needs_jax(items: Iterable[JaxprEqn], small: int) -> bool:
    """Returns whether something between the tasks of these items shows its output by JAX alone: a loop around tasks, or
    an equation with effects that is not staged into a task. Then the tasks use JAX too, which orders the outputs."""
    for item in items:
        if item.primitive not in REGIONS:
            is_own = all(isinstance(e, compat.QdEffect) for e in item.effects)
            if not is_own and not (tells(item) and largest_size(item) <= small):
                return True
        elif item.primitive is while_p and has_tasks(item):
            if any(map(tells, compat.all_eqns([item]))):
                return True
        elif item.primitive is not for_p and needs_jax(inner_equations(item), small):
            return True
    return False


def _show(records: Sequence[Records], lines: int, name: str, *memory: Array) -> None:
    """Runs the sites of all records in order of tasks, then of iterations, then inside of an iteration."""
    left, missed = lines, 0
    calls_left = False
    for record, told, ring in zip(records, memory[::2], memory[1::2], strict=True):
        count, words = int(told), np.asarray(ring)
        kept = words[: min(count, lines)]
        index = np.ascontiguousarray(kept[:, 1:HEAD]).view(np.int64)[:, 0]
        shown = np.argsort(index, kind="stable")[:left]
        for row in kept[shown]:
            sites[record.sites[row[0]]].run_record(row[HEAD:])
        left -= len(shown)
        missed += count - len(shown)
        calls_left |= count > len(shown) and not all(sites[k].is_print for k in record.sites)
    if calls_left:
        left_out = f"{missed} records of `{name}` were left out, callbacks among them"
        warn(f"{left_out}\nhelp: raise the option print_lines", None)
    elif missed:
        sys.stdout.write(f"{missed} more lines of `{name}` were left out (option print_lines={lines})\n")
