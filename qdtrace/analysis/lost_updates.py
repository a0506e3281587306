"""Finds updates of elements that another iteration may update, too, so that what one of them stores is lost.

`h[k] = h[k] + v` loads and stores: two iterations with one `k` lose what one of them adds, while an accumulation,
`h[k] += v`, loses nothing. Whether two have one `k` is data, and with a permutation all is right. So two things are
found: more iterations than elements, and an index that makes one number of many (`k // 2`, a float as an integer).
What the data itself tells is in `known_races`.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.accesses import Race, Site
from qdtrace.frozen import mutable
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import BOUND, CONVERT, DIV, LOAD, SHIFT_RIGHT_ARITHMETIC, SHIFT_RIGHT_LOGICAL, STORE
from qdtrace.ir.program import Var, is_global, ref_type

if TYPE_CHECKING:
    from qdtrace.analysis.accesses import Accesses
    from qdtrace.analysis.updates import Update
    from qdtrace.ir.program import Atom

_SHIFTS = (SHIFT_RIGHT_ARITHMETIC, SHIFT_RIGHT_LOGICAL)


def lost_updates(found: Accesses) -> list[Race]:
    """Returns the updates of a task that its iterations lose."""
    return [
        Race("lost", store, update.operation)
        for store, around in found.sites
        if store.primitive is STORE
        and (update := found.updates.of(store, around)) is not None
        and not found.memory.proofs(indices_of(store))
        and _is_lost(found, Site(store, around), update)
    ]


@mutable(slots=True)
class _Origin:
    """The load that an index is computed from; iterations differ in no other value that it reads."""

    of_many: bool
    """True if a quotient makes one number of many."""
    of_floats: bool


def _is_lost(found: Accesses, site: Site, update: Update) -> bool:
    """Returns whether an update is lost at indices that nothing tells apart."""
    shape = ref_type(site.eqn.invars[0]).shape
    axes = [(n, a) for n, a in zip(shape, indices_of(site.eqn), strict=True) if not found.is_uniform(a)]
    is_varied = not all(map(found.is_uniform, update.by))
    if not axes or not (is_varied or update.operation in ("add", "sub", "mul")):
        return False  # one element for all (`certain_races`), or one value that all of them store
    is_many = found.iterations is not None and found.iterations.count > prod(n for n, _ in axes)
    if is_many and update.always and site.surely_runs(update):
        return True
    origins = [o for _, a in axes if (o := _origin(found, a)) is not None]
    if update.operation is None or len(origins) < len(axes):
        return False
    return is_many or any(o.of_floats or (o.of_many and len(axes) == 1) for o in origins)


def _origin(found: Accesses, index: Atom) -> _Origin | None:
    """Returns the load that an index is computed from, or None if iterations differ in something else, too."""
    loads: set[int] = set()
    of_many = of_floats = False
    work: list[Atom] = [index]
    seen: set[Atom] = set()
    while work:
        atom = work.pop()
        if atom in seen or found.is_uniform(atom) or not isinstance(atom, Var):
            continue
        seen.add(atom)
        eqn = found.updates.made.get(atom)
        if eqn is None or eqn.blocks or (eqn.primitive.effects and eqn.primitive not in (LOAD, BOUND)):
            return None
        if eqn.primitive is LOAD:
            if not is_global(eqn.invars[0]):
                return None
            loads.add(found.updates.number(atom))
            continue
        of_floats |= eqn.primitive is CONVERT and eqn.invars[0].dtype.is_float and eqn.outvar.dtype.is_integer
        of_many |= eqn.primitive in _SHIFTS or (eqn.primitive is DIV and eqn.outvar.dtype.is_integer)
        work += eqn.invars
    return _Origin(of_many, of_floats) if len(loads) == 1 else None
