"""Derivative rules of JAX functions, kept beside what the importer makes of the functions.

A rule is a jaxpr that JAX makes when it is asked: of `jax.custom_jvp` and `jax.custom_vjp` functions by the user's
rule, of decompositions (which the importer replaces by sweeps) by JAX's own. It is asked when something is
differentiated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace.errors import GradientError
from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.program import Var, literal
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.importer.registry import DERIVATIVES
from qdtrace.trace.importer.values import MemoryArray, is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.ir.program import Atom, Block, Loc
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value


class JaxRule:
    """The rule that JAX has for an equation whose operands and results are scalars here."""

    def __init__(self, name: str, eqn: Any, imp: Importer, *, is_exact: bool) -> None:
        self.name = name
        self.is_exact = is_exact
        self._eqn = eqn
        self._operands = [v.aval for v in eqn.invars]
        self._results = [v.aval for v in eqn.outvars]
        self._consts = consts_of(eqn)
        self._another = imp.another
        self._loc = imp.builder.loc
        self._blocks: dict[str, Block] = {}

    def __str__(self) -> str:
        return self.name

    def _key(self) -> object:
        """Equal for rules of JAX's own operations that are the same; a user's functions are told apart."""
        if "call_jaxpr" in self._eqn.params or "jaxprs" in self._eqn.params:
            return id(self)
        return self.name, [str(a) for a in (*self._operands, *self._results)], self._eqn.params

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, JaxRule) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self.name)

    def tangents(self) -> Block:
        """Directional derivatives of the results."""
        if self._eqn.primitive.name.startswith("custom_vjp"):
            raise GradientError(
                f"`{self.name}` has a rule for reverse mode alone (jax.custom_vjp), got forward mode",
                loc=self._loc,
                help="use jax.grad or jax.vjp once, or give the function a jax.custom_jvp rule",
            )

        def tangents(primals: Sequence[Any], given: Sequence[Any]) -> list[Any]:
            consts, more = primals[: self._consts], primals[self._consts :]
            run = lambda *x: self._run(*consts, *x)  # noqa: E731
            _, out = jax.jvp(run, tuple(more), tuple(given[self._consts :]))
            return [t for t, a in zip(out, self._results, strict=True) if is_float(a)]

        return self._block("tangents", tangents, self._operands)

    def adjoints(self) -> Block:
        """Adjoints of the operands."""

        def adjoints(primals: Sequence[Any], given: Sequence[Any]) -> list[Any]:
            consts, more = primals[: self._consts], primals[self._consts :]
            _, pull = jax.vjp(lambda *x: self._run(*consts, *x), *more)
            found = [*map(jax.numpy.zeros_like, consts), *pull(list(given))]
            return [c for c, a in zip(found, self._operands, strict=True) if is_float(a)]

        return self._block("adjoints", adjoints, self._results)

    def _run(self, *values: Any) -> list[Any]:
        return compat.bind_eqn(self._eqn, list(values))

    def _block(self, kind: str, function: Callable[..., list[Any]], along: Sequence[Any]) -> Block:
        found = self._blocks.get(kind)
        if found is None:
            found = self._blocks[kind] = self._imported(function, along)
        return found

    def _imported(self, function: Callable[..., list[Any]], along: Sequence[Any]) -> Block:
        """The function of primals and of parts of the derivative, which integers do not have."""

        def flat(*values: Any) -> list[Any]:
            more = iter(values[len(self._operands) :])
            given = [next(more) if is_float(a) else np.zeros(a.shape, jax.dtypes.float0) for a in along]
            return function(values[: len(self._operands)], given)

        avals = [*self._operands, *filter(is_float, along)]
        return imported_rule(self.name, flat, avals, self._another, self._loc)


def imported_rule(
    name: str, rule: Callable[..., Any], avals: Sequence[Any], another: Callable[[Builder], Importer], loc: Loc | None
) -> Block:
    """Returns a block that computes a rule on scalars.

    Raises GradientError where the rule of the function `name` uses a value of a trace around it.
    """
    try:
        closed = jax.make_jaxpr(rule)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
    except jax.errors.UnexpectedTracerError:
        raise GradientError(
            f"the derivative rule of `{name}` uses a traced value of the function around it",
            loc=loc,
            help="pass it to the function as an argument",
        ) from None
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
    values = [_fresh(importer, a) for a in avals]
    with builder.block([v for array in values for v in _flat(array)]) as block:
        outs = importer.jaxpr(closed, values)
        return block.close([a for out in outs for a in importer.scalars(out, name).reshape(-1)])


class ClosedOver:
    """The rule of what a function with a derivative rule closes over: the rule says nothing of it."""

    is_exact = False

    def __init__(self, name: str, loc: Loc | None) -> None:
        self.name = name
        self._loc = loc

    def __str__(self) -> str:
        return f"closed over by {self.name}"

    def tangents(self) -> Block:
        """Refuses."""
        raise GradientError(
            f"`{self.name}` has a derivative rule for its arguments, got a derivative of a value that it closes over",
            loc=self._loc,
            help="pass the value as an argument, and give the rule its derivative",
        )

    adjoints = tangents


class LostRule:
    """A rule of a user's function whose operands or results are not scalars here: it is in memory or complex."""

    is_exact = False

    def __init__(self, name: str, loc: Loc | None) -> None:
        self.name = name
        self._loc = loc

    def __str__(self) -> str:
        return self.name

    def tangents(self) -> Block:
        """Refuses."""
        raise GradientError(
            f"`{self.name}` has a derivative rule for complex numbers or for arrays that are too large for registers",
            loc=self._loc,
            help="call it on real arrays of at most 256 elements, or element by element",
        )

    adjoints = tangents


def _fresh(importer: Importer, aval: Any) -> Any:
    dtype = importer.dtype_of(aval)
    out = np.empty(aval.shape, object)
    for at in np.ndindex(*aval.shape):
        out[at] = (scalar_var(dtype), scalar_var(dtype)) if is_pair(aval) else scalar_var(dtype)
    return out


def _flat(value: Value) -> list[Any]:
    """Scalars of an array: two for each key of random numbers; None for an array that is not in scalars."""
    if type(value) is not np.ndarray:
        return [None]
    return [part for element in value.reshape(-1) for part in (element if type(element) is tuple else (element,))]


def consts_of(eqn: Any) -> int:
    """How many operands in front the function of a user's rule closes over; of these the rule says nothing."""
    return int(eqn.params.get("num_consts", 0)) if "call_jaxpr" in eqn.params else 0


def is_key(aval: Any) -> bool:
    """Whether an array holds keys of random numbers."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key))


def is_float(aval: Any) -> bool:
    """Whether an array is of real numbers with a derivative."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.numpy.floating))


def _is_inexact(aval: Any) -> bool:
    """Whether an array has a derivative."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact))


def with_rule(imp: Importer, eqn: Any, operands: Sequence[Value], results: list[Value]) -> list[Value]:
    """Results of an equation that have the derivative that JAX has for it."""
    if not any(_is_inexact(v.aval) for v in eqn.invars) or not any(_is_inexact(v.aval) for v in eqn.outvars):
        return results
    operands, results = ([_in_registers(imp, v) for v in values] for values in (operands, results))
    jaxpr = eqn.params.get("call_jaxpr")
    name, is_exact = compat.described(jaxpr) if jaxpr is not None else (eqn.primitive.name, True)
    imp.locate()
    flat = [a for value in operands for a in _flat(value)]
    atoms = list(flat)
    flat += [a for value in results for a in _flat(value)]
    complex_ = any(is_pair(v.aval) and not is_key(v.aval) for v in (*eqn.invars, *eqn.outvars))
    if complex_ or any(a is None for a in flat):
        if not is_exact or name in _ITERATED:
            lost = LostRule(name, imp.builder.loc)
            imp.builder("custom", literal(0, DType.f32), rule=lost, result=0)
        return results
    if not any(isinstance(a, Var) for a in flat):
        return results
    rule = JaxRule(name, eqn, imp, is_exact=is_exact)
    closed_over = ClosedOver(name, imp.builder.loc)
    for k in range(sum(len(_flat(v)) for v in operands[: consts_of(eqn)])):
        if isinstance(atoms[k], Var) and atoms[k].dtype.is_float:
            atoms[k] = imp.builder("custom", atoms[k], atoms[k], rule=closed_over, result=0)
    found: list[Value] = []
    position = 0
    for value, var in zip(results, eqn.outvars, strict=True):
        assert isinstance(value, np.ndarray)
        out = value
        if is_float(var.aval):
            out = np.empty(value.shape, object)
            for at in np.ndindex(*value.shape):
                element: Any = value[at]
                out[at] = imp.builder("custom", element, *atoms, rule=rule, result=position)
                position += 1
        found.append(out)
    return found


def with_rule_of_elements(imp: Importer, eqn: Any, run: Callable[..., Atom]) -> Callable[..., Atom]:
    """A function of elements with the derivative that JAX has for the elementwise equation that it stands for."""
    if not is_float(eqn.outvars[0].aval):
        return run
    imp.locate()
    scalars = [jax.ShapeDtypeStruct((), v.aval.dtype) for v in eqn.invars]
    closed = jax.make_jaxpr(lambda *x: eqn.primitive.bind(*x, **eqn.params))(*scalars)
    rule = JaxRule(eqn.primitive.name, closed.eqns[0], imp, is_exact=True)

    def tied(*elements: Atom) -> Atom:
        value = run(*elements)
        return imp.builder("custom", value, *elements, rule=rule, result=0) if isinstance(value, Var) else value

    return tied


def without_derivative(imp: Importer, value: Value) -> Value:
    """A value through which nothing is differentiated."""
    value = _in_registers(imp, value)
    if type(value) is not np.ndarray:
        return value
    out = np.empty(value.shape, object)
    for at in np.ndindex(*value.shape):
        out[at] = constant_here(imp, value[at])
    return out


def _in_registers(imp: Importer, value: Value) -> Value:
    return imp.scalars(value) if isinstance(value, MemoryArray) and value.size <= imp.scalar_budget else value


def constant_here(imp: Importer, element: Any) -> Any:
    """An element through which nothing is differentiated."""
    if not isinstance(element, Var) or not element.dtype.is_float:
        return element
    return imp.builder("custom", element, rule="stop_gradient", result=0)


# Decompositions by sweeps or with choices are differentiated in closed form, and what a loop of rejections accepts.
_ITERATED = frozenset(("eigh", "svd", "random_gamma"))
"""Those that are no function of their operands step by step: without the rule they are refused."""
DERIVATIVES.update(dict.fromkeys(("cholesky", "eigh", "lu", "qr", "svd", "random_gamma"), with_rule))
DERIVATIVES.update(dict.fromkeys(("bessel_i0e", "bessel_i1e", "igamma", "igammac"), with_rule_of_elements))
