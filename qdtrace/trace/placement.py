"""Checks where markers stand on the tree: buffers outside of loops, cells inside, jumps in their own loop.

The same rules are checked while Python runs, with better positions; but a helper under `jax.jit` is traced once and
may then be called in another place.
"""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TYPE_CHECKING

from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace import compat, markers
from qdtrace.trace.indexing import WHOLE_LIMIT
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.structure import is_parallel

if TYPE_CHECKING:
    from qdtrace.errors import Loc
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.structure import OpenBody


def leaves_threads(name: str, loc: Loc | None, loop: Loc | None) -> TraceValueError:
    """Returns the error for a jump that would end a loop whose iterations are threads."""
    return TraceValueError(
        f"{name} cannot leave an outermost qd.range, whose iterations run in parallel",
        loc=loc,
        notes=(f"the qd.range is at {loop}",),
        help="put the rest of the body under `with qd.when(condition):`, or run the loop in one thread: "
        "`qd.range(n, serial=True)`",
    )


def cell_without_loop(loc: Loc | None) -> TraceValueError:
    """Returns the error for a cell that no iteration makes."""
    return TraceValueError(
        "a qd.local belongs to one iteration, it needs to be made inside a loop",
        loc=loc,
        help="outside of loops use a buffer: `s = qd.zeros(())`, then `s[()] += v` in the loop",
    )


def too_large(shape: tuple[int, ...], loc: Loc | None) -> TraceTypeError:
    """Returns the error for a buffer of this shape that is used as a value in a loop."""
    return TraceTypeError(
        f"inside a loop at most {WHOLE_LIMIT} elements may be used as one value, this buffer has {math.prod(shape)} "
        f"(shape {shape})",
        loc=loc,
        help="index it: `x[i]`, or use the whole array outside of the loop",
    )


def check_jump(eqn: JaxprEqn, region: OpenBody) -> None:
    """Checks that a jump has its loop in the same jaxpr, and that the loop is not a set of threads."""
    is_break = eqn.primitive is markers.break_p
    name = "qd.break_if" if is_break else "qd.continue_if"
    loop = next(body for body in region.outward() if body.kind != "when")
    if loop.kind not in ("for", "while"):
        raise TraceValueError(
            f"{name} needs its loop in the same function, not outside of a lax loop or condition",
            loc=eqn.params["loc"],
            help="write the loop with qd.range or qd.while_, or use lax.while_loop with a flag in its carry",
        )
    if is_break and is_parallel(loop):
        raise leaves_threads(name, eqn.params["loc"], loop.loc)


def check_maker(eqn: JaxprEqn, region: OpenBody) -> None:
    """Buffers are made outside of loops, cells inside."""
    if eqn.primitive is markers.local_p:
        if region.is_function:
            raise cell_without_loop(eqn_loc(eqn))
    elif region.kind != "root":
        raise TraceValueError(
            "a buffer needs to be made outside of loops and conditions",
            loc=eqn_loc(eqn),
            help="make it in front of the loop; for memory of one iteration use qd.local(jnp.zeros(n))",
        )


def check_cell(eqn: JaxprEqn, region: OpenBody, home: OpenBody, maker: JaxprEqn | None) -> None:
    """Checks that no parallel range stands between the making of a cell and its use: it belongs to one thread."""
    for inner in takewhile(lambda body: body is not home, region.outward()):
        if is_parallel(inner):
            made = () if maker is None else (f"the cell is made at {eqn_loc(maker)}",)
            raise TraceValueError(
                "a qd.local made outside of a parallel qd.range cannot be used in it",
                loc=eqn_loc(eqn),
                notes=(f"the qd.range is at {inner.loc}", *made),
                help="make it inside the loop, use a buffer, or run the loop in one thread: `qd.range(n, serial=True)`",
            )

def placed(eqn: JaxprEqn, *, in_arrays: bool) -> JaxprEqn:
    """Returns the equation; in a loop, one that reads or stores a whole small buffer loads or stores its elements."""
    if in_arrays or eqn.primitive not in (markers.read_p, markers.assign_p):
        return eqn
    shape: tuple[int, ...] = eqn.invars[0].aval.shape
    if math.prod(shape) > WHOLE_LIMIT:
        raise too_large(shape, eqn_loc(eqn))
    primitive = markers.load_p if eqn.primitive is markers.read_p else markers.store_p
    slices = tuple((0, n, 1) for n in shape)
    return eqn.replace(primitive=primitive, params={"slices": slices}, effects={compat.QD})
