"""Indices of rows and slices between loops that are too large for registers: XLA reads and writes them.

XLA clamps an index silently, and jnp counts negative ones from the end. Here they mean what they mean in loops
(`trace/importer/bounds`). With `bounds="raise"` a serial task of its own checks the index and returns it, so XLA's
access depends on the check. Otherwise a load takes the nearest element, and other accesses use an index that XLA drops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from qdtrace.compose.segment import Constant, is_concrete
from qdtrace.compose.stager import SMALL
from qdtrace.errors import UnsupportedError
from qdtrace.ir.program import literal
from qdtrace.trace import compat
from qdtrace.trace.importer.bounds import bound
from qdtrace.trace.importer.values import rank0
from qdtrace.trace.markers import accum_p, atomic_p, lset_p, store_p
from qdtrace.trace.physical import logical, physical
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array
    from jax.typing import ArrayLike

    from qdtrace.compose.segment import BufferState
    from qdtrace.compose.stager import Stager
    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn

    Index = slice | ArrayLike


def large_access(stager: Stager, eqn: JaxprEqn) -> None:
    """Stages an access to a row or slice too large for registers, by XLA's own indexing."""
    state, prim = stager.buffer_of(eqn), eqn.primitive
    if prim is atomic_p:
        most = max(int(np.prod(v.aval.shape)) for v in (*eqn.invars[1:], *eqn.outvars))
        raise UnsupportedError(
            f"needs at most {SMALL} elements in one access between loops, got {most}",
            loc=eqn_loc(eqn),
            help="use a qd.range over the elements",
        )
    first = 2 if prim in (store_p, lset_p, accum_p) else 1
    where = _safe_indices(stager, eqn, state, eqn.invars[first:], loads=first == 1)
    old = logical(stager.content(state), eqn.invars[0].aval)
    if first == 1:
        stager.env[eqn.outvars[0]] = Constant(old[where])
        return
    op = str(eqn.params.get("op", "set"))
    change = getattr(old.at[where], {"mul": "multiply"}.get(op, op))
    stager.replace_content(state, physical(change(stager.value(eqn.invars[1]))))


def _safe_indices(
    stager: Stager, eqn: JaxprEqn, state: BufferState, atoms: Sequence[jaxprs.Atom], *, loads: bool
) -> tuple[Index, ...]:
    """Returns an index for each axis: static slices, and JAX values for the traced indices `atoms`."""
    traced = iter(atoms)
    shape = state.shape[: len(eqn.params["slices"])]
    out: list[Index] = []
    for axis, (entry, size) in enumerate(zip(eqn.params["slices"], shape, strict=True)):
        if entry is not None:
            out.append(slice(*entry))
            continue
        atom = next(traced)
        known = stager.known(atom)
        if is_concrete(known) and 0 <= int(known) < size:
            out.append(int(known))
        elif stager.options.bounds == "raise":
            out.append(_checked(stager, eqn, atom, {"axis": axis, "buffer": state.hint, "shape": shape}, size))
        else:
            out.append(_limited(stager.value(atom), size, loads=loads))
    return tuple(out)


def _checked(stager: Stager, eqn: JaxprEqn, atom: jaxprs.Atom, names: dict[str, object], size: int) -> ArrayLike:
    """Returns the index, from a program that fails if it is out of bounds; 0 if the access does not happen."""
    stager.flush()  # a program of its own, which has no derivative: no item of the function stands for the check
    with stager.segment.serial_builder(eqn_loc(eqn)) as builder:
        importer, index = stager.importer(builder), stager.scalar(builder, atom)
        if stager.conditions:
            with builder.block() as then:
                checked = bound(importer, index, size, **names)
            with builder.block() as other:
                pass
            blocks = then.close([checked]), other.close([literal(0, checked.dtype)])
            (made,) = builder.emit("if", stager.predicate(builder), blocks=blocks)
        else:
            made = bound(importer, index, size, **names)
    var = compat.new_scalar(made.dtype.numpy)
    stager.env[var] = stager.segment.keep(rank0(made), made.dtype)
    stager.last_use[var] = stager.position
    return stager.value(var)


def _limited(given: ArrayLike, size: int, *, loads: bool) -> Array:
    index = jnp.asarray(given)
    if index.dtype.itemsize < 4:
        index = index.astype(jnp.int32)
    nearest = jnp.clip(index, 0, max(size - 1, 0))
    return nearest if loads else jnp.where((index < 0) | (index >= size), np.iinfo(np.int32).max, nearest)
