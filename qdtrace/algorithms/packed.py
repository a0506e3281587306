"""`qd_packed`, the primitive behind `qd.compact`: elements under a mask, moved to the front of their row in order.

It is linear in the elements. On a CPU long rows are tasks: parts count what they keep, and each moves its own behind
that of the parts before. On a GPU the flags of 32 elements are a word, and a thread finds the places of its own by the
bits before them. All else is a running sum and a scatter of XLA. Masks are (rows, n), elements (rows, n, width).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from qdtrace.algorithms.arguments import compiled
from qdtrace.algorithms.rows import in_steps, last_step, with_lanes_first
from qdtrace.api import jit
from qdtrace.trace import compat
from qdtrace.trace.allocation import empty, zeros
from qdtrace.trace.conditions import when
from qdtrace.trace.importer import def_import_rule
from qdtrace.trace.indexing import as_value
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Sequence

packed_p = compat.Primitive("qd_packed")
packed_p.multiple_results = True
LEAST = 1 << 12
"""Elements of a row from which on tasks are faster than XLA's operations."""
PART = 1 << 14
"""Fewest elements of a part."""
MOST_PARTS = 64
WORD = 32
"""Flags of one word of a mask's bits."""
OF_THREAD = 4
"""Elements of a thread of a GPU: a quarter of the blocks, which take longer to start than to run."""
STEP = 8
"""Elements of one step of a loop over a part: whether all have room is asked once."""


def packed(mask: jax.Array, *xs: jax.Array, size: int) -> list[jax.Array]:
    """Returns the count of true elements of each row of a mask, and the elements of `xs` there, `size` a row.

    What is behind the last element is zero; elements that have no room are left out.
    """
    return [as_value(x) for x in _packed(mask, *xs, size=size)]


def _places(mask: Any, size: int) -> Any:
    """Returns where each element goes; `size` or more if nowhere."""
    return jnp.where(mask, jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, size)


def _by_xla(mask: Any, *xs: Any, size: int) -> list[Any]:
    places = _places(mask, size)

    def moved(x: Any, row: Any) -> Any:
        room = jnp.zeros((size, x.shape[1]), x.dtype)
        return room.at[row].set(x, mode="drop") if size else room  # JAX cannot transpose a scatter into nothing

    return [mask.sum(axis=1, dtype=jnp.int32), *(jax.vmap(moved)(x, places) for x in xs)]


def _by_tasks(mask: Any, *xs: Any, size: int) -> list[Any]:
    if mask.shape[1] < LEAST or size == 0:
        return _by_xla(mask, *xs, size=size)
    return pack_rows(mask, *xs, size=size)


def _on_gpu(mask: Any, *xs: Any, size: int) -> list[Any]:
    """Packs by words; a program for a GPU of another machine has operations of XLA, which need no driver."""
    try:
        jax.devices("gpu")
    except RuntimeError:
        return _by_xla(mask, *xs, size=size)
    return by_words(mask, *xs, size=size)


def _by_words(mask: Any, *xs: Any, size: int) -> list[Any]:
    """Moves elements by threads, which count the flags before their own in a word of the mask's bits."""
    rows, n = mask.shape
    if n < LEAST or size == 0:
        return _by_xla(mask, *xs, size=size)
    groups, per = -(-n // (WORD * OF_THREAD)), OF_THREAD
    words, first = empty((rows, groups * per), jnp.uint32), empty((rows, groups), jnp.int32)
    kept = zeros(1, jnp.int32)
    for r, w in ndrange(rows, groups * per, name="pack_words"):
        flags = [mask[r, i] for i in _places_of(w * WORD, WORD, n)]
        if n % (WORD * per):
            flags = [flag & (w * WORD + j < n) for j, flag in enumerate(flags)]
        words[r, w] = sum(flag.astype(jnp.uint32) << j for j, flag in enumerate(flags))
    for k in qd_range(rows * groups, serial=True, name="pack_places"):
        r, group = k // groups, k % groups
        first[r, group] = kept[0]
        counts = [lax.population_count(words[r, group * per + j]).astype(jnp.int32) for j in range(per)]
        kept[0] += sum(counts)
    is_filled = size == n  # an element that is not kept stores a zero, from the end of its row on
    outs = [(empty if is_filled else zeros)((rows, size, x.shape[2]), x.dtype) for x in xs]
    for r, group, lane in ndrange(rows, groups, WORD, name="pack_move"):
        i = group * (WORD * per) + lane  # threads side by side load, and store, what lies side by side
        own = _places_of(i, per, n, WORD)
        ahead = [[x[r, j, 0] for j in own] if x.shape[2] == 1 else None for x in xs]  # loads that wait for no word
        bit, before = jnp.uint32(1) << lane.astype(jnp.uint32), first[r, group] - first[r, 0]
        for j in range(per):
            word = words[r, group * per + j]
            is_kept = (word & bit) != 0
            place = before + lax.population_count(word & (bit - 1)).astype(jnp.int32)
            before = before + lax.population_count(word).astype(jnp.int32)
            if is_filled:
                to, is_stored = jnp.where(is_kept, place, n - 1 - (own[j] - place)), i + j * WORD < n
            else:
                to, is_stored = place, is_kept & (i + j * WORD < n) & (place < size)
            with when(is_stored):
                for out, x, values in zip(outs, xs, ahead, strict=True):
                    for k in qd_range(x.shape[2]):
                        value = x[r, own[j], k] if values is None else values[j]
                        out[r, to, k] = jnp.where(is_kept, value, 0) if is_filled else value
    if rows == 1:
        return [kept, *outs]
    count = empty(rows, jnp.int32)
    for r in qd_range(rows, name="pack_counts"):
        end = jnp.where(r + 1 < rows, first[jnp.minimum(r + 1, rows - 1), 0], kept[0])
        count[r] = end - first[r, 0]
    return [count, *outs]


def _places_of(first: Any, count: int, n: int, step: int = 1) -> list[Any]:
    """Returns `count` places from `first` on, `step` apart; those behind `n` as the last one."""
    return [jnp.minimum(first + j * step, n - 1) if n % (WORD * OF_THREAD) else first + j * step for j in range(count)]


def _pack(mask: Any, *xs: Any, size: int) -> list[Any]:
    rows, n = mask.shape
    parts = min(n // PART + 1, MOST_PARTS)
    length, room = -(-n // parts), -(-size // parts)
    step = STEP if sum(x.shape[2] for x in xs) <= STEP else 1
    kept, first, count = empty((rows, parts), jnp.int32), empty((rows, parts + 1), jnp.int32), empty(rows, jnp.int32)
    outs = [empty((rows, size, x.shape[2]), x.dtype) for x in xs]

    def flag(r: Any, j: Any) -> Any:
        return mask[r, j].astype(jnp.int32)

    for r, p in ndrange(rows, parts, name="pack_count"):
        low, high = p * length, jnp.minimum((p + 1) * length, n)
        rest = last_step(low, high, step)
        total = local(0, jnp.int32)
        for j in qd_range(low, rest, step):
            total.value = total.value + sum(flag(r, j + k) for k in range(step))
        for j in qd_range(rest, high):
            total.value = total.value + flag(r, j)
        kept[r, p] = total.value
    for r in qd_range(rows, name="pack_places"):
        total = local(0, jnp.int32)
        for p in qd_range(parts):
            first[r, p] = jnp.minimum(total.value, size)
            total.value = total.value + kept[r, p]
        first[r, parts] = jnp.minimum(total.value, size)
        count[r] = total.value
    for r, p in ndrange(rows, parts, name="pack_move"):
        low, high = p * length, jnp.minimum((p + 1) * length, n)
        rest = last_step(low, high, step)
        place, end = local(first[r, p]), first[r, p + 1]
        for j in qd_range(low, rest, step):
            fits = place.value + step <= end  # nearly always: what is not kept is overwritten by the next element
            for _ in qd_range(jnp.where(fits, 1, 0)):
                for k in range(step):
                    _store(outs, (r, place.value), xs, (r, j + k))
                    place.value = place.value + flag(r, j + k)
            for k in qd_range(jnp.where(fits, 0, step)):
                _store(outs, (r, place.value), xs, (r, j + k), place.value < end)
                place.value = place.value + flag(r, j + k)
        for j in qd_range(rest, high):
            _store(outs, (r, place.value), xs, (r, j), place.value < end)
            place.value = place.value + flag(r, j)
    for r, p in ndrange(rows, parts, name="pack_clear"):
        begin = jnp.maximum(p * room, first[r, parts])
        for j in in_steps(begin, jnp.maximum(jnp.minimum((p + 1) * room, size), begin), step):
            _clear(outs, (r, j))
    return [count, *outs]


def _store(
    outs: Sequence[Any], place: tuple[Any, Any], xs: Sequence[Any], own: tuple[Any, Any], condition: Any = None
) -> None:
    """Moves elements of arrays to a place, if a condition holds where there is one."""
    for out, x in zip(outs, xs, strict=True):
        width = x.shape[2]
        if condition is None and width == 1:
            out[*place, 0] = x[*own, 0]
            continue
        for k in qd_range(width if condition is None else jnp.where(condition, width, 0)):
            out[*place, k] = x[*own, k]


def _clear(outs: Sequence[Any], place: tuple[Any, Any]) -> None:
    """Stores zeros into elements of arrays."""
    for out in outs:
        for k in qd_range(out.shape[2]):
            out[*place, k] = 0


pack_rows: Any = jit(_pack, static_argnames="size", options={"bounds": "unchecked", "vectorize": False})
by_words: Any = jit(_by_words, static_argnames="size", options={"bounds": "unchecked"})


def _types(mask: Any, *xs: Any, size: int) -> list[Any]:
    count = compat.array_type(mask.shape[:1], jnp.dtype(jnp.int32), (mask,))
    return [count, *(compat.array_type((x.shape[0], size, x.shape[2]), x.dtype, (mask, x)) for x in xs)]


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, size: int) -> tuple[Any, Any]:
    mask, *xs = primals
    found = packed_p.bind(mask, *xs, size=size)
    made: list[Any] = [ad.Zero(compat.tangent_type(x)) for x in found]
    moving = [k for k, t in enumerate(tangents[1:]) if type(t) is not ad.Zero]
    if moving:
        _, *moved = packed_p.bind(mask, *(tangents[k + 1] for k in moving), size=size)
        for k, t in zip(moving, moved, strict=True):
            made[k + 1] = t
    return found, made


def _adjoints(cts: Sequence[Any], mask: Any, *xs: Any, size: int) -> list[Any]:
    """Moves cotangents back to where their elements were."""
    places = _places(mask, size)

    def back(ct: Any, x: Any) -> Any:
        if not ad.is_undefined_primal(x):
            return None
        if type(ct) is ad.Zero or not size:
            return ad.Zero(x.aval)
        taken = jax.vmap(lambda row, at: row.at[at].get(mode="fill", fill_value=0))(ct, places)
        return taken.astype(x.aval.dtype)

    return [None, *(back(ct, x) for ct, x in zip(cts[1:], xs, strict=True))]


def _mapped(operands: Sequence[Any], axes: Sequence[Any], *, size: int) -> tuple[Any, Any]:
    """Makes one axis of the mapped axis and the rows."""
    moved = with_lanes_first(operands, axes)
    lanes = moved[0].shape[0]
    rows = moved[0].shape[1]
    outs = packed_p.bind(*(x.reshape(lanes * rows, *x.shape[2:]) for x in moved), size=size)
    return [x.reshape(lanes, rows, *x.shape[1:]) for x in outs], [0] * len(outs)


_packed: Any = compiled(packed_p, "size")
compat.define(packed_p, _types, _mapped, _by_xla, cpu=_by_tasks, cuda=_on_gpu, rocm=_on_gpu)
ad.primitive_jvps[packed_p] = _tangents
ad.primitive_transposes[packed_p] = _adjoints
def_import_rule(packed_p, _by_xla)
