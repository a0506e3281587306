"""Array code on values that differ among the devices of a `jax.shard_map`.

Buffers are traced with types that say nothing of devices. So an equation that mixes what varies with what does not,
which JAX would have cast (`pvary`), is told here, where the values are known, and a loop's function is traced again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.lax import cond_p, scan_p, while_p

from qdtrace.compose.jaxprs import evaluate_jaxpr
from qdtrace.errors import UnsupportedError
from qdtrace.trace import compat
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from jax import Array

    from qdtrace.trace.compat import AnyJaxpr, JaxprEqn

    Function = Callable[..., list[Array]]


def any_varies(values: Sequence[object]) -> bool:
    """Returns whether a value differs among devices."""
    return any(compat.varying(getattr(v, "aval", None)) for v in values)


def evaluate(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    """Evaluates an equation some of whose operands vary: the others are cast to vary along the same axes.

    Raises UnsupportedError where JAX finds that functions of the equation have other types.
    """
    if not any_varies(values):
        return compat.bind_eqn(eqn, values)
    if eqn.primitive.name == "pvary":
        known = compat.varying(jax.typeof(values[0]))
        axes = tuple(a for a in eqn.params["axes"] if a not in known)
        return [lax.pcast(values[0], axes, to="varying") if axes else values[0]]
    if eqn.primitive.name == "reshard" and eqn.params["dst_sharding"].mesh.empty:  # a type that says nothing of devices
        return list(values)
    values = _common(values)
    if eqn.primitive is compat.jit_p:
        return _function(eqn.params["jaxpr"])(*values)
    if not compat.holds_jaxpr(eqn):
        return compat.bind_eqn(eqn, values)
    if (run := _TRACED_AGAIN.get(eqn.primitive.name)) is not None and all(map(_is_of_axis, eqn.effects)):
        return run(eqn, values)
    try:
        return compat.bind_eqn(eqn, values)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"needs `{eqn.primitive.name}` between loops to take what differs among the devices of a jax.shard_map: "
            f"{str(error).splitlines()[0]}",
            loc=eqn_loc(eqn),
            help="give jax.shard_map the argument check_vma=False, or move it out of the qd.jit function",
        ) from error


def _function(closed: AnyJaxpr) -> Function:
    """Returns the function that a jaxpr is, of values that may vary."""
    return lambda *values: evaluate_jaxpr(closed, values, evaluate)


def _common(values: Sequence[Array]) -> list[Array]:
    return cast("list[Array]", compat.with_common_axes(values))


def _like(values: Sequence[Array], given: Sequence[Array]) -> list[Array]:
    """Returns results that vary as what was given does, all along the same axes."""
    return _common([*values, given[0]])[: len(values)] if values else []


def _scan(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    first, carries = compat.scan_counts(eqn.params)
    run, params = _function(eqn.params["jaxpr"]), eqn.params

    def body(carry: Sequence[Array], x: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        out = run(*values[:first], *carry, *x)
        return _like(out[:carries], values), out[carries:]

    start, xs = [*values[first : first + carries]], [*values[first + carries :]]
    carry, ys = lax.scan(body, start, xs, params["length"], params["reverse"], params["unroll"])
    return [*carry, *ys]


def _while(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    test, step = _function(eqn.params["cond_jaxpr"]), _function(eqn.params["body_jaxpr"])
    first = eqn.params["cond_nconsts"]
    start = first + eqn.params["body_nconsts"]
    return lax.while_loop(
        lambda carry: test(*values[:first], *carry)[0],
        lambda carry: _like(step(*values[first:start], *carry), values),
        list(values[start:]),
    )


def _cond(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    def branch(closed: AnyJaxpr) -> Function:
        run = _function(closed)
        return lambda *operands: _like(run(*operands), values)

    return lax.switch(values[0], [*map(branch, eqn.params["branches"])], *values[1:])


def _checkpoint(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    params = eqn.params
    run = jax.checkpoint(_function(params["jaxpr"]), prevent_cse=params["prevent_cse"], policy=params["policy"])
    return run(*values)


def _with_tangents(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    """Evaluates a call of a function with a rule for forward mode, whose jaxpr of tangents is told the axes, too."""
    run = jax.custom_jvp(_function(eqn.params["call_jaxpr"]))

    def rule(primals: Sequence[Array], tangents: Sequence[Array | SymbolicZero]) -> tuple[list[Array], list[Any]]:
        given = [not isinstance(t, SymbolicZero) for t in tangents]
        operands = [compat.new_var(v) for v in eqn.invars]
        call = eqn.replace(invars=operands)
        made, constants, nonzero = compat.jvp_of(compat.jaxpr_of([call], operands, eqn.outvars), given)
        moving = [t for t in tangents if not isinstance(t, SymbolicZero)]
        found = evaluate_jaxpr(made, [*primals, *moving], evaluate, constants)
        out = _like(found, primals)
        more = iter(out[len(nonzero) :])
        zeros = [SymbolicZero(compat.tangent_type(x)) for x in out[: len(nonzero)]]
        return out[: len(nonzero)], [next(more) if n else z for n, z in zip(nonzero, zeros, strict=True)]

    run.defjvp(rule, symbolic_zeros=True)
    return _like(run(*values), values)


def _with_backward(eqn: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    """Evaluates a call of a function with a rule for reverse mode, which JAX has told types without axes."""
    name, _ = compat.described(eqn.params["call_jaxpr"])
    run = jax.custom_jvp(_function(eqn.params["call_jaxpr"]))

    def refused(*_: object) -> NoReturn:
        raise UnsupportedError(
            f"the derivative rule of `{name}` between loops is of types that say nothing of the devices of a "
            "jax.shard_map",
            loc=eqn_loc(eqn),
            help="give jax.shard_map the argument check_vma=False, or call the function outside of the qd.jit function",
        )

    run.defjvp(refused)
    return _like(run(*values), values)


def _is_of_axis(effect: object) -> bool:
    """Returns whether an effect is that of a collective over a named axis, which each trace of it has."""
    return type(effect).__name__ == "NamedAxisEffect"


_TRACED_AGAIN: dict[str, Callable[[JaxprEqn, Sequence[Array]], list[Array]]] = {
    scan_p.name: _scan, while_p.name: _while, cond_p.name: _cond, "remat2": _checkpoint,
    "custom_jvp_call": _with_tangents, "custom_vjp_call": _with_backward,
}  # fmt: skip
"""Rules of what is traced again."""
