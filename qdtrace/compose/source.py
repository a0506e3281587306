"""The source of a program: the items of the traced function and the parameters that their variables stand for.

A derivative of the program is made from these. `along` returns the items with tangents beside their values, by JAX's
own rules (`trace/tangents`), and `restaging` makes tasks of items once more. See docs/design/0022-linearise.md.
"""

from __future__ import annotations

import functools
from dataclasses import field, replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from qdtrace.compose.jaxprs import is_literal
from qdtrace.compose.segment import Step
from qdtrace.compose.source_key import Description
from qdtrace.errors import GradientError
from qdtrace.frozen import frozen
from qdtrace.ir.program import Var
from qdtrace.trace import compat
from qdtrace.trace.derivative_rules import rule_on_the_way
from qdtrace.trace.dtypes import is_x64
from qdtrace.trace.inlined_rules import has_own_primal
from qdtrace.trace.markers import MARKERS
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

    stage: Callable[[Source, Sequence[jaxprs.Var | None], Sequence[Var]], tuple[Program, list[Array]]]
    """Stages some of the steps' values once more (`restaging`)."""
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
    has_array_code: bool = False
    """True if array code may be steps, too."""
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
        was_array_code = False
        for step in self.steps:
            is_array_code = self.has_array_code and step.item.primitive not in MARKERS
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
            raise traced_value(f"the derivative rule of `{'`, `'.join(self.rules()) or 'a function'}`")
        steps = [
            Step(item, tuple(named(before[0].conditions, walk.renamed)))
            for before, items in zip(joined, groups, strict=True)
            for item in items
        ]

        def changes(names: Names) -> Names:
            return tuple(None if v is None else tangents.get(v) for v in names)

        return Source(
            self.stage,
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
            has_array_code=self.has_array_code,
        )

    def program(self, results: Sequence[jaxprs.Var | None], likes: Sequence[Var]) -> tuple[Program, list[Array]]:
        """Returns the program of some of the results, and the values of its parameters after `params`.

        Results without a variable are zeros of the types of `likes`.
        """
        with jax.ensure_compile_time_eval():
            return self.stage(self, results, likes)

    @functools.cached_property
    def key(self) -> GraphKey:
        """The key of what was traced: equal for sources with the same derivatives, as long as both live."""
        equations = Description("" if self.unknown is None else "not known")
        return equations.key(self._described(equations))

    def _described(self, equations: Description) -> object:
        params = {v: k for k, v in enumerate(self.params)}
        memory: dict[int, int] = {}

        def content(m: Memory) -> tuple[object, ...]:
            fill = ("parameter", params[m.fill]) if isinstance(m.fill, Var) else equations.value(m.fill)
            return (m.shape, m.dtype.value, m.hint, None if m.ref is None else params[m.ref], fill)

        return (
            [(equations.var(v), params[ref]) for v, ref in self.values.items()],
            [(equations.var(v), equations.value(value)) for v, value in self.constants.items()],
            # buffers that are one have one description
            [(equations.var(v), memory.setdefault(id(m), len(memory)), *content(m)) for v, m in self.memory.items()],
            [(equations.eqn(s.item), [equations.atom(c) for c in s.conditions]) for s in self.steps],
            [None if v is None else equations.atom(v) for v in (*self.results, *self.primal)],
        )


def _twin(content: Memory, given: Mapping[Var, Var]) -> Memory:
    fill: Var | int | None = 0 if content.fill is not None or content.ref is not None else None
    if isinstance(content.fill, Var):
        fill = given.get(content.fill, 0)
    return replace(content, ref=None if content.ref is None else given.get(content.ref), fill=fill, hint=content.hint)


def traced_value(what: str) -> GradientError:
    """Returns the error for a value of a function around."""
    return GradientError(
        f"{what} uses a traced value of the function around it, whose derivative is not known",
        help="pass it to the function as an argument",
    )
