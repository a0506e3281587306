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
from qdtrace.ir.program import Literal, Var, literal
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.importer.registry import DERIVATIVES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.ir.program import Block, Loc
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
        self._another = imp.another
        self._loc = imp.builder.loc
        self._blocks: dict[str, Block] = {}

    def __str__(self) -> str:
        return self.name

    def tangents(self) -> Block:
        """Directional derivatives of the results."""
        if self._eqn.primitive.name.startswith("custom_vjp"):
            raise GradientError(
                f"`{self.name}` has a rule for reverse mode alone (jax.custom_vjp), got forward mode",
                loc=self._loc,
                help="use jax.grad or jax.vjp once, or give the function a jax.custom_jvp rule",
            )

        def tangents(primals: Sequence[Any], given: Sequence[Any]) -> list[Any]:
            _, out = jax.jvp(self._run, tuple(primals), tuple(given))
            return [t for t, a in zip(out, self._results, strict=True) if is_float(a)]

        return self._block("tangents", tangents, self._operands)

    def adjoints(self) -> Block:
        """Adjoints of the operands."""

        def adjoints(primals: Sequence[Any], given: Sequence[Any]) -> list[Any]:
            _, pull = jax.vjp(self._run, *primals)
            return [c for c, a in zip(pull(list(given)), self._operands, strict=True) if is_float(a)]

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
        try:
            closed = jax.make_jaxpr(flat)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
        except jax.errors.UnexpectedTracerError:
            raise GradientError(
                f"the derivative rule of `{self.name}` uses a traced value of the function around it",
                loc=self._loc,
                help="pass it to the function as an argument",
            ) from None
        builder = Builder()
        builder.loc = self._loc
        importer = self._another(builder)
        values = [_fresh(importer, a) for a in avals]
        with builder.block([v for array in values for v in array.reshape(-1)]) as block:
            outs = importer.jaxpr(closed, values)
            return block.close([a for out in outs for a in importer.scalars(out, self.name).reshape(-1)])


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
        out[at] = scalar_var(dtype)
    return out


def is_float(aval: Any) -> bool:
    """Whether an array has a derivative."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.numpy.floating))


def with_rule(imp: Importer, eqn: Any, operands: Sequence[Value], results: list[Value]) -> list[Value]:
    """Results of an equation that have the derivative that JAX has for it."""
    if not any(is_float(v.aval) for v in eqn.invars) or not any(is_float(v.aval) for v in eqn.outvars):
        return results
    jaxpr = eqn.params.get("call_jaxpr")
    name, is_exact = compat.described(jaxpr) if jaxpr is not None else (eqn.primitive.name, True)
    imp.locate()
    flat: list[Any] = []
    for value in (*operands, *results):
        flat += value.reshape(-1).tolist() if type(value) is np.ndarray else [None]
    if not all(isinstance(a, Literal | Var) for a in flat):
        if not is_exact:
            lost = LostRule(name, imp.builder.loc)
            imp.builder("custom", literal(0, DType.f32), rule=lost, result=0)
        return results
    if not any(isinstance(a, Var) for a in flat):
        return results
    rule = JaxRule(name, eqn, imp, is_exact=is_exact)
    atoms = flat[: sum(np.size(v) for v in operands)]
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


def without_derivative(imp: Importer, value: Value) -> Value:
    """A value through which nothing is differentiated."""
    if type(value) is not np.ndarray:
        return value
    out = np.empty(value.shape, object)
    for at in np.ndindex(*value.shape):
        atom: Any = value[at]
        plain = isinstance(atom, Var) and atom.dtype.is_float
        out[at] = imp.builder("custom", atom, rule="stop_gradient", result=0) if plain else atom
    return out


# Decompositions by sweeps or with choices are differentiated in closed form.
DERIVATIVES.update(dict.fromkeys(("cholesky", "eigh", "lu", "qr", "svd"), with_rule))
