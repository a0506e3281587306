"""Operands of a call that XLA would copy before the call may write them, as the caller needs them afterwards.

They are the arguments of the compiled function that are not donated. Only where a call is lowered is that known: the
function may be called by others, in whose loops its arguments are values that nobody needs twice. So JAX keeps no
lowering of a call, and `qd.jit` is inlined into what `jax.jit` traces around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax.extend.mlir import ir

from qdtrace.ir.memory import written
from qdtrace.ir.program import ref_type
from qdtrace.ir.walk import walk_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Program

WORTH = 1 << 16
"""Bytes of the smallest array for which a program is changed: less is copied at once."""
_DONATED = ("tf.aliasing_output", "jax.buffer_donor")


def needed_operands(values: Sequence[object], program: Program) -> tuple[int, ...]:
    """Returns the numbers of large operands that a program writes and the function's caller needs; `values` are the
    operands in MLIR."""
    large = [k for k, v in enumerate(program.params) if ref_type(v).nbytes >= WORTH and _is_callers(values[k])]
    stored = set(written(walk_program(program))) if large else ()
    return tuple(k for k in large if program.params[k] in stored)


def _is_callers(value: object) -> bool:
    """Returns whether a value is an argument of the compiled function that is not donated."""
    if not isinstance(value, ir.BlockArgument):
        return False
    function = value.owner.owner
    attributes = function.attributes
    if "sym_name" not in attributes or ir.StringAttr(attributes["sym_name"]).value != "main":
        return False
    if "arg_attrs" not in attributes:
        return True
    given = ir.DictAttr(ir.ArrayAttr(attributes["arg_attrs"])[value.arg_number])
    return not any(name in given for name in _DONATED)


def keeping(program: Program, needed: Sequence[int]) -> Program:
    """Returns an optimised program that stores elsewhere what would overwrite needed operands, where that can be."""
    if not needed:
        return program
    # only here: a process with a warm cache does without passes
    from qdtrace.passes.own_results import OwnResults

    return OwnResults(tuple([program.params[k] for k in needed]))(program)
