"""Derivatives of an iteration's term by the entries that it loads, added to the blocks of a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.analysis.machine import GPU
from qdtrace.frozen import mutable
from qdtrace.sparse.gathering import Gathering
from qdtrace.sparse.local import function_of_entries
from qdtrace.sparse.projecting import projected
from qdtrace.trace import jax_settings
from qdtrace.trace.checks import check
from qdtrace.trace.conditions import when
from qdtrace.trace.local import local
from qdtrace.trace.loops import range as qd_range
from qdtrace.trace.tree import body_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.sparse.layouts import Layout, Touched
    from qdtrace.sparse.pattern import Table
    from qdtrace.sparse.reading import Reading


@mutable(eq=False)
class Blocks:
    """An iteration of a loop."""

    reading: Reading
    touched: Touched
    table: Table
    block: tuple[int, int]
    is_second: bool
    index: Any
    """Number of the iteration."""
    part: Any
    """The row of each block that is computed; None for all."""
    psd: bool

    def add(self, env: Mapping[Any, Any], adjoints: Mapping[Any, Any], out: Any) -> None:
        """Adds its derivatives; second ones of the written values times `adjoints` if there are some."""
        body, trips = body_of(self.touched.region), self.touched.trips
        inner = {**env, body.invars[0]: self.index * trips.step + trips.start}
        walk = Gathering(self.reading, inner, values=True, adjoints=adjoints)
        walk.run(body.eqns)
        self._check(walk, bool(adjoints))

        written = function_of_entries(walk, body.eqns)

        def term(*entries: Any) -> Any:
            return sum(jnp.sum(w * v) for w, v in zip(walk.weights, written(*entries), strict=True))

        loads, entries = self.touched.loads, tuple(walk.entries)
        if adjoints:
            gradient = jax.grad(term, tuple(range(len(entries))))
            dtypes = [e.dtype for e in entries]
            self._rows(loads, lambda b: jax.jvp(gradient, entries, _seeds(loads, dtypes, b))[1], out)
            return
        writes = self.touched.writes
        _, pull = jax.vjp(written, *entries)
        dtypes = [x.dtype for x in jax.eval_shape(written, *entries)]
        self._rows(writes, lambda b: pull(_seeds(writes, dtypes, b)), out)

    def _check(self, walk: Gathering, is_second: bool) -> None:
        """Checks that the iteration loads and writes what it did for the pattern."""
        other = "the pattern was made with other indices than the loop meets: make one of these arguments"
        written = self.touched.kept(walk.written, is_second)
        for live, kept in ((walk.read, self.table.read), (written, self.table.written)):
            for k, first in enumerate(live):
                check((first < 0) | (kept[self.index, k] == first), other)

    def _rows(self, layouts: Sequence[Layout], row: Any, out: Any) -> None:
        """Adds each row, which a function of its number gives as an array for each load."""
        count = sum(layout.size for layout in layouts)
        if self.part is not None:
            for here in qd_range(count // self.block[0]):
                b = here * self.block[0] + self.part
                self._add(b, _flat(row(b)), out)
            return
        if not self.psd:
            for b in qd_range(count):
                self._add(b, _flat(row(b)), out)
            return
        whole = local(jnp.zeros((count, count), out.dtype))
        for b in qd_range(count):
            whole[b] = _flat(row(b))
        if self.table.repeats:
            whole.value = self._once(whole.value)
        whole.value = projected(whole.value)
        for b in qd_range(count):
            self._add(b, whole[b], out)

    def _once(self, whole: Any) -> Any:
        """Returns derivatives by blocks instead of by loads: the rows and columns of all loads of a block are added to
        those of the first one, and the others are zeros."""
        width = self.block[1]
        blocks = jnp.diagonal(self.table.pairs[self.index])  # that of a block with itself is its own
        first = jnp.argmax(blocks[:, None] == blocks, axis=1)
        own = jnp.arange(len(blocks), dtype=first.dtype)
        to = jnp.where(blocks < 0, own, first)[:, None] == own
        sums = jnp.kron(to.astype(whole.dtype), jnp.eye(width, dtype=whole.dtype))
        return sums.T @ whole @ sums

    def _add(self, row: Any, values: Any, out: Any) -> None:
        height, width = self.block
        here = row // height
        for k in range(values.shape[0] // width):
            pair = self.table.pairs[self.index, here, k]
            part = values[k * width : (k + 1) * width]
            live: Any = True
            if self.is_second and height > 1:
                read = self.table.read
                live = ~adds_half() | (read[self.index, here] <= read[self.index, k])
            if self.table.may_miss:
                live &= pair >= 0
            with when(live):
                out[pair, row % height] += part


def adds_half() -> Any:
    """Returns, in a loop, whether of a symmetric matrix the blocks on its diagonal and right of it alone are added:
    where additions to memory take the time, not the transposes that are read at the end."""
    return jax.lax.platform_dependent(cpu=lambda: jnp.bool_(False), default=lambda: jnp.bool_(True))


def adds_by_rows() -> bool:
    """Returns whether an iteration is a thread for each row of a block, not one for all.

    The rows of a block lie side by side. A GPU's cache adds at once what threads side by side add there.
    """
    return jax_settings.default_machine() is GPU


def _flat(arrays: Sequence[Any]) -> Any:
    return jnp.concatenate([jnp.ravel(a) for a in arrays])


def _seeds(layouts: Sequence[Layout], dtypes: Sequence[Any], b: Any) -> tuple[Any, ...]:
    """Returns arrays of zeros with a one at the place b of all their elements."""
    found: list[Any] = []
    first = 0
    for layout, dtype in zip(layouts, dtypes, strict=True):
        found.append((jnp.arange(layout.size) + first == b).reshape(layout.shape).astype(dtype))
        first += layout.size
    return tuple(found)
