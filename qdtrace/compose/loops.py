"""`qd.while_` around parallel loops: `lax.while_loop` over the contents of the buffers that it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from qdtrace.compose.idle_lanes import RULES
from qdtrace.compose.items import has_jump
from qdtrace.compose.jaxprs import is_literal
from qdtrace.compose.loop_batching import FUNCTIONS, batching_rule
from qdtrace.compose.loop_derivative import while_loop
from qdtrace.compose.segment import BufferState, Constant
from qdtrace.compose.stack_budget import memory_part
from qdtrace.errors import UnsupportedError
from qdtrace.trace import compat
from qdtrace.trace.markers import break_p
from qdtrace.trace.tree import hints_of, inner_equations

if TYPE_CHECKING:
    from typing import Any

    from jax.typing import ArrayLike

    from qdtrace.compose.stager import Stager
    from qdtrace.trace.compat import JaxprEqn

    Contents = tuple[Any, ...]

batching.fancy_primitive_batchers.update(RULES)
for _primitive in FUNCTIONS:
    batching.primitive_batchers[_primitive] = batching_rule(_primitive)

STACK_BYTES = 1 << 30
"""The most bytes of states that the reverse of a loop around tasks may keep."""


def loop_of_tasks(stager: Stager, region: JaxprEqn) -> None:
    """Stages a `qd.while_` around tasks: its condition and its body become functions of the buffers' contents."""
    (iteration, tested), loc = region.params["jaxprs"], region.params["loc"]
    (test,) = tested.outvars
    if "most" in hints_of(region):
        raise UnsupportedError(
            "the option most of qd.while_ needs a loop that one thread runs, got one around parallel loops",
            loc=loc,
            help="leave it out: of this loop the states that `ad_stack_memory` allows are kept",
        )
    used = [v for v in region.invars if not is_literal(v)]
    items = inner_equations(region)
    states = list(dict.fromkeys(e for v in used if isinstance(e := stager.env[v], BufferState)))
    others = [v for v in used if not isinstance(stager.env[v], BufferState)]
    # all values vary over the devices of a `shard_map`, so that adjoints are summed after the loop, not in it
    values = compat.with_common_axes([*map(stager.content, states), *map(stager.value, others)])
    contents = tuple(values[: len(states)])
    fixed = {v: Constant(value) for v, value in zip(others, values[len(states) :], strict=True)}
    starts = stager.holds()
    if any(s in stager.segment.refs for s in states):
        stager.flush()
    index = {s: k for k, s in enumerate(states)}

    def inside(values: Contents) -> tuple[Stager, list[BufferState]]:
        inner = stager.another()
        local = [BufferState(s.shape, s.dtype, v, hint=s.hint) for s, v in zip(states, values, strict=True)]
        for v in used:
            entry = stager.env[v]
            inner.env[v] = local[index[entry]] if isinstance(entry, BufferState) else fixed[v]
        inner.note_uses(items, [v for v in used if isinstance(stager.env[v], BufferState)])
        return inner, local

    def evaluate(values: Contents) -> ArrayLike:
        inner, local = inside(values)
        if not is_literal(test):
            inner.last_use[test] = len(items)
        inner.run(tested.eqns)
        (result,) = inner.tied([inner.value(test)])
        inner.flush()
        if any(a.value is not b for a, b in zip(local, values, strict=True)):
            raise UnsupportedError(
                "needs a condition without stores in a qd.while_ around loops",
                loc=loc,
                help="store in the body of the loop",
            )
        return result

    def condition(carry: tuple[ArrayLike, Contents]) -> ArrayLike:
        goes_on, values = carry
        return jax.lax.cond(goes_on, evaluate, lambda _: jnp.bool_(False), values) if guarded else evaluate(values)

    def body(carry: tuple[ArrayLike, Contents]) -> tuple[ArrayLike, Contents]:
        inner, local = inside(carry[1])
        nonlocal is_tied
        inner.run(iteration.eqns)
        goes_on = jnp.bool_(True) if inner.leaves is None else jnp.logical_not(inner.leaves)
        after = [inner.content(state) for state in local]
        # what no task of the body changes has no dependence on its checks, so that it is told from the state
        tied = inner.tied([goes_on, *(new for new, old in zip(after, carry[1], strict=True) if new is not old)])
        is_tied = is_tied or inner.is_tied
        changed = iter(tied[1:])
        return tied[0], tuple(old if new is old else next(changed) for new, old in zip(after, carry[1], strict=True))

    limit = min(STACK_BYTES, memory_part(stager.options))
    guarded = bool(stager.conditions) or has_jump(region, "qd_break")
    is_tied = False
    goes_on, outs = while_loop(condition, body, (starts, contents), limit)
    if is_tied:
        stager.tokens.append(goes_on)
    for state, out in zip(states, outs, strict=True):
        state.value = out


def jump(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages `qd.break_if` or `qd.continue_if` in a `qd.while_` around loops: later items of the body are idle."""
    taken = jnp.logical_and(stager.holds(), stager.value(eqn.invars[0]))
    if eqn.primitive is break_p:
        stager.leaves = taken if stager.leaves is None else jnp.logical_or(stager.leaves, taken)
    goes_on = compat.new_scalar(bool)
    stager.env[goes_on] = Constant(jnp.logical_not(taken))
    stager.conditions = (*stager.conditions, goes_on)
