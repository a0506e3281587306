"""The words of the refusals of carried state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import TraceValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.errors import Loc
    from qdtrace.trace.diagnosis.changes import StateChange

CELL = "keep it in a cell made before the loop: `c = qd.local(start)`, then `c.value` and `c.value = v`"
_SUM = (
    "iterations run in parallel: to sum over them, accumulate into a buffer made before the loop: `s = qd.zeros(())` "
    "and `s[()] += v`; what each one makes goes into its own element, `b[i] = v`, and a random key is made from the "
    "index, `jax.random.fold_in(key, i)`"
)
_SWAP = (
    "a cell cannot hold a buffer: copy back at the end of the body, `for j in qd.range(n): a[j] = b[j]`, or unroll the "
    "loop, `for s in range(steps):`, or put lax.fori_loop around the qd.jit function"
)
_STREAM = (
    "make it from the index: `jax.random.fold_in(key, i)` for a random key, `table[i]` for numbers made before the loop"
)
_WHERE = "use jnp.where(condition, a, b), or keep it in a cell: `c = qd.local(start)` and `c.value = v`"


def _set(what: StateChange) -> str:
    """Returns the fix for a cell whose name was given to something else."""
    return f"{what} is a qd.local, a place: set what it holds, `{what.name}.value = v`" if what.was_cell else ""


def carried(
    what: StateChange, where: str, *, parallel: bool, loc: Loc | None, loop: Loc | None, notes: Sequence[str] = ()
) -> TraceValueError:
    """Returns the error that `what` would carry a value through the loop called `where`."""
    helps = {"buffer": _SWAP, "drawn": _STREAM, "blind": _STREAM}
    by_default = _set(what) or (_SUM if parallel else CELL)
    return TraceValueError(
        f"{what} would carry a value from one iteration of the {where} to the next",
        loc=loc,
        notes=(f"the {where} is at {loop}", "its body is traced once for all iterations", *notes),
        help=helps.get(what.kind, by_default),
    )


def read_after(
    what: StateChange, where: str, *, loc: Loc | None, region: Loc | None, notes: Sequence[str] = ()
) -> TraceValueError:
    """Returns the error that `what` is set in a region, called `where`, and read after it."""
    if where in ("qd.when", "qd.otherwise"):
        return TraceValueError(
            f"{what} is set under {where} and read after it",
            loc=loc,
            notes=(f"the {where} is at {region}", "Python sets it whatever the condition is", *notes),
            help=_set(what) or _WHERE,
        )
    return TraceValueError(
        f"{what} is set inside the {where} and read after it",
        loc=loc,
        notes=(f"the {where} is at {region}", "its body is traced once, also when it would not run at all", *notes),
        help=_set(what) or "set it outside of the loop, or keep it in a buffer or a qd.local",
    )


def shown(error: Exception) -> str:
    """Returns the class of an error, with the first line of what it says."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
