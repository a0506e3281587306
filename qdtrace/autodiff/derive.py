"""Programs of derivatives of any order: forward mode upon forward or reverse mode."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.accumulations import with_sums_only
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.forward import forward
from qdtrace.autodiff.reverse import reverse
from qdtrace.ir.custom import without_rules
from qdtrace.ir.program import Program, Stage, Var, literal

if TYPE_CHECKING:
    from collections.abc import Sequence


def derive(
    program: Program, directions: Sequence[Sequence[bool]], out: Sequence[bool], wrt: Sequence[bool] | None
) -> Program:
    """The derivative of a program along directions, of its results `out` or of the adjoints of its parameters `wrt`.

    Masks choose parameters, and results in `out`. Parameters are those of the program, adjoints of results in `out`
    when `wrt` is given, then parts of each direction.
    """
    params = program.params
    masks = [*directions, *([] if wrt is None else [wrt])]
    inputs = [v for k, v in enumerate(params) if any(mask[k] for mask in masks)]
    program = with_sums_only(program, active_variables(program, inputs, program.results), len(masks))
    chosen = [v for v, wanted in zip(program.results, out, strict=True) if wanted]
    if wrt is None:
        given: tuple[Var, ...] = tuple(chosen)
        made = replace(program, results=given)
    else:
        made = reverse(program, [v for v, wanted in zip(params, wrt, strict=True) if wanted], chosen)
    for mask in directions:
        made = _along(made, [v for v, wanted in zip(params, mask, strict=True) if wanted])
    kind = "d" if wrt is None else "r"
    made = without_rules(made)
    return replace(made, name=f"{program.name}_{kind}{len(directions)}", stage=Stage.TRACED)


def _along(program: Program, inputs: Sequence[Var]) -> Program:
    """Forward mode, with zeros for results that do not depend on the inputs."""
    made, tangents = forward(program, inputs)
    results: list[Var] = []
    zeros: list[Var] = []
    for ref in program.results:
        if ref in tangents:
            results.append(tangents[ref])
        else:
            zeros.append(Var(ref.type, f"{ref.hint}_t"))
            results.append(zeros[-1])
    initial = {**made.initial, **{v: literal(0, v.dtype) for v in zeros}}
    return replace(made, buffers=(*made.buffers, *zeros), results=tuple(results), initial=initial)
