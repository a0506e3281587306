"""`lax.while_loop` that has a reverse: a loop around tasks keeps some of its states and runs from them again.

JAX differentiates a `while_loop` forward and refuses its reverse, because it does not know how many states to keep.
Here the states are in a stack of fixed size that thins itself, as inside of tasks (`autodiff/loops/thinning`): it keeps
states at multiples of a stride that doubles when the stack is full. The backward sweep recomputes the states in between
from the checkpoint before them, and keeps some of those in a second stack on the way.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from qdtrace.compose.direct import zero_tangent
from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.compat import Primitive, eval_jaxpr
from qdtrace.trace.dtypes import mode_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array
    from jax.core import ShapedArray
    from jax.typing import ArrayLike

    from qdtrace.trace.jaxprs import ClosedJaxpr

    Values = Sequence[Array]
    Tangents = Sequence[Array | ad.Zero]
    Arrays = tuple[Array, ...]
    Stack = tuple[Array, Array, Arrays]
    """Number of kept states, iteration of each, and the states."""
    Backward = tuple[Array, Array, Arrays, Arrays, Arrays]
    Sweep = tuple[Arrays, Array, Array, Array, Arrays]
    Advance = tuple[Array, Array, Arrays, Array, Arrays]

T = TypeVar("T")


@frozen(eq=False)
class Loop:
    """A loop as functions of the values that it uses and of those that it carries."""

    test: Callable[[Values, Values], Array]
    """The condition of the loop, as a function of used values and state."""
    step: Callable[[Values, Values], list[Array]]
    """One iteration, which returns the next state."""
    used: tuple[ShapedArray, ...]
    """Types of values that the loop uses and does not change."""
    state: tuple[ShapedArray, ...]
    """Types of the carried values."""
    stack_bytes: int
    """Bytes for kept states; at least six are kept."""

    @property
    def between(self) -> int:
        """The number of states that the backward sweep keeps between two checkpoints."""
        return max(min(self._slots // 3, 32), 2)

    @property
    def most(self) -> int:
        """The number of checkpoints that the forward sweep keeps, which is odd."""
        return min((self._slots - self.between - 1) // 2 * 2 - 1, 63)

    @property
    def _slots(self) -> int:
        return max(self.stack_bytes // max(sum(a.size * a.dtype.itemsize for a in self.state), 1), 6)

    @property
    def count(self) -> int:
        """The number of values that the loop takes."""
        return len(self.used) + len(self.state)

    @functools.cached_property
    def along(self) -> Loop:
        """The loop with tangents: it carries those of floats behind its state, and uses those of what it uses."""
        used, state = len(self.used), len(self.state)

        def test(values: Values, carried: Values) -> Array:
            return self.test(values[:used], carried[:state])

        def step(values: Values, carried: Values) -> list[Array]:
            operands = [*values[:used], *carried[:state]]
            given = _with_nothing(operands, [*values[used:], *carried[state:]])
            outs, found = jax.jvp(lambda *xs: self.step(xs[:used], xs[used:]), operands, given)
            return [*outs, *(t for v, t in zip(outs, found, strict=True) if is_float(v))]

        uses, carries = ((*some, *_floats(some)) for some in (self.used, self.state))
        return Loop(test, step, uses, carries, self.stack_bytes)

    def woven(self, values: Values, tangents: Values) -> list[Array]:
        """Returns the operands of `along`: values of the loop, and tangents of the floats among them."""
        return _woven(values, len(self.used), tangents, len(_floats(self.used)))

    def split(self, operands: Values) -> tuple[Values, Values, Values]:
        """Splits operands into used values, initial state, and the other operands of a derivative."""
        used = len(self.used)
        return operands[:used], operands[used : self.count], operands[self.count :]


def while_loop(
    condition: Callable[[T], object], body: Callable[[T], T], initial: T, stack_bytes: int
) -> T:
    """Runs `lax.while_loop` with a reverse, whose stacks take `stack_bytes`, or six states if those are larger."""
    leaves, tree = jax.tree.flatten(initial)
    leaves = [jnp.asarray(x) for x in leaves]

    def closed(function: Callable[[T], object]) -> ClosedJaxpr:
        return jax.make_jaxpr(lambda *values: jax.tree.leaves(function(jax.tree.unflatten(tree, values))))(*leaves)

    tested, stepped = closed(condition), closed(body)
    # values that vary over the devices of a `shard_map` may change any of the state
    types = list(map(jax.typeof, leaves))
    leaves = _as_varying([*tested.consts, *stepped.consts], leaves)
    if types != list(map(jax.typeof, leaves)):  # traced once where possible: loops in loops are traced again with it
        tested, stepped = closed(condition), closed(body)
    first = len(tested.consts)
    # what no iteration changes is used, so that states do not have it
    fixed = [a is b for a, b in zip(stepped.jaxpr.invars, stepped.jaxpr.outvars, strict=True)]
    consts = [*tested.consts, *stepped.consts]
    count = len(consts)

    def changing(values: Values) -> list[Array]:
        return [v for v, f in zip(values, fixed, strict=True) if not f]

    def whole(used: Values, state: Values) -> list[Array]:
        kept, changed = iter(used[count:]), iter(state)
        return [next(kept if f else changed) for f in fixed]

    def test(used: Values, state: Values) -> Array:
        return eval_jaxpr(tested.jaxpr, used[:first], *whole(used, state))[0]

    def step(used: Values, state: Values) -> list[Array]:
        return _as_varying(state, changing(eval_jaxpr(stepped.jaxpr, used[first:count], *whole(used, state))))

    used = [*consts, *(x for x, f in zip(leaves, fixed, strict=True) if f)]
    state = changing(leaves)
    loop = Loop(test, step, tuple(map(jax.typeof, used)), tuple(map(jax.typeof, state)), stack_bytes)
    return jax.tree.unflatten(tree, whole(used, loop_p.bind(*used, *state, loop=loop)))


def _as_varying(values: Values, tree: T) -> T:
    """Returns a pytree whose arrays vary over the devices of a `shard_map` if they or the values do."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, compat.with_common_axes([*values, *leaves])[len(values) :])


def run(*operands: Array, loop: Loop) -> list[Array]:
    """Returns the final state of the loop."""
    used, initial, _ = loop.split(operands)
    return list(jax.lax.while_loop(lambda s: loop.test(used, s), lambda s: tuple(loop.step(used, s)), tuple(initial)))


def is_float(value: object) -> bool:
    """Returns whether a value, or a type, has a derivative: floats and complex numbers have."""
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.inexact))


def directional(*operands: Array, loop: Loop) -> list[Array]:
    """Returns tangents of the floats that the loop carries, from tangents of all float operands."""
    values, tangents = operands[: loop.count], operands[loop.count :]
    return run(*loop.woven(values, tangents), loop=loop.along)[len(loop.state) :]


def _with_nothing(values: Values, tangents: Values) -> list[Array]:
    """Returns tangents of values, given those of floats."""
    given = iter(tangents)
    return [next(given) if is_float(v) else jnp.zeros(jnp.shape(v), jax.dtypes.float0) for v in values]


def adjoints(*operands: Array, loop: Loop) -> list[Array]:
    """Returns adjoints of all float operands, from those of the floats that the loop carries."""
    used, initial, given = loop.split(operands)
    trips, stride, kept = _sweep(loop, used, initial)
    inner = _stack(initial, loop.between)
    positions = jnp.zeros(loop.between, jnp.int32)
    zeros = tuple(jnp.zeros_like(v) for v in used if is_float(v))

    def back(k: Array, carry: Backward) -> Backward:
        count, positions, inner, of_used, of_state = carry
        t = trips - 1 - k
        start, state = jax.lax.cond(
            count > 0,
            lambda: (positions[jnp.maximum(count - 1, 0)], _at(inner, jnp.maximum(count - 1, 0))),
            lambda: (t - t % stride, _at(kept, _slot(t - t % stride, loop.most))),
        )
        count, positions, inner, state = _advance(loop, used, (start, t), state, (count, positions, inner))
        arrived = jnp.logical_and(count > 0, positions[jnp.maximum(count - 1, 0)] == t)
        parts = _floats(used), _floats(state)
        _, pull = jax.vjp(lambda u, s: _floats(loop.step(_merged(used, u), _merged(state, s))), *parts)
        more, of_state = pull(list(of_state))
        of_used = tuple(a + b for a, b in zip(of_used, more, strict=True))
        return _as_varying(state, (count - arrived, positions, inner, of_used, tuple(of_state)))

    start = _as_varying(initial, (jnp.int32(0), positions, inner, zeros, tuple(given)))
    *_, of_used, of_state = jax.lax.fori_loop(0, trips, back, start)
    return [*of_used, *of_state]


def _woven(ones: Values, count: int, others: Values, other_count: int) -> list[Array]:
    """Returns two sequences, each with a part of used values and one of carried ones, as one."""
    return [*ones[:count], *others[:other_count], *ones[count:], *others[other_count:]]


def _floats(values: Sequence[T]) -> list[T]:
    return [v for v in values if is_float(v)]


def _merged(values: Values, floats: Values) -> list[Array]:
    """Returns the values with their floats replaced."""
    new = iter(floats)
    return [next(new) if is_float(v) else v for v in values]


def _stack(state: Values, slots: int) -> tuple[Array, ...]:
    with mode_for(v.dtype for v in state):
        return tuple(jnp.zeros((slots, *v.shape), v.dtype) for v in state)


def _at(stack: Values, slot: Array) -> tuple[Array, ...]:
    return tuple(jax.lax.dynamic_index_in_dim(ref, slot, keepdims=False) for ref in stack)


def _saved(stack: Values, slot: Array, state: Values, when: Array) -> tuple[Array, ...]:
    def save() -> tuple[Array, ...]:
        pairs = zip(stack, state, strict=True)
        return tuple(jax.lax.dynamic_update_index_in_dim(ref, v, slot, 0) for ref, v in pairs)

    return jax.lax.cond(when, save, lambda: tuple(stack))


def _slot(t: Array, most: int) -> Array:
    return jnp.where(t == 0, 0, 1 + (t - 1) % most)


def _sweep(loop: Loop, used: Values, initial: Values) -> tuple[Array, Array, tuple[Array, ...]]:
    """Runs the loop forward; returns its trip count, the stride and the kept states."""

    def step(carry: Sweep) -> Sweep:
        state, t, following, stride, kept = carry
        is_next = t == following
        stride = jnp.where(jnp.logical_and(is_next, t > loop.most * stride), 2 * stride, stride)
        kept = _saved(kept, _slot(t, loop.most), state, is_next)
        following = jnp.where(is_next, t + stride, following)
        return _as_varying(state, (tuple(loop.step(used, state)), t + 1, following, stride, kept))

    one, zero = jnp.int32(1), jnp.int32(0)
    start = _as_varying(initial, (tuple(initial), zero, zero, one, _stack(initial, 1 + loop.most)))
    _, trips, _, stride, kept = jax.lax.while_loop(lambda carry: loop.test(used, carry[0]), step, start)
    return trips, stride, kept


def _advance(loop: Loop, used: Values, span: tuple[Array, Array], state: Values, stack: Stack) -> tuple[*Stack, Values]:
    """Runs the loop from one iteration to another and keeps states in half of the free slots."""
    start, stop = span
    count, positions, inner = stack
    half = jnp.maximum((loop.between - count + 1) // 2, 1)
    distance = (stop - start) // (half + 1) + 1

    def step(at: Array, carry: Advance) -> Advance:
        count, positions, inner, following, state = carry
        state = tuple(loop.step(used, state))
        wanted = jnp.logical_and(at + 1 == following, jnp.logical_and(at + 1 < stop, count < loop.between))
        slot = jnp.minimum(count, loop.between - 1)
        inner = _saved(inner, slot, state, wanted)
        positions = jnp.where(wanted, positions.at[slot].set(at + 1), positions)
        return _as_varying(
            state, (count + wanted, positions, inner, jnp.where(wanted, following + distance, following), state)
        )

    first = _as_varying(state, (count, positions, inner, start + distance, tuple(state)))
    count, positions, inner, _, state = jax.lax.fori_loop(start, stop, step, first)
    return count, positions, inner, state


# The primitives: the loop, its derivative along a direction, its adjoint.


def _primitive(
    name: str, function: Callable[..., list[Array]], types: Callable[[Sequence[ShapedArray], Loop], list[ShapedArray]]
) -> Primitive:
    made = Primitive(name)
    made.multiple_results = True
    compat.define(made, lambda *operands, loop, **_: types(operands, loop), None, function)
    return made


def _own(operands: Values, loop: Loop, order: int) -> int:
    """Returns the number of operands of adjoints before those that the adjoints are linear in."""
    own, more = loop.count, len(_floats(loop.state))
    for _ in range(order):
        own += more
        more = len(_floats(operands[:own]))
    return own


def adjoints_along(*operands: Array, loop: Loop, order: int) -> list[Array]:
    """Returns adjoints, differentiated `order` times: each time tangents of all floats are more operands."""
    if not order:
        return adjoints(*operands, loop=loop)
    own = _own(operands, loop, order)
    values, given = operands[:own], tuple(_with_nothing(operands[:own], operands[own:]))
    return list(jax.jvp(lambda *xs: adjoints_along(*xs, loop=loop, order=order - 1), values, given)[1])


loop_p = _primitive("qd_loop", run, lambda _, loop: list(loop.state))
directional_p = _primitive("qd_loop_directional", directional, lambda _, loop: _floats(loop.state))
adjoints_p = _primitive("qd_loop_adjoints", adjoints_along, lambda operands, loop: _floats(operands[: loop.count]))


def _filled(values: Values, tangents: Tangents) -> list[Array]:
    """Returns the tangents of float operands, with zeros for those that are symbolic."""
    pairs = [(v, t) for v, t in zip(values, tangents, strict=True) if is_float(v)]
    return [jnp.zeros_like(v) if isinstance(t, ad.Zero) else t for v, t in pairs]


def _jvp(values: Values, tangents: Tangents, *, loop: Loop) -> object:
    outs = loop_p.bind(*values, loop=loop)
    found = iter(directional_p.bind(*values, *_filled(values, tangents), loop=loop))
    return outs, [next(found) if is_float(v) else zero_tangent(v) for v in outs]


def _jvp_of_directional(operands: Values, tangents: Tangents, *, loop: Loop) -> object:
    outs, count = directional_p.bind(*operands, loop=loop), loop.count
    turned = _filled(operands[count:], tangents[count:])
    if all(type(t) is ad.Zero for t in tangents[:count]):  # linear in all others
        return outs, directional_p.bind(*operands[:count], *turned, loop=loop)
    at, floats = loop.woven(operands[:count], operands[count:]), len(_floats(loop.used))
    direction = _woven(_filled(operands[:count], tangents[:count]), floats, turned, floats)
    return outs, directional_p.bind(*at, *direction, loop=loop.along)[len(outs) :]


def _jvp_of_adjoints(operands: Values, tangents: Tangents, *, loop: Loop, order: int) -> object:
    # a rule for reverse mode need not be linear in adjoints: they are operands as all others are
    outs = adjoints_p.bind(*operands, loop=loop, order=order)
    return outs, adjoints_p.bind(*operands, *_filled(operands, tangents), loop=loop, order=order + 1)


def _transpose(cotangents: Values, *operands: Array, loop: Loop) -> list[Array | None]:
    given = [ad.instantiate_zeros(c) for c in cotangents]
    return [*[None] * loop.count, *adjoints_p.bind(*operands[: loop.count], *given, loop=loop, order=0)]


def _transpose_of_adjoints(cotangents: Values, *operands: Array, loop: Loop, order: int) -> list[Array | None]:
    """Returns the transpose in the last operands: adjoints are the transpose of tangents, along the `cotangents`."""
    given, own = [ad.instantiate_zeros(c) for c in cotangents], _own(operands, loop, order)

    def along(*values: Array, order: int) -> ArrayLike:
        """Returns the product of the adjoints of one order less and `given`."""
        last = _own(values, loop, order)
        if not order:
            found = directional_p.bind(*values[:last], *given, loop=loop)
            return sum(jnp.sum(t * c) for t, c in zip(found, values[last:], strict=True))
        tangents = _with_nothing(values[:last], values[last:])
        return jax.jvp(lambda *xs: along(*xs, order=order - 1), values[:last], tuple(tangents))[1]

    if not order:
        return [*[None] * own, *directional_p.bind(*operands[:own], *given, loop=loop)]
    known = operands[:own]
    product, pull = jax.vjp(lambda *xs: along(*_merged(known, xs), order=order - 1), *_floats(known))
    return [*[None] * own, *pull(jnp.ones_like(product))]


ad.primitive_jvps[loop_p] = _jvp
ad.primitive_jvps[directional_p] = _jvp_of_directional
ad.primitive_jvps[adjoints_p] = _jvp_of_adjoints
ad.primitive_transposes[directional_p] = _transpose
ad.primitive_transposes[adjoints_p] = _transpose_of_adjoints
