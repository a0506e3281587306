"""Rules of calls, which are taken in, and of loops with a constant number of iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from qdtrace.groups import pieces
from qdtrace.groups.registry import results_of, rule, run
from qdtrace.groups.tiles import RefusedError, Tile, spread
from qdtrace.trace import compat

if TYPE_CHECKING:
    from qdtrace.groups.registry import Scope, Value


@rule("jit", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call")
def _call(eqn: Any, scope: Scope) -> list[Value]:
    inner = compat.called_jaxpr(eqn)
    if inner is None:
        raise RefusedError(f"the primitive {eqn.primitive.name}")
    opened = compat.open_jaxpr(inner)
    places = [scope.places.get(v) for v in eqn.outvars]
    given = [scope.values[v] if isinstance(v, compat.Var) else scope.tile(v) for v in eqn.invars]
    made = run(opened, compat.constants_of(inner), given, places)
    return [made.values[v] if isinstance(v, compat.Var) else made.tile(v) for v in opened.outvars]


@rule("scan")
def _scan(eqn: Any, scope: Scope) -> list[Value]:
    params = eqn.params
    inner = params["jaxpr"]
    opened, constants = compat.open_jaxpr(inner), compat.constants_of(inner)
    n_consts, n_carry = compat.scan_counts(params)
    length, is_reverse = params["length"], params["reverse"]
    consts = [scope.tile(v) for v in eqn.invars[:n_consts]]
    start = [scope.tile(v) for v in eqn.invars[n_consts : n_consts + n_carry]]
    rows = [scope.memory(v) for v in eqn.invars[n_consts + n_carry :]]
    kept = [scope.places.get(v) for v in eqn.outvars[n_carry:]]
    shapes = [v.aval.shape for v in opened.invars[n_consts : n_consts + n_carry]]

    def step(k: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        at = length - 1 - k if is_reverse else k
        given = [*consts, *(Tile(x, s) for x, s in zip(carry, shapes, strict=False)), *(row.row(at) for row in rows)]
        with pieces.made_by() as conditions:
            made = results_of(opened, constants, given)
        for place, tile in zip(kept, made[n_carry:], strict=True):
            if place is not None:
                place.row(at).store(tile)
        is_right = pieces.all_of([carry[-1], *conditions])
        return (*(spread(tile, s) for tile, s in zip(made, shapes, strict=False)), is_right)

    values = (*(spread(tile, s) for tile, s in zip(start, shapes, strict=True)), jnp.bool_(True))
    made = lax.fori_loop(jnp.int32(0), jnp.int32(length), step, values) if length else values
    pieces.add_condition(made[-1])
    carried = [Tile(x, s) for x, s in zip(made, shapes, strict=False)]
    return [*carried, *kept]
