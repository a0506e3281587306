"""Operands of a call that somebody needs after it, which XLA would copy before the call may write them.

A result in the memory of its operand costs a copy if the operand is still needed: an argument of the compiled function
that is not donated, or what a later equation reads. A result in memory of its own costs one if it has to be in the
operand's memory at last: that of a donated argument, or of what a loop carries. Otherwise both cost none.

A call that is lowered once may stand in several places (JAX lowers equal functions once), so all of the compiled
function is looked at. A wrong answer costs a copy and is no fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from jax.lax import reshape_p, scan_p, squeeze_p, while_p

from qdtrace.ir.memory import is_large, written
from qdtrace.trace import compat
from qdtrace.trace.forwarding import constant_count, operand_maps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.compose.staged_program import StagedProgram
    from qdtrace.trace.compat import Jaxpr, JaxprEqn, Primitive
    from qdtrace.trace.jaxprs import Atom

    Places = list[tuple[str, ...]]

NEEDED, FREE, TAKEN = "needed", "free", "taken"
"""The fates of an operand: it is read later; nobody needs it; the result has to be in its memory."""

_known: WeakKeyDictionary[Jaxpr, dict[tuple[bool, ...], dict[StagedProgram, Places]]] = WeakKeyDictionary()


def needed_operands(call_p: Primitive, staged: StagedProgram) -> tuple[int, ...]:
    """Returns the numbers of large operands that a program writes and that should stay as they are, for a call that JAX
    is lowering."""
    program = staged.program
    large = [k for k, v in enumerate(program.params) if is_large(v)]
    stored = set(written(program.all_eqns)) if large else ()
    large = [k for k in large if program.params[k] in stored]
    function = compat.lowered_function() if large else None
    if function is None:
        return ()
    jaxpr, donated = function
    known = _known.setdefault(jaxpr, {})  # JAX lowers one jaxpr for functions that donate other arguments
    if (calls := known.get(donated)) is None:
        search = _Search(call_p)
        search.visit(jaxpr, [TAKEN if given else NEEDED for given in donated], in_loop=False)
        calls = known[donated] = search.found
    places = calls.get(staged, ())
    return tuple([k for k in large if {NEEDED} <= {each[k] for each in places} <= {NEEDED, FREE}])


class _Search:
    """Finds what becomes of the operands of all calls."""

    def __init__(self, call_p: Primitive) -> None:
        self.call_p = call_p
        self.found: dict[StagedProgram, Places] = {}
        self._seen: set[tuple[int, tuple[str, ...], bool]] = set()

    def visit(self, jaxpr: Jaxpr, inputs: Sequence[str], *, in_loop: bool) -> None:
        """Looks at the calls of a jaxpr; `inputs` says what becomes of each of its inputs."""
        key = id(jaxpr), tuple(inputs), in_loop
        if key in self._seen:
            return
        self._seen.add(key)
        becomes = dict(zip(jaxpr.invars, inputs, strict=True)) | dict.fromkeys(jaxpr.constvars, NEEDED)
        last = {v: k for k, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if isinstance(v, compat.Var)}
        last |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if isinstance(v, compat.Var)}
        for k, eqn in enumerate(jaxpr.eqns):

            def after(atom: Atom, k: int = k) -> str:
                if not isinstance(atom, compat.Var) or last[atom] > k:
                    return NEEDED
                return becomes.get(atom, TAKEN if in_loop else FREE)

            operands = [*map(after, eqn.invars)]
            if eqn.primitive is self.call_p:
                self.found.setdefault(eqn.params["staged"], []).append(tuple(operands))
            elif eqn.primitive in (reshape_p, squeeze_p):  # the same memory
                becomes[eqn.outvars[0]] = operands[0]
            elif compat.holds_jaxpr(eqn):
                self._inside(eqn, operands, in_loop)

    def _inside(self, eqn: JaxprEqn, operands: Sequence[str], in_loop: bool) -> None:
        """Looks at the jaxprs of an equation, with what becomes of its operands."""
        loops = eqn.primitive in (scan_p, while_p)
        if loops:
            constants = constant_count(eqn)
            operands = [NEEDED if k < constants else TAKEN for k in range(len(operands))]
        mapped = [*operand_maps(eqn)]
        for jaxpr, places in mapped:
            self.visit(jaxpr, [operands[k] for k in places], in_loop=in_loop or loops)
        if not mapped:
            for inner in map(compat.open_jaxpr, compat.inner_jaxprs(eqn)):
                self.visit(inner, [TAKEN] * len(inner.invars), in_loop=True)
