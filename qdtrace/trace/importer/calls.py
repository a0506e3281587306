"""Primitives that wrap other jaxprs, or call Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import UnsupportedError
from qdtrace.trace import compat
from qdtrace.trace.importer.libraries import callback_of
from qdtrace.trace.importer.registry import DERIVATIVES, PLACED, rule
from qdtrace.trace.importer.values import MemoryArray

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from qdtrace.trace.compat import Jaxpr, JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value
    from qdtrace.trace.jaxprs import AnyJaxpr

_RULES = "JAX makes the rule of the whole equation when something is differentiated"
_DERIVATIVES = "it is for derivatives, which JAX took while tracing"
_WHOLE = "it is for XLA, which does not see the call"


@rule(
    "jit", "remat2",
    ignores={
        **dict.fromkeys(("prevent_cse", "differentiated", "policy"), _DERIVATIVES),
        **dict.fromkeys(("in_shardings", "out_shardings", "in_layouts", "out_layouts", "ctx_mesh"), PLACED),
        **dict.fromkeys(("donated_invars", "keep_unused", "inline", "compiler_options_kvs", "name"), _WHOLE),
    },
)  # fmt: skip
def call(imp: Importer, eqn: JaxprEqn, *operands: Value, jaxpr: AnyJaxpr) -> list[Value]:
    """Imports a function that runs once on its operands."""
    return imp.call(jaxpr, operands)


@rule("closed_call", "eval_jaxpr")
def closed_call(imp: Importer, eqn: JaxprEqn, *operands: Value, call_jaxpr: AnyJaxpr) -> list[Value]:
    """Imports a function that runs once, under JAX's other name of the parameter."""
    return imp.call(call_jaxpr, operands)


@rule(
    "custom_jvp_call", "custom_vjp_call",
    ignores=dict.fromkeys(
        ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros", "num_consts"), _RULES
    ),
)  # fmt: skip
def call_with_rules(imp: Importer, eqn: JaxprEqn, *operands: Value, call_jaxpr: AnyJaxpr) -> list[Value]:
    """Imports a function with a derivative rule of its own."""
    of_element = compat.function_of_elements(eqn)
    if of_element is not None:
        return [imp.each(of_element, eqn, {}, operands)]
    return imp.call(call_jaxpr, operands)


@rule("stop_gradient")
def stop_gradient(imp: Importer, eqn: JaxprEqn, x: Value) -> Value:
    """Returns the operand: only derivatives differ."""
    return x


@rule("custom_vmap_call", ignores=dict.fromkeys(("rule", "in_tree", "out_tree"), "in a lane nothing is mapped"))
def custom_vmap_call(imp: Importer, eqn: JaxprEqn, *operands: Value, call: AnyJaxpr) -> list[Value]:
    """Imports a function with a rule of its own for `jax.vmap`."""
    return imp.call(call, operands)


@rule("custom_linear_solve")
def custom_linear_solve(
    imp: Importer, eqn: JaxprEqn, *operands: Value, const_lengths: Sequence[int], jaxprs: Any
) -> list[Value]:
    """Runs the user's `solve`; the other jaxprs are for derivatives."""
    lengths = list(const_lengths)
    before, count, total = sum(lengths[:2]), lengths[2], sum(lengths)
    given = [*operands[before : before + count], *operands[total:]]
    count = len(compat.open_jaxpr(jaxprs.matvec).outvars)  # what `has_aux` is for comes behind
    solve = compat.open_jaxpr(jaxprs.solve)
    in_memory = any(isinstance(v, MemoryArray) for v in operands)
    if in_memory and _is_linear(solve, set(solve.invars[len(solve.invars) - len(operands) + total :])):
        return imp.call(jaxprs.solve, given)  # its steps have the transpose; a solver that iterates needs its own
    return DERIVATIVES["transposed"](imp, eqn, operands, jaxprs.solve, given, count)


_LINEAR_IN = {
    **dict.fromkeys(("reshape", "transpose", "broadcast_in_dim", "squeeze", "copy", "neg", "gather"), 0),
    "triangular_solve": 1,
}
"""The operand that a primitive is linear in, of those that take a right side through the factors of a matrix."""


def _is_linear(jaxpr: Jaxpr, unknown: set[compat.Var]) -> bool:
    """Returns whether each equation is linear in variables that depend on `unknown` ones, to which these are added."""
    for eqn in jaxpr.eqns:
        changing = [k for k, v in enumerate(eqn.invars) if isinstance(v, compat.Var) and v in unknown]
        called = compat.called_jaxpr(eqn)
        if called is not None:
            inner = compat.open_jaxpr(called)
            found = {inner.invars[k] for k in changing}
            if not _is_linear(inner, found):
                return False
            results = zip(eqn.outvars, inner.outvars, strict=True)
            unknown.update(v for v, own in results if isinstance(own, compat.Var) and own in found)
        elif changing:
            if changing != [_LINEAR_IN.get(eqn.primitive.name)]:
                return False
            unknown.update(eqn.outvars)
    return True


@rule("call_hi_primitive", takes_all="JAX itself lowers the equation with them")
def call_hi_primitive(imp: Importer, eqn: JaxprEqn, *operands: Value, **_: object) -> list[Value]:
    """Imports an operation that JAX itself lowers to ordinary primitives, and may have a transpose for."""
    of_element = compat.hijax_function_of_elements(eqn)
    if of_element is not None:
        return [imp.each(of_element, eqn, {}, operands)]
    return DERIVATIVES["transposed"](imp, eqn, operands, compat.lower_hijax(eqn), list(operands))


@rule("pure_callback", takes_all="what the rule does not refuse is told by the function")
def pure_callback(imp: Importer, eqn: JaxprEqn, *operands: Value, **_: object) -> list[Value]:
    """Imports a callback that a library's module knows; refuses others."""
    found = callback_of(imp, eqn, operands)
    return io_callback(imp, eqn) if found is None else found


@rule("io_callback", takes_all="it is refused")
def io_callback(imp: Importer, eqn: JaxprEqn, *_operands: Value, **_: object) -> list[Value]:
    """Refuses a callback, as kernels cannot call Python."""
    raise UnsupportedError(
        f"`{eqn.primitive.name}` calls Python, which a loop body cannot do",
        loc=imp.here(),
        help="call it outside of the loop, on whole arrays",
    )
