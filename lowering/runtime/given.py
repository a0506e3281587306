"""Programs that run in memory of the caller: one compiled program for arrays of any length.

XLA compiles a call for its shapes. Here it sees one operand, a list of addresses, so it compiles one call for all
lengths. The program is compiled twice up to its code, with two choices in place of each open length: where the code is
the same, no length is in it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.legalize.share_code import share_code
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowering.legalize.share_code import SharedCode
    from lowering.runtime.compile import LinkedTask
    from lowering.runtime.layout import Layout
    from lowering.runtime.native import NativeBackend
    from lowering.simd.emit import TaskCode
    from qdtrace.config import Options
    from qdtrace.ir.program import Program, Task, Var


_spare = np.empty(1, np.int64)  # memory for places that no task uses
SPARE = _spare.__array_interface__["data"][0]
"""Its address."""


@frozen
class GivenProgram:
    """A compiled program that runs in memory of the caller."""

    target: str
    """Name of the foreign-function target."""
    memory: tuple[tuple[Var, Var | None], ...]
    """The references whose addresses a call takes, in order; behind each the parameter whose content it begins with, if
    it is another one."""
    slots: int
    """Number of addresses that the handler reads: those, and places that no task of this program uses."""

    def run(self, addresses: Sequence[int]) -> None:
        """Runs the program in memory at these addresses, and returns at its end. Raises XLA's error if it fails."""
        further = [SPARE] * (self.slots - len(addresses))
        self._call(np.array([*addresses, *further], np.int64).view(np.int32)).block_until_ready()

    @functools.cached_property
    def _call(self) -> Callable[[np.ndarray], Any]:
        end = jax.ShapeDtypeStruct((1,), jnp.uint8)
        return jax.jit(jax.ffi.ffi_call(self.target, end))


def compile_given(
    backend: NativeBackend[LinkedTask],
    emit: Callable[[Task, Options], TaskCode],
    program: Program,
    other: Program,
    options: Options,
) -> GivenProgram | None:
    """Returns a compiled program, or None if its code depends on lengths, which `other` has other ones of."""
    shared, again = (share_code(_all_results(p)) for p in (program, other))
    if not _same_code(emit, shared, again, options):
        return None
    layout, pieces = backend.pieces(shared, options)
    name, _ = backend.linked(layout, pieces, options)
    return GivenProgram(name, _memory(layout), layout.slot_count)


def _memory(layout: Layout) -> tuple[tuple[Var, Var | None], ...]:
    params = layout.program.params
    before = {result: params[operand] for operand, result in layout.aliases.items()}
    return (*((v, None) for v in params), *((v, before.get(k)) for k, v in enumerate(layout.written)))


def _all_results(program: Program) -> Program:
    """Returns the program with a place of its own for each buffer, which the caller fills."""
    return replace(program, results=tuple(dict.fromkeys((*program.results, *program.buffers))), initial={})


def _same_code(
    emit: Callable[[Task, Options], TaskCode], shared: SharedCode, again: SharedCode, options: Options
) -> bool:
    tasks, others = shared.program.tasks, again.program.tasks
    contents = [[x.tobytes() for x in s.literals.values()] for s in (shared, again)]
    if len(tasks) != len(others) or contents[0] != contents[1] or shared.equal != again.equal:
        return False
    return all(_facts(a, emit(a, options)) == _facts(b, emit(b, options)) for a, b in zip(tasks, others, strict=True))


def _facts(task: Task, code: TaskCode) -> tuple[object, ...]:
    """Returns all of a task that its code and its record in the handler's table depend on."""
    copies = [(code.refs.index(p.ref), p.offset, p.nbytes, p.neutral) for p in code.copies.parts]
    return static_bounds(task), code.text, code.cost, code.lanes, code.slot_bytes, code.updates, code.pieces, copies
