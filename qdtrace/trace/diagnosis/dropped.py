"""Updates of arrays that a statement drops: `y.at[k].set(v)` changes a buffer, and of an array it makes a new one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from qdtrace.errors import TraceValueError
from qdtrace.trace.compat import Var, all_eqns
from qdtrace.trace.diagnosis.bytecode import code_map
from qdtrace.trace.own_files import is_own_file, is_user_file
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.tree import equations_in

if TYPE_CHECKING:
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.tree import Region


def check_dropped(root: Region) -> None:
    """Refuses a statement of the user that updates an array and does nothing with the new one.

    Raises TraceValueError at its line.
    """
    eqns = [*all_eqns([*equations_in(root.items)])]
    used = {v for e in eqns for v in e.invars if isinstance(v, Var)}  # of a buffer, the new content is stored
    for eqn in eqns:
        if eqn.primitive.name.startswith("scatter") and used.isdisjoint(eqn.outvars) and _is_dropped(eqn):
            raise TraceValueError(
                "`y.at[k].set(v)` of an array gives a new array, and this statement drops it",
                loc=eqn_loc(eqn),
                help="make y a buffer in front of the loops, `y = qd.copy(y)`, which the statement changes; or keep "
                "the new array: `y = y.at[k].set(v)`",
            )


def _is_dropped(eqn: JaxprEqn) -> bool:
    traceback = eqn.source_info.traceback
    if traceback is not None:
        with contextlib.suppress(Exception):  # a diagnosis: where it fails, the trace goes on
            for code, at in zip(*traceback.raw_frames(), strict=True):
                if is_user_file(code.co_filename):
                    codes = code_map(code)
                    call = codes.at(at)
                    following = codes.opname(call + 1)
                    return is_own_file(code.co_filename) and codes.opname(call) == "CALL" and following == "POP_TOP"
    return False
