"""Random numbers that all iterations of a loop draw with one key, so that each gets the same one.

A key of JAX is no generator: `jax.random.normal(key)` in a loop gives one number as often as the loop runs. What all
iterations shall share can be drawn in front of the loop. Arrays are left out: an iteration may take its own element.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from qdtrace.errors import warn
from qdtrace.trace import compat, tree
from qdtrace.trace.compat import Var
from qdtrace.trace.diagnosis.places import place_of
from qdtrace.trace.markers import when_p
from qdtrace.trace.own_indices import LANES
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qdtrace.trace.compat import Jaxpr, JaxprEqn
    from qdtrace.trace.jaxprs import Atom

_MOST = 4
"""Largest number of elements of a draw that is one value, as a vector in space."""
_LOOPS = {"qd_for": "qd.range", "qd_while": "qd.while_"}


def warn_of_shared_keys(items: Iterable[JaxprEqn]) -> None:
    """Warns, once a function, of a draw in a loop whose key no iteration changes."""
    for loop in tree.equations_in(items):
        noun = _LOOPS.get(loop.primitive.name)
        if noun is None or LANES in tree.hints_of(loop):  # in lanes as under `jax.vmap`
            continue
        body = tree.body_of(loop)
        draw = _shared_draw(body, body.invars[: loop.params["own"]])
        if draw is not None and place_of(draw) is not None:
            warn(
                f"each iteration of this {noun} draws the same number, as its key is the same in all of them\n"
                "help: make a key for each, `jax.random.fold_in(key, i)`; draw what they share in front of the loop",
                eqn_loc(draw),
            )
            return


def _shared_draw(jaxpr: Jaxpr, varying: Sequence[Atom]) -> JaxprEqn | None:
    """Returns the first equation that draws with a key which depends on nothing that differs between iterations."""
    differ = {v for v in varying if isinstance(v, Var)}
    for eqn in jaxpr.eqns:
        depends = [isinstance(v, Var) and v in differ for v in eqn.invars]
        if eqn.primitive.name == "random_bits" and not depends[0] and prod(eqn.params["shape"]) <= _MOST:
            return eqn
        inner = compat.called_jaxpr(eqn)
        if inner is not None:
            opened = compat.open_jaxpr(inner)
            if _shared_draw(opened, [v for v, d in zip(opened.invars, depends, strict=True) if d]) is not None:
                return eqn
        elif eqn.primitive is when_p:
            opened = tree.body_of(eqn)
            given = depends[eqn.params["bounds"] :]
            found = _shared_draw(opened, [v for v, d in zip(opened.invars, given, strict=True) if d])
            if found is not None:
                return found
        if any(depends) or eqn.primitive.name.startswith("qd_"):  # what memory holds may differ
            differ.update(eqn.outvars)
    return None
