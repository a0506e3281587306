"""Linear functions of which only the transpose is known: tangents of `jax.custom_vjp` functions.

JAX writes `custom_lin(residuals, tangents)` for them, with the backward function of the rule. Reverse mode goes back
through such an equation by that function. Nothing else can be done with it: its value is taken as zero, as that of
tangents is in a transpose, and forward mode is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import GradientError, UnsupportedError
from qdtrace.ir.program import literal
from qdtrace.trace import compat
from qdtrace.trace.importer.derivative_rules import imported_rule
from qdtrace.trace.importer.registry import DERIVATIVES, rule
from qdtrace.trace.importer.values import array_of, is_pair, split_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Block
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value


MOST = 4096
"""Elements of an array that a backward function may take: a solver of steps hands over what it kept of them."""
MOST_TIES = 1 << 20
"""Operands of the equations of one backward function: each result has all of them."""


class TransposedRule:
    """The backward function of a `jax.custom_vjp`, on scalars."""

    is_exact = False

    def __init__(self, name: str, eqn: Any, residuals: int, known: dict[int, Any], imp: Importer) -> None:
        """`known` has the operands that are constants: a backward function may ask which value they have."""
        self._known = known
        self.name = name
        self.residuals = residuals
        """How many of the operands are no tangents."""
        self._eqn = eqn
        self._made_another = imp.another
        self._loc = imp.builder.loc
        self._block: Block | None = None

    def __str__(self) -> str:
        return self.name

    def tangents(self) -> Block:
        """Refuses."""
        raise GradientError(
            f"`{self.name}` has a rule for reverse mode alone (jax.custom_vjp), got forward mode",
            loc=self._loc,
            help="use jax.grad or jax.vjp once, or jax.jit around the derivative, or a jax.custom_jvp rule",
        )

    def adjoints(self) -> Block:
        """Adjoints of the operands: zeros for residuals."""
        if self._block is None:
            self._block = self._imported()
        return self._block

    def _another(self, builder: Builder) -> Importer:
        importer = self._made_another(builder)
        importer.most_scalars = MOST
        return importer

    def _imported(self) -> Block:
        params = self._eqn.params
        avals = [v.aval for v in self._eqn.invars]
        outs = [a for a in params["out_avals"] if _is_inexact(a)]
        count = params["num_res"]

        def backward(*values: Any) -> list[Any]:
            given = iter(values[len(avals) :])
            # an adjoint here is that of real and imaginary part, and JAX's is its conjugate
            cotangents = [
                jnp.conj(next(given)) if _is_inexact(a) else np.zeros(a.shape, jax.dtypes.float0)
                for a in params["out_avals"]
            ]
            residuals = [self._known.get(k, value) for k, value in enumerate(values[:count])]
            found = compat.transposed(params, residuals, cotangents)
            zeros = [jnp.zeros(a.shape, a.dtype) for a in avals[:count] if _is_inexact(a)]
            return [*zeros, *(jnp.conj(x).astype(a.dtype) for x, a in zip(found, avals[count:], strict=True))]

        return imported_rule(self.name, backward, [*avals, *outs], self._another, self._loc)


class LinearRule:
    """The transpose that JAX has for an equation which is linear in some of its operands, on scalars."""

    is_exact = True

    def __init__(self, name: str, eqn: Any, imp: Importer, count: int) -> None:
        """`count` of the results are linear; those behind them have no tangents."""
        self.name = name
        self._eqn = eqn
        self._outvars = eqn.outvars[:count]
        self._another = imp.another
        self._loc = imp.builder.loc
        self._blocks: dict[tuple[bool, ...], Block] = {}

    def __str__(self) -> str:
        return self.name

    def tangents(self) -> Block:
        """Refuses: that is for programs which JAX has not linearised."""
        raise GradientError(
            f"`{self.name}` has a derivative by the rules of JAX alone, got a program that has others",
            loc=self._loc,
            help="call it in a qd.jit function or a loop of its own",
        )

    adjoints = tangents

    def adjoints_of(self, linear: tuple[bool, ...]) -> Block:
        """Adjoints of the operands, of which it has those that are linear: a mask of their scalars."""
        avals = [v.aval for v in self._eqn.invars]
        sizes = [int(np.prod(a.shape)) * (2 if is_pair(a) else 1) for a in avals]
        ends = np.cumsum(sizes)
        moved = tuple(any(linear[end - size : end]) for end, size in zip(ends, sizes, strict=True))
        if moved not in self._blocks:
            self._blocks[moved] = self._imported(avals, moved)
        return self._blocks[moved]

    def _imported(self, avals: list[Any], moved: tuple[bool, ...]) -> Block:
        outs = [v.aval for v in self._outvars if _is_inexact(v.aval)]
        places = [k for k, is_moved in enumerate(moved) if is_moved]

        def backward(*values: Any) -> list[Any]:
            def run(*changed: Any) -> list[Any]:
                given = dict(zip(places, changed, strict=True))
                found = compat.bind_eqn(self._eqn, [given.get(k, v) for k, v in enumerate(values[: len(avals)])])
                return [x for x, v in zip(found, self._outvars, strict=False) if _is_inexact(v.aval)]

            likes = [jax.ShapeDtypeStruct(avals[k].shape, avals[k].dtype) for k in places]
            # an adjoint here is that of real and imaginary part, and JAX's is its conjugate
            pulled = jax.linear_transpose(run, *likes)([jnp.conj(c) for c in values[len(avals) :]])
            found = dict(zip(places, pulled, strict=True))
            kept = [(k, a) for k, a in enumerate(avals) if _is_inexact(a)]
            return [jnp.conj(found[k]) if k in found else jnp.zeros(a.shape, a.dtype) for k, a in kept]

        return imported_rule(self.name, backward, [*avals, *outs], self._another, self._loc)


class IterativeRule:
    """What stands for a linear function whose steps are not linear: it has no transpose in memory."""

    is_exact = True

    def __init__(self, name: str, loc: Any) -> None:
        self.name = name
        self._loc = loc

    def __str__(self) -> str:
        return f"steps of {self.name}"

    def tangents(self) -> Block:
        """Refuses."""
        raise GradientError(
            f"`{self.name}` of arrays that are too large for registers has no transpose here: it iterates, so it is "
            "linear as a whole and not step by step",
            loc=self._loc,
            help="give it at most 256 elements, use a direct solver, or take the derivative inside of the lane",
        )

    adjoints = tangents


def with_transpose(
    imp: Importer, eqn: Any, operands: Sequence[Value], closed: Any, given: list[Value], count: int | None = None
) -> list[Value]:
    """Results of an equation, which `closed` gives for `given`, transposed as JAX does it if all fit into registers.

    Others are transposed step by step; those of a function that iterates are refused then. `count` of the results are
    linear, or all.
    """
    name = eqn.primitive.name
    if not any(_is_inexact(v.aval) for v in eqn.outvars):
        return imp.call(closed, given)
    try:
        # before it runs, as it may change an operand in place
        arrays = [imp.scalars(v, name) for v in operands]
    except UnsupportedError:
        return _step_by_step(imp, eqn, closed, imp.call(closed, given))
    results = imp.call(closed, given)[: len(eqn.outvars)]
    try:
        outs = [imp.scalars(v, name) for v in results]
    except UnsupportedError:
        return _step_by_step(imp, eqn, closed, results)
    imp.locate()
    flat = lambda x, v: (split_pairs(x) if is_pair(v.aval) else x).reshape(-1).tolist()  # noqa: E731
    atoms = [a for x, v in zip(arrays, eqn.invars, strict=True) for a in flat(x, v)]
    count = len(outs) if count is None else count
    found, position = LinearRule(name, eqn, imp, count), 0
    made: list[Value] = []
    for k, (value, var) in enumerate(zip(outs, eqn.outvars, strict=True)):
        if k >= count or not _is_inexact(var.aval):
            made.append(value)
            continue
        elements: list[Any] = []
        for element in value.reshape(-1):
            parts = element if type(element) is tuple else (element,)
            tied = [imp.builder("custom", p, *atoms, rule=found, result=position + j) for j, p in enumerate(parts)]
            elements.append(tuple(tied) if type(element) is tuple else tied[0])
            position += len(parts)
        made.append(array_of(elements, var.aval.shape))
    return made


def _step_by_step(imp: Importer, eqn: Any, closed: Any, results: list[Value]) -> list[Value]:
    results = results[: len(eqn.outvars)]
    if not any(e.primitive.name == "while" for e in compat.all_eqns(compat.open_jaxpr(closed).eqns)):
        return results
    imp.locate()
    rule = IterativeRule(eqn.primitive.name, imp.builder.loc)
    avals = [v.aval for v in eqn.outvars]
    return [_tied(imp, v, a, rule) if _is_inexact(a) else v for v, a in zip(results, avals, strict=True)]


def _tied(imp: Importer, value: Value, aval: Any, rule: IterativeRule) -> Value:
    """A value of which one element is tied to the rule: whatever has a derivative through it meets the rule."""
    if isinstance(value, np.ndarray):
        value, first = value.copy(), (0,) * value.ndim
        value[first] = _with_rule(imp, value[first], rule)
        return value
    value = imp.own(value, imp.dtype_of(aval), is_pair(aval))
    at = [imp.index(0)] * value.ndim
    imp.store(value.var, _with_rule(imp, imp.element(value, at), rule), at)
    return value


def _with_rule(imp: Importer, element: Any, rule: IterativeRule) -> Any:
    if type(element) is tuple:
        return tuple(_with_rule(imp, part, rule) for part in element)
    return imp.builder("custom", element, element, rule=rule, result=0)


DERIVATIVES["transposed"] = with_transpose


def _is_inexact(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def _constant(atom: Any) -> Any:
    value = np.asarray(atom.val, atom.aval.dtype)[()]
    return bool(value) if value.dtype == np.bool_ else value


@rule("custom_lin", takes_all="the rule is made of the whole equation")
def custom_lin(imp: Importer, eqn: Any, *operands: Value, **_: Any) -> list[Value]:
    """Zeros, whose adjoints go back by the backward function."""
    imp.locate()
    name = compat.name_of_rule(eqn.params)
    sizes = [int(v.aval.size) * (2 if is_pair(v.aval) else 1) for v in (*eqn.invars, *eqn.outvars)]
    taken, given = sum(sizes[: len(operands)]), sum(sizes[len(operands) :])
    if max(sizes) > MOST or taken * given > MOST_TIES:
        raise GradientError(
            f"`{name}` has a derivative rule for arrays that are too large for registers",
            loc=imp.builder.loc,
            help="call it on arrays of at most 256 elements, or element by element",
        )
    atoms: list[Any] = []
    residuals = 0
    for k, (value, var) in enumerate(zip(operands, eqn.invars, strict=True)):
        array = imp.scalars(value, name, MOST)
        flat = (split_pairs(array) if is_pair(var.aval) else array).reshape(-1)
        atoms += flat.tolist()
        residuals += len(flat) if k < eqn.params["num_res"] else 0
    known = {k: _constant(v) for k, v in enumerate(eqn.invars) if isinstance(v, compat.Literal)}
    found = TransposedRule(name, eqn, residuals, known, imp)
    results: list[Value] = []
    position = 0
    for var in eqn.outvars:
        if not _is_inexact(var.aval):
            results.append(array_of([literal(0, imp.index_dtype)] * int(np.prod(var.aval.shape)), var.aval.shape))
            continue
        zero = literal(0, imp.dtype_of(var.aval))
        width = 2 if is_pair(var.aval) else 1
        elements: list[Any] = []
        for _element in range(int(np.prod(var.aval.shape))):
            made = [imp.builder("custom", zero, *atoms, rule=found, result=position + k) for k in range(width)]
            elements.append(tuple(made) if width == 2 else made[0])
            position += width
        results.append(array_of(elements, var.aval.shape))
    return results
