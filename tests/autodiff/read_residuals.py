"""The residuals that are chosen for a graph, and those that its reverse reads."""

from dataclasses import replace

from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.extremes import has_extremes
from qdtrace.autodiff.loops.policy import Stacks
from qdtrace.autodiff.residual_choice import moments_read
from qdtrace.autodiff.residuals import Moment, moments_found
from qdtrace.autodiff.transpose import transpose
from qdtrace.ir.program import Program
from tests.autodiff.derive import Mask, with_tangents


def residuals_of(program: Program, wrt: Mask, out: Mask) -> tuple[Moment, ...]:
    """What the program may hand over to its derivatives."""
    made, linear = with_tangents(program, wrt, out)
    tangents = replace(made, results=made.results[len(program.results) :])
    return () if has_extremes(program) else moments_read(tangents, linear)


def residuals_read(program: Program, wrt: Mask, out: Mask) -> tuple[Moment, ...]:
    """Those of all contents of memory between tasks that the reverse reads if it is given all of them."""
    made, linear = with_tangents(program, wrt, out)
    tangents = replace(made, results=made.results[len(program.results) :])
    moments = moments_found(tangents, active_variables(tangents, linear, tangents.results))
    reverse = transpose(tangents, linear, Stacks(), moments)
    first = tangents.params.index(linear[0])
    given = reverse.params[first : first + len(moments)]
    read = {v for task in reverse.tasks for v in task.refs}
    return tuple(moment for moment, v in zip(moments, given, strict=True) if v in read)
