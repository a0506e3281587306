"""Linear functions that are transposed as JAX does it: by a function of its own, and not step by step.

These are equations of JAX and of libraries with a transpose (solvers that iterate are not linear step by step), and
tangents of `jax.custom_vjp` functions, whose rules are made in `backward_rules`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import GradientError, UnsupportedError
from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.trace import compat
from qdtrace.trace.dtypes import mode_for
from qdtrace.trace.importer.registry import DERIVATIVES
from qdtrace.trace.importer.values import array_from, atoms_of
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from qdtrace.ir.custom import Tangents
    from qdtrace.ir.program import Atom, Block, Loc
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value
    from qdtrace.trace.jaxprs import AnyJaxpr, Shaped
    from qdtrace.trace.rules_along import RuleAlong

    T = TypeVar("T")
    Backward = Callable[[Sequence[int], Sequence[jax.Array], Sequence[jax.Array]], Sequence[jax.Array]]
    """Function of numbers of operands, the operands and cotangents of results; returns cotangents of those operands."""


MOST = 4096
"""Most elements of an array that a backward function may take: a solver passes on what it kept of its steps."""


class TransposedRule:
    """The transpose of a linear function, on scalars: a block that is made when it is asked for."""

    def __init__(
        self,
        name: str,
        avals: Sequence[Shaped],
        outs: Sequence[Shaped],
        backward: Backward,
        imp: Importer,
        tangents: int = 0,
    ) -> None:
        """`tangents` is the number of last operands that are tangents, of a function known by its transpose alone."""
        self.name = name
        self.residuals = sum(map(width, avals[:-tangents])) if tangents else None
        """The number of scalars in front that are no tangents, of a function known by its transpose alone."""
        self.along: tuple[RuleAlong, TransposedRule] | None = None
        """The derivative that the backward function is, if it is one, and the rule that it is the derivative of."""
        self._avals = avals
        self._outs = [a for a in outs if is_inexact(a)]
        self._tangents = tangents
        self._backward = backward
        self._made_another = imp.another
        self._loc = imp.loc
        self._blocks: dict[tuple[int, ...], Block] = {}

    def __str__(self) -> str:
        return self.name

    def refused(self) -> GradientError:
        """Returns the error for a use of its value."""
        return GradientError(
            f"`{self.name}` has a rule for reverse mode alone (jax.custom_vjp), got forward mode",
            loc=self._loc,
            help="use jax.grad or jax.vjp, of which jax.jvp and jax.jacfwd may be taken, or a jax.custom_jvp rule",
        )

    @property
    def loc(self) -> Loc | None:
        """Line of the call."""
        return self._loc

    def tangents(self) -> Iterator[Tangents]:
        """Yields a block of tangents, its parameters that are parts of the direction, and those of its results that are
        tangents, for each derivative of a user's backward function that this one is."""
        if self.along is None:
            return
        rule, lower = self.along
        block, first = self.adjoints_of(()), rule.params["num_res"]
        turned = len(self._outs) // 2
        given = _parts(block.params, [*self._avals, *self._outs])
        direction = [*given[first : first + len(rule.changing)], *given[len(self._avals) :][:turned]]
        inexact = [a for a in self._avals if is_inexact(a)]
        found = _parts(block.results, inexact)[len(inexact) - self._tangents :][: lower._tangents]
        yield block, list(itertools.chain(*direction)), list(itertools.chain(*found))
        yield from lower.tangents()

    def operands_of(self, result: int) -> list[int]:
        """Returns the numbers of the scalars that a result depends on: the values among results have no direction."""
        return self._scalars(self._operands_of(result))

    def vanishing(self, result: int) -> list[list[int]]:
        """Returns sets of numbers of scalars: if all of one are zero, the result is, as it is linear in each."""
        return list(map(self._scalars, self._vanishing(result)))

    def _scalars(self, operands: Iterable[int]) -> list[int]:
        ends = np.cumsum([0, *map(width, self._avals)]).tolist()
        return [k for operand in sorted(operands) for k in range(ends[operand], ends[operand + 1])]

    def _half(self) -> int:
        return sum(map(width, self._outs)) // 2

    def _operands_of(self, result: int) -> Iterable[int]:
        if self.along is None or result >= self._half():
            return range(len(self._avals))
        rule, lower = self.along
        return map(rule.place, lower._operands_of(result))

    def _vanishing(self, result: int) -> list[set[int]]:
        count = len(self._avals)
        if self.along is None:
            return [set(range(count - self._tangents, count))] if self._tangents else [{k} for k in range(count)]
        rule, lower = self.along
        if result < self._half():
            return [set(map(rule.place, some)) for some in lower._vanishing(result)]
        inner = range(len(lower._avals))
        found = [{j for k in inner for j in rule.tangent(k)}]
        for some in lower._vanishing(result - self._half()):
            found.append({j for k in some for j in (rule.place(k), *rule.tangent(k))})
        return found

    def _another(self, builder: Builder) -> Importer:
        importer = self._made_another(builder)
        if self._tangents:
            importer.most_scalars = MOST
        return importer

    def adjoints_of(self, active: tuple[bool, ...]) -> Block:
        """Returns a block with adjoints of the linear operands; `active` is a mask of the operands' scalars."""
        count = len(self._avals)
        ends = np.cumsum([width(a) for a in self._avals])
        linear = [any(active[end - width(a) : end]) for end, a in zip(ends, self._avals, strict=True)]
        if self._tangents:
            linear = [k >= count - self._tangents for k in range(count)]
        moved = tuple(k for k in range(count) if linear[k])
        if moved not in self._blocks:

            def adjoints(*values: jax.Array) -> list[jax.Array]:
                # an adjoint here is that of real and imaginary part, and JAX's is its conjugate
                found = self._backward(moved, values[:count], [jnp.conj(c) for c in values[count:]])
                by_number = dict(zip(moved, found, strict=True))
                return [
                    jnp.conj(by_number[k]).astype(a.dtype) if k in by_number else jnp.zeros(a.shape, a.dtype)
                    for k, a in enumerate(self._avals)
                    if is_inexact(a)
                ]

            self._blocks[moved] = _imported(self.name, adjoints, [*self._avals, *self._outs], self._another, self._loc)
        return self._blocks[moved]


def is_inexact(aval: Shaped) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def width(aval: Shaped) -> int:
    return int(np.prod(aval.shape)) * (2 if is_pair(aval) else 1)


def _parts(scalars: Iterable[T], avals: Sequence[Shaped]) -> list[list[T]]:
    """Returns the scalars of each array."""
    left = iter(scalars)
    return [[next(left) for _ in range(width(a))] for a in avals]


def _imported(
    name: str,
    rule: Callable[..., object],
    avals: Sequence[Shaped],
    another: Callable[[Builder], Importer],
    loc: Loc | None,
) -> Block:
    """Returns a block that computes a rule on scalars.

    Raises GradientError where the rule of the function `name` uses a value of a trace around it.
    """
    try:
        with mode_for(a.dtype for a in avals):
            closed = jax.make_jaxpr(rule)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
    except jax.errors.UnexpectedTracerError:
        raise uses_a_traced_value(name, loc) from None
    if any(e.primitive is compat.custom_lin_p for e in compat.all_eqns(compat.open_jaxpr(closed).eqns)):
        raise GradientError(
            f"the backward function of `{name}` calls a function with a rule for reverse mode alone "
            "(jax.custom_vjp), got forward mode of it",
            loc=loc,
            help="give the function that it calls a jax.custom_jvp rule",
        )
    builder = Builder()
    builder.loc = loc
    importer = another(builder)
    values = [array_from(map(scalar_var, itertools.repeat(importer.dtype_of(a))), a) for a in avals]
    params: list[Any] = [v for array in values for v in atoms_of(array)]
    with builder.block(params) as block:
        outs = importer.jaxpr(closed, values)
        return block.close([a for out in outs for a in atoms_of(importer.scalars(out, name))])


def uses_a_traced_value(name: str, loc: Loc | None) -> GradientError:
    return GradientError(
        f"the derivative rule of `{name}` uses a traced value of the function around it",
        loc=loc,
        help="pass it to the function as an argument",
    )


def atoms_within(imp: Importer, operands: Sequence[Value], name: str, most: int | None = None) -> list[Atom]:
    """Returns scalars of all operands. Raises UnsupportedError where one has more than usual, or `most`, elements."""
    arrays = [imp.scalars(v, name, most) for v in operands]
    return [a for x in arrays for a in atoms_of(x)]


def tied(
    imp: Importer, values: Sequence[Value], outs: Sequence[Shaped], atoms: Sequence[Atom], found: TransposedRule
) -> list[Value]:
    """Returns the values, which are transposed by a rule."""
    made: list[Value] = []
    numbers = itertools.count()
    for value, aval in zip(values, outs, strict=True):
        if not is_inexact(aval):
            made.append(value)
            continue
        assert isinstance(value, np.ndarray)
        scalars = (imp("custom", a, *atoms, rule=found, result=next(numbers)) for a in atoms_of(value))
        made.append(array_from(scalars, aval))
    return made


def with_transpose(
    imp: Importer,
    eqn: JaxprEqn,
    operands: Sequence[Value],
    closed: AnyJaxpr,
    given: list[Value],
    count: int | None = None,
) -> list[Value]:
    """Returns results that `closed` gives for `given`, transposed as JAX does it if all fit into registers.

    Others are transposed step by step, which is refused where tangents decide how many there are. `count` of the
    results are linear, or all.
    """
    name, avals, outs = eqn.primitive.name, [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars[:count]]
    if not any(map(is_inexact, outs)):
        return imp.call(closed, given)
    try:
        atoms = atoms_within(imp, operands, name)  # before it runs, as it may change an operand in place
    except UnsupportedError:
        return imp.call(closed, given)[: len(eqn.outvars)]
    results = imp.call(closed, given)[: len(eqn.outvars)]
    try:
        values = [imp.scalars(v, name) for v in results[: len(outs)]]
    except UnsupportedError:
        return results

    def backward(
        moved: Sequence[int], operands: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> Sequence[jax.Array]:
        def run(*changed: jax.Array) -> list[jax.Array]:
            given = dict(zip(moved, changed, strict=True))
            found = compat.bind_eqn(eqn, [given.get(k, v) for k, v in enumerate(operands)])
            return [x for x, a in zip(found, outs, strict=False) if is_inexact(a)]

        likes = [jax.ShapeDtypeStruct(avals[k].shape, avals[k].dtype) for k in moved]
        return jax.linear_transpose(run, *likes)(list(cotangents))

    imp.locate()
    found = TransposedRule(name, avals, outs, backward, imp)
    return [*tied(imp, values, outs, atoms, found), *results[len(outs) :]]


DERIVATIVES["transposed"] = with_transpose
