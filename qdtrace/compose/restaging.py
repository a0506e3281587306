"""Makes the `Source` of a staged program (the equations that derivatives start from), and programs of sources."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.compose.inlining import Inlining
from qdtrace.compose.jaxprs import is_literal
from qdtrace.compose.segment import BufferState, Constant, Operand, Step
from qdtrace.compose.source import Memory, Source, traced_value
from qdtrace.errors import GradientError
from qdtrace.ir.program import Var, literal
from qdtrace.ir.tells import without_tells
from qdtrace.trace import compat
from qdtrace.trace.markers import for_p

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array
    from jax.typing import ArrayLike

    from qdtrace.compose.source import Names
    from qdtrace.compose.stager import Stager
    from qdtrace.ir.program import Program
    from qdtrace.trace import jaxprs


def source_of(stager: Stager, program: Program) -> Source | None:
    """Returns the source of a program that a stager's open segment has become, or None if it has no steps."""
    results = program.results
    segment = stager.segment
    if not segment.steps:
        return None
    kind = type(stager)  # a source does not keep the stager, which has tracers
    another = functools.partial(kind, stager.name, stager.options, stager.rule_of, source_of, stager.array_tasks)
    stage = functools.partial(_program, another)
    params = tuple(v for v, _ in segment.operands)
    try:
        found = _stands_for(stager, results)
    except GradientError as error:
        return Source(stage, tuple(segment.steps), params, {}, {}, {}, (), (), unknown=error)
    values, constants, memory, names = found
    steps = tuple(segment.steps)
    source = Source(stage, steps, params, values, constants, memory, names, names, program.limits)
    return replace(source, has_array_code=stager.array_tasks is not None)


def _stands_for(
    stager: Stager, results: Sequence[Var]
) -> tuple[dict[jaxprs.Var, Var], dict[jaxprs.Var, ArrayLike], dict[jaxprs.Var, Memory], Names]:
    """Returns the meaning of free variables, as parameters, known values and memory, and the results' variables."""
    segment = stager.segment
    if segment.hoists_tracer:
        raise traced_value("a function")
    values: dict[jaxprs.Var, Var] = {}
    constants: dict[jaxprs.Var, ArrayLike] = {}
    memory: dict[jaxprs.Var, Memory] = {}
    names: dict[Var, jaxprs.Var] = {}
    given = {v for v, _ in segment.operands}
    made = dict.fromkeys(v for s in segment.steps for v in s.item.outvars)
    free = [v for s in segment.steps for v in (*s.item.invars, *s.conditions) if not is_literal(v)]
    for var in dict.fromkeys((*free, *made)):
        entry = stager.env.get(var)
        if isinstance(entry, BufferState):
            ref = segment.refs.get(entry)
            assert ref is not None
            assert ref not in names, "a buffer has one name"
            names[ref] = var
            if var in made:
                continue
            fill = segment.fills.get(ref, entry.fill) if ref not in given else None
            hint = entry.hint
            memory[var] = Memory(entry.shape, entry.dtype, hint, ref if ref in given else None, fill)
        elif var in made:
            continue
        elif var in segment.inputs:
            values[var] = segment.inputs[var]
        elif isinstance(entry, Constant) and not isinstance(entry.value, compat.Tracer):
            constants[var] = entry.value
        else:
            raise traced_value("a loop")
    for pending in segment.pending:
        names.update((pending.ref, v) for v in stager.env.names(pending) if not is_literal(v))
    contents = [x for m in memory.values() for x in (m.ref, m.fill) if isinstance(x, Var)]
    known = {*values.values(), *contents}
    if any(isinstance(value, compat.Tracer) and v not in known for v, value in segment.operands):
        raise traced_value("a function")
    for ref in results:
        # the integers that tell of checks and prints have no variable, and no derivative
        if ref.dtype.is_float and ref not in names:
            raise GradientError(f"the result `{ref.hint}` stands for no value of the function, so it has no derivative")
    return values, constants, memory, tuple(map(names.get, results))


def _reference(stager: Stager, var: jaxprs.Var) -> Var:
    entry = stager.env[var]
    assert not isinstance(entry, Constant)
    return stager.segment.ref(entry) if isinstance(entry, BufferState) else entry.ref


def _program(
    another: Callable[[], Stager], source: Source, results: Sequence[jaxprs.Var | None], likes: Sequence[Var]
) -> tuple[Program, list[Array]]:
    """Returns the program of values of a source, staged by another stager, and the values of further parameters."""
    stager = another()
    # a backward sweep would keep the overwritten content
    stager.in_place = False
    segment = stager.segment
    for var, ref in source.values.items():
        stager.env[var] = Operand(ref)
    for var, value in source.constants.items():
        stager.env[var] = Constant(value)
    states: dict[Memory, BufferState] = {}
    for var, content in source.memory.items():
        fill = Operand(content.fill) if isinstance(content.fill, Var) else content.fill
        state = states.setdefault(content, BufferState(content.shape, content.dtype, None, fill, content.hint))
        stager.env[var] = state
        if content.ref is not None:
            segment.refs[state] = content.ref
    steps: Sequence[Step] = source.steps
    if stager.array_tasks:
        inlining = Inlining()
        steps = [Step(i, tuple(inlining.named(s.conditions))) for s in steps for i in inlining.items([s.item])]
        results = [v if v is None else inlining.variable(v) for v in results]
        for var, value in inlining.constants.items():
            stager.env[var] = Constant(value)
    stager.note_uses([s.item for s in steps], [v for v in results if v is not None])
    for v in (v for s in steps for v in s.conditions):
        stager.last_use[v] = len(steps)
    for stager.position, step in enumerate(steps):
        stager.conditions, stager.current = step.conditions, step.item
        rule = stager.rule_of(step.item) if step.item.primitive is for_p else type(stager).serial
        (stager.array_tasks or rule)(stager, step.item)
    stager.position, stager.conditions = len(steps), ()
    segment.close_serial()
    pairs = list(zip(results, likes, strict=True))
    refs = [Var(like.type, like.hint) if v is None else _reference(stager, v) for v, like in pairs]
    zeros = [ref for v, ref in zip(results, refs, strict=True) if v is None]
    program = without_tells(segment.finish(refs, {}))
    made = replace(
        program,
        params=(*source.params, *(v for v, _ in segment.operands)),
        buffers=(*program.buffers, *zeros),
        results=tuple(refs),
        initial={**program.initial, **{v: literal(0, v.dtype) for v in zeros}},
        limits={**source.limits, **program.limits},
    )
    return made, [value for _, value in segment.operands]
