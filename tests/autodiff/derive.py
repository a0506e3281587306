"""Derivatives of graphs that nothing was traced for: tangents by `tests/autodiff/forward`, transposed as all are."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from qdtrace.autodiff import transpose
from qdtrace.autodiff.atomics import check_atomics
from qdtrace.autodiff.extremes import with_extremes
from qdtrace.autodiff.loops.policy import Stacks
from qdtrace.autodiff.residuals import Moment
from qdtrace.autodiff.split import with_split_tasks
from qdtrace.ir.custom import without_rules
from qdtrace.ir.program import Program, Stage, Var, literal
from tests.autodiff.forward import forward

Mask = Sequence[bool]


def derive(
    program: Program,
    directions: Sequence[Mask],
    out: Mask,
    wrt: Mask | None,
    residuals: Sequence[Moment] = (),
    stacks: Stacks | None = None,
) -> Program:
    """The derivative of a program along directions, of its results `out` or of the adjoints of its parameters `wrt`.

    Parameters are those of the program, the residuals, adjoints of results in `out` when `wrt` is given, then parts of
    each direction.
    """
    params, own = program.params, len(program.params)
    made = replace(program, results=_chosen(program.results, out))
    for mask in [*([] if wrt is None else [wrt]), *directions]:
        made = _along(made, _chosen(params, mask))
    linear = made.params[own : own + sum(directions[0] if wrt is None else wrt)]
    if wrt is not None or residuals:
        made = with_split_tasks(made, linear)
    if wrt is not None:
        made = transpose.transpose(made, linear, stacks or Stacks(), residuals)
    elif residuals:
        made = transpose.tangents_given(made, linear, residuals)
    if wrt is None:
        check_atomics(made)
    return _finished(made, f"{'d' if wrt is None else 'r'}{len(directions)}")


def with_residuals(program: Program, wrt: Mask, out: Mask, residuals: Sequence[Moment]) -> Program:
    """The program with the residuals as further results."""
    made, linear = with_tangents(program, wrt, out)
    return transpose.primal_keeping(replace(made, results=program.results), linear, residuals)


def with_tangents(program: Program, wrt: Mask, out: Mask) -> tuple[Program, Sequence[Var]]:
    """The program with the tangents of its results behind these, and its linear parameters."""
    made = _along(replace(program, results=_chosen(program.results, out)), _chosen(program.params, wrt))
    both = replace(made, results=(*program.results, *made.results))
    linear = made.params[len(program.params) :]
    return with_split_tasks(both, linear), linear


def _chosen(variables: Iterable[Var], mask: Mask) -> tuple[Var, ...]:
    return tuple(v for v, wanted in zip(variables, mask, strict=True) if wanted)


def _finished(program: Program, suffix: str) -> Program:
    made = without_rules(program)
    return replace(made, name=f"{program.name}_{suffix}", stage=Stage.TRACED)


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
    return with_extremes(replace(made, buffers=(*made.buffers, *zeros), results=tuple(results), initial=initial))
