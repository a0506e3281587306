"""The source of a program: the items of the traced function and the parameters that their variables stand for.

A derivative of the program is made from these. `along` returns the items with tangents beside their values, by JAX's
own rules (`trace/tangents`), and `program` makes tasks of items once more. See docs/design/0022-linearise.md.
"""

from __future__ import annotations

import functools
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from qdtrace.compose.inlining import Inlining
from qdtrace.compose.jaxprs import is_literal
from qdtrace.compose.segment import BufferState, Constant, Operand, Step
from qdtrace.compose.source_key import equations_here, equations_key
from qdtrace.errors import GradientError
from qdtrace.frozen import frozen
from qdtrace.ir.program import Var, literal
from qdtrace.ir.tells import without_tells
from qdtrace.trace import compat
from qdtrace.trace.derivative_rules import rule_on_the_way
from qdtrace.trace.dtypes import is_x64
from qdtrace.trace.inlined_rules import has_own_primal
from qdtrace.trace.markers import MARKERS, for_p
from qdtrace.trace.structure import named
from qdtrace.trace.tangents import along

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from jax import Array
    from jax.typing import ArrayLike

    from qdtrace.compose.pass_cache import GraphKey
    from qdtrace.errors import Loc
    from qdtrace.ir.program import Program
    from qdtrace.ir.types import DType
    from qdtrace.limits import Limits
    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn

    Mask = Sequence[bool]
    Names = tuple[jaxprs.Var | None, ...]


Stager: TypeAlias = Any  # it imports this module
"""A `stager.Stager`."""


@frozen(eq=False)
class Memory:
    """The content of a buffer before the program."""

    shape: tuple[int, ...]
    dtype: DType
    hint: str
    ref: Var | None = None
    """The parameter with the content, if it is one."""
    fill: Var | ArrayLike | None = None
    """The fill, a parameter or a known value; None: elements that no task has stored are undefined."""


@frozen(eq=False)
class Source:
    """Steps in order, and the meaning of their free variables."""

    another: Callable[[], Stager]
    """Returns a stager that has staged nothing yet."""
    steps: tuple[Step, ...]
    params: tuple[Var, ...]
    """Parameters of the program; those that are not among `values` and `memory` hold known arrays."""
    values: Mapping[jaxprs.Var, Var]
    """Variables whose values are parameters."""
    constants: Mapping[jaxprs.Var, ArrayLike]
    """Known values by variable."""
    memory: Mapping[jaxprs.Var, Memory]
    results: Names
    """Variables of the results; None for one that is zero everywhere or has no derivative."""
    primal: Names
    """Variables of the values that the results are derivatives of."""
    limits: Mapping[Var, Limits] = field(default_factory=dict["Var", "Limits"])
    """Limits of parameters."""
    directions: tuple[Var, ...] = ()
    """Parameters that are parts of the directions of the derivative."""
    lower: tuple[Names, ...] = ()
    """Variables of the results' derivatives along all directions but one, for each direction."""
    unknown: GradientError | None = None
    """The error if the meaning of the variables is not known."""
    _along: dict[tuple[bool, ...], Source] = field(default_factory=dict["tuple[bool, ...]", "Source"], init=False)
    """Sources of tangents, by whether JAX's rules ran in the x64 mode and by the mask."""

    def along(self, mask: Mask) -> Source:
        """Returns the source of the results' tangents along a direction of the parameters in the mask.

        The parts of the direction are new last parameters. Raises GradientError if JAX has no tangents.
        """
        key = (is_x64(), *mask)
        if key not in self._along:
            self._along[key] = self._made_along(tuple(mask))
        return self._along[key]

    @functools.cached_property
    def has_backward(self) -> bool:
        """Returns whether an equation has a derivative rule for reverse mode alone."""
        names = ("custom_vjp_call", "custom_lin")
        return any(e.primitive.name in names for e in compat.all_eqns(self._equations()))

    @functools.cached_property
    def has_primals_of_rules(self) -> bool:
        """Returns whether a derivative rule of a user may return another value than that of its function.

        JAX differentiates the value that the rule returns, which may have another derivative than the rule says.
        """
        return self.has_backward or any(map(has_own_primal, compat.all_eqns(self._equations())))

    @functools.cached_property
    def may_have_rules(self) -> bool:
        """Returns whether an equation has a derivative rule of a user."""
        return bool(self.rules())

    def _holding(self, given: Container[Var | None]) -> Iterator[jaxprs.Var]:
        """Yields the variables whose values are parameters in `given`, or whose memory holds one."""
        yield from (var for var, ref in self.values.items() if ref in given)
        for var, content in self.memory.items():
            if content.ref in given or (isinstance(content.fill, Var) and content.fill in given):
                yield var

    def rule_along(self, mask: Mask) -> tuple[str, Loc | None] | None:
        """Returns name and line of a function on the way from parameters in the mask that is differentiated by a rule
        of its own, or None."""
        moved = self._holding({v for v, wanted in zip(self.params, mask, strict=True) if wanted})
        return rule_on_the_way([step.item for step in self.steps], moved, self.memory)

    @property
    def traced(self) -> Source:
        """The source itself, as of one that is found on disk and not traced yet."""
        return self

    @property
    def has_primal(self) -> bool:
        """Returns whether each result has a variable."""
        return None not in self.primal

    def rules(self) -> list[str]:
        """Returns the names of functions with derivative rules that need not be derivatives.

        These are rules of users, and all for reverse mode: one of `jax.custom_gradient` is of a function of JAX.
        """
        eqns = [e for e in compat.all_eqns(self._equations()) if "call_jaxpr" in e.params]
        found = [(e.primitive.name, *compat.described(e.params["call_jaxpr"])) for e in eqns]
        return [name for kind, name, is_own in found if kind == "custom_vjp_call" or not is_own]

    def _equations(self) -> list[JaxprEqn]:
        return [s.item for s in self.steps]

    def _joined(self) -> list[list[Step]]:
        """Returns the steps in groups that JAX differentiates at once: runs of array code, which take longer alone."""
        joined: list[list[Step]] = []
        has_array_code, was_array_code = self.another().array_tasks is not None, False
        for step in self.steps:
            is_array_code = has_array_code and step.item.primitive not in MARKERS
            if is_array_code and was_array_code and step.conditions == joined[-1][0].conditions:
                joined[-1].append(step)
            else:
                joined.append([step])
            was_array_code = is_array_code
        return joined

    def _made_along(self, mask: Mask) -> Source:
        if self.unknown is not None:
            raise self.unknown
        given = {v: Var(v.type, v.hint) for v, wanted in zip(self.params, mask, strict=True) if wanted}
        # A direction before does not change. It gets tangents nonetheless, zeros, where a rule for reverse mode has to
        # know what else depends on it.
        moving = {*given, *(self.directions if self.has_backward else ())}
        values, memory = dict(self.values), dict(self.memory)
        zeros: dict[jaxprs.Var, ArrayLike] = {}
        tangents = {var: compat.new_var(var) for var in self._holding(moving)}
        for var, ref in self.values.items():
            if ref in given:
                values[tangents[var]] = given[ref]
            elif ref in moving:
                zeros[tangents[var]] = np.zeros(var.aval.shape, var.aval.dtype)
        kept = (*self.results, *self.primal, *(v for names in self.lower for v in names))
        results = [v for v in kept if v is not None]
        used = [v for s in self.steps for v in s.conditions if not is_literal(v)] + results
        joined = self._joined()
        groups, walk = along([[s.item for s in steps] for steps in joined], tangents, memory, used)
        for var, content in self.memory.items():
            if var in tangents:
                memory[tangents[var]] = _twin(content, given)
        if any(isinstance(c, compat.Tracer) for c in walk.constants.values()):
            raise _traced_value(f"the derivative rule of `{'`, `'.join(self.rules()) or 'a function'}`")
        steps = [
            Step(item, tuple(named(before[0].conditions, walk.renamed)))
            for before, items in zip(joined, groups, strict=True)
            for item in items
        ]

        def changes(names: Names) -> Names:
            return tuple(None if v is None else tangents.get(v) for v in names)

        return Source(
            self.another,
            tuple(steps),
            (*self.params, *given.values()),
            values,
            {**self.constants, **zeros, **walk.constants},
            memory,
            changes(self.results),
            tuple(named(self.primal, walk.renamed)),
            self.limits,
            (*self.directions, *given.values()),
            (*map(changes, self.lower), tuple(named(self.results, walk.renamed))),
        )

    def program(self, results: Sequence[jaxprs.Var | None], likes: Sequence[Var]) -> tuple[Program, list[Array]]:
        """Returns the program of some of the results, and the values of its parameters after `params`.

        Results without a variable are zeros of the types of `likes`.
        """
        with jax.ensure_compile_time_eval():
            return self._staged(results, likes)

    def _staged(self, results: Sequence[jaxprs.Var | None], likes: Sequence[Var]) -> tuple[Program, list[Array]]:
        stager = self.another()
        # a backward sweep would keep the overwritten content
        stager.in_place = False
        segment = stager.segment
        for var, ref in self.values.items():
            stager.env[var] = Operand(ref)
        for var, value in self.constants.items():
            stager.env[var] = Constant(value)
        states: dict[Memory, BufferState] = {}
        for var, content in self.memory.items():
            fill = Operand(content.fill) if isinstance(content.fill, Var) else content.fill
            state = states.setdefault(content, BufferState(content.shape, content.dtype, None, fill, content.hint))
            stager.env[var] = state
            if content.ref is not None:
                segment.refs[state] = content.ref
        steps: Sequence[Step] = self.steps
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
            params=(*self.params, *(v for v, _ in segment.operands)),
            buffers=(*program.buffers, *zeros),
            results=tuple(refs),
            initial={**program.initial, **{v: literal(0, v.dtype) for v in zeros}},
            limits={**self.limits, **program.limits},
        )
        return made, [value for _, value in segment.operands]

    def equations_key(self, graph: GraphKey) -> GraphKey:
        """Returns the key of the equations on disk, given that of the program's graph."""
        return equations_key(self, graph)

    def key(self) -> object:
        """Returns a key that is equal for sources with the same derivatives."""
        return equations_here(self._equations())


def _twin(content: Memory, given: Mapping[Var, Var]) -> Memory:
    fill: Var | int | None = 0 if content.fill is not None or content.ref is not None else None
    if isinstance(content.fill, Var):
        fill = given.get(content.fill, 0)
    return replace(content, ref=None if content.ref is None else given.get(content.ref), fill=fill, hint=content.hint)


def source_of(stager: Stager, program: Program) -> Source | None:
    """Returns the source of a program that a stager's open segment has become, or None if it has no steps."""
    results = program.results
    segment = stager.segment
    if not segment.steps:
        return None
    another = functools.partial(type(stager), stager.name, stager.options, stager.rule_of, stager.array_tasks)
    params = tuple(v for v, _ in segment.operands)
    try:
        found = _stands_for(stager, results)
    except GradientError as error:
        return Source(another, tuple(segment.steps), params, {}, {}, {}, (), (), unknown=error)
    values, constants, memory, names = found
    steps = tuple(segment.steps)
    return Source(another, steps, params, values, constants, memory, names, names, program.limits)


def _traced_value(what: str) -> GradientError:
    return GradientError(
        f"{what} uses a traced value of the function around it, whose derivative is not known",
        help="pass it to the function as an argument",
    )


def _stands_for(
    stager: Stager, results: Sequence[Var]
) -> tuple[dict[jaxprs.Var, Var], dict[jaxprs.Var, ArrayLike], dict[jaxprs.Var, Memory], Names]:
    """Returns the meaning of free variables, as parameters, known values and memory, and the results' variables."""
    segment = stager.segment
    if segment.hoists_tracer:
        raise _traced_value("a function")
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
            raise _traced_value("a loop")
    for pending in segment.pending:
        names.update((pending.ref, v) for v in stager.env.names(pending))
    contents = [x for m in memory.values() for x in (m.ref, m.fill) if isinstance(x, Var)]
    known = {*values.values(), *contents}
    if any(isinstance(value, compat.Tracer) and v not in known for v, value in segment.operands):
        raise _traced_value("a function")
    for ref in results:
        # the integers that tell of checks and prints have no variable, and no derivative
        if ref.dtype.is_float and ref not in names:
            raise GradientError(f"the result `{ref.hint}` stands for no value of the function, so it has no derivative")
    return values, constants, memory, tuple(map(names.get, results))


def _reference(stager: Stager, var: object) -> Var:
    entry = stager.env[var]
    return stager.segment.ref(entry) if isinstance(entry, BufferState) else entry.ref
