"""The JAX primitive that runs one program: `call(params...) -> results`.

It is pure: operands are the contents of the program's parameters, results those of its result references. The
compiler runs when the primitive is lowered, so `jax.jit(...).lower(...)` and cross compilation need no device.
`derivative` has its derivatives, and the rules of `derivative_p`.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from jax.interpreters import batching, mlir

from qdtrace.backend import backend
from qdtrace.compose.debug import run_checked
from qdtrace.compose.direct import leading, runs_by
from qdtrace.compose.garbage import paused_garbage_collection
from qdtrace.compose.needed_operands import needed_operands
from qdtrace.compose.several_devices import lowered
from qdtrace.compose.stack_chunk import in_one_chunk
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.counters import count, timed
from qdtrace.errors import BackendError
from qdtrace.frozen import frozen
from qdtrace.ir.program import ref_type
from qdtrace.trace import compat
from qdtrace.trace.compat import Primitive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array
    from jax.core import ShapedArray
    from jax.typing import ArrayLike

    from qdtrace.backend import Compiled


@frozen
class Origin:
    """The program that another one was made of, by whose derivatives it is differentiated."""

    base: StagedProgram
    """The program that the user wrote."""
    numbers: tuple[int | None, ...]
    """The number of each result among those of `base`, or None for one that only derivatives of `base` take."""
    before: tuple[bool, ...] | None = None
    """Parameters that a derivative was asked for before: see `derivative.Derivative`."""


call_p, derivative_p = Primitive("qd_call"), Primitive("qd_derivative")
call_p.multiple_results = derivative_p.multiple_results = True


def call(staged: StagedProgram, operands: Sequence[ArrayLike], origin: Origin | None = None) -> list[Array]:
    """Runs the program on arrays (or tracers) and returns the contents of its results in order."""
    return call_p.bind(*compat.with_common_axes(operands), staged=staged, origin=origin)


_compiled: dict[tuple[str, StagedProgram], Compiled] = {}
_lock = threading.Lock()


@in_one_chunk
def compiled_for(staged: StagedProgram, name: str) -> Compiled:
    """Returns the compiled program of a backend; it is compiled once per content and options."""
    key = (name, staged)
    with _lock, paused_garbage_collection(), staged.depth_told(), staged.progress("optimising"):
        if key not in _compiled:
            made_by = backend(name)
            if staged.options.codegen == "triton" and "triton" not in made_by.dialects:
                wanted = f"needs codegen 'auto' or 'llvm' on {name}, got 'triton'"
                raise BackendError(f"{staged.program.name}: {wanted}", help="leave codegen out")
            program = staged.optimised_for(made_by.machine)
            count(programs=1)
            with timed("compiling"):
                _compiled[key] = made_by.compile(program, staged.options)
        return _compiled[key]


def _abstract_eval(*operands: ShapedArray, staged: StagedProgram, origin: Origin | None) -> list[ShapedArray]:
    return [compat.array_type(ref_type(v).shape, v.dtype.numpy, operands) for v in staged.program.results]


def _run_on(name: str) -> Callable[..., object]:
    def lower(ctx: mlir.LoweringRuleContext, *values: object, staged: StagedProgram, origin: Origin | None) -> object:
        shared = compat.device_count(ctx) > 1
        carried = "export" if compat.is_export(ctx) else "executable" if staged.options.portable else None

        def run(*operands: Array) -> list[object]:
            if staged.options.debug:
                return run_checked(staged.on(name), operands, shared=shared)
            needed = () if shared else needed_operands(call_p, staged)
            return list(compiled_for(staged, name).call(*operands, shared=shared, carried=carried, needed=needed))

        whole = mlir.lower_fun(run, multiple_results=True)
        return lowered(ctx, values, staged, name, call, whole) if shared else whole(ctx, *values)

    return lower


def _batch(
    operands: Sequence[Array], dims: Sequence[int | None], *, staged: StagedProgram, origin: Origin | None
) -> tuple[list[Array], list[int | None]]:
    """Batches a call by one more axis of every task."""
    moved, mask, size = leading(operands, dims)
    made, given = staged.batched(mask, size)
    if origin is not None:
        origin = replace(origin, base=origin.base.batched(mask, size)[0])
    return call(made, moved, origin), [0 if wanted else None for wanted in given]


call_p.def_abstract_eval(_abstract_eval)
if compat.weak_types is not None:
    compat.weak_types.add(StagedProgram)
runs_by(call_p, "staged", _run_on, origin=None)
batching.primitive_batchers[call_p] = _batch
