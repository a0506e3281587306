"""The walk of a body as a pure function of what it loads from the argument."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from qdtrace.frozen import mutable
from qdtrace.sparse.reading import type_of
from qdtrace.sparse.walk import Walk
from qdtrace.trace.tree import body_of, bounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.sparse.gathering import Gathering
    from qdtrace.trace.compat import JaxprEqn


@mutable(eq=False)
class Local(Walk):
    """The walk of a pure function: `entries` are what the argument's loads give, in their order."""

    kept: dict[Any, list[Any]] = field(default_factory=dict[Any, "list[Any]"])
    entries: list[Any] = field(default_factory=list[Any])
    outs: list[Any] = field(default_factory=list[Any])
    """Values that were written."""

    def known(self, eqn: JaxprEqn) -> None:
        self.env.update(zip(eqn.outvars, self.kept[id(eqn), self.path], strict=True))

    def active(self, eqn: JaxprEqn) -> None:
        self.evaluate(eqn)

    def check(self, eqn: JaxprEqn) -> None:
        """Leaves a check to the other walk, which makes it once."""

    def change_cell(self, eqn: JaxprEqn) -> None:
        self.set_cell(eqn)

    def load(self, eqn: JaxprEqn) -> None:
        if eqn.invars[0] is self.reading.handle:
            self.env[eqn.outvars[0]] = self.entries.pop(0)
        else:
            self.known(eqn)

    def write(self, eqn: JaxprEqn) -> None:
        handle, value = eqn.invars[:2]
        shape = tuple(len(range(*s)) for s in eqn.params["slices"] if s is not None)
        self.outs.append(jnp.broadcast_to(jnp.asarray(self.value(value), type_of(handle).dtype), shape))

    def when(self, region: JaxprEqn) -> None:
        before, outer, entries = dict(self.cells), self.outs, list(self.entries)

        def taken() -> Any:
            self.outs = []
            self.run(body_of(region).eqns)
            found = [self.cells[c] for c in before], self.outs
            self.cells = dict(before)
            return found

        def left() -> Any:
            return [*before.values()], [jnp.zeros(s.shape, s.dtype) for s in shapes[1]]

        shapes = jax.eval_shape(taken)
        self.entries = entries
        cells, outs = lax.cond(self.value(bounds_of(region)[0]), taken, left)
        self.cells = dict(zip(before, cells, strict=True))
        self.outs = [*outer, *outs]


def function_of_entries(walk: Gathering, eqns: Sequence[JaxprEqn]) -> Callable[..., tuple[Any, ...]]:
    """Returns the rest of a walk through a body: a pure function of the loaded entries that gives what is written."""

    def written(*entries: Any) -> tuple[Any, ...]:
        rest = Local(walk.reading, dict(walk.env), kept=walk.kept, entries=list(entries))
        rest.run(eqns)
        return tuple(rest.outs)

    return written
