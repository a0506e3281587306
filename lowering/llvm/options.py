"""Options of the emitter, in a module of their own: cache keys need them when no code is emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from qdtrace.config import Divergence, Options


@frozen(slots=True)
class EmitOptions:
    """The user's options that emitters read."""

    fast_math: bool = True
    approximate: bool = False
    """True if f32 functions use the hardware's approximations where it has some."""
    vectors: int | None = None
    """Number of vectors side by side; None lets the number of live values decide."""
    vectorize: bool | None = None
    """True if iterations of a task on the CPU run in lanes of vectors, False if one at a time; None: by their cost."""
    divergence: Divergence = "auto"
    """Says what may be done besides masks about lanes whose loops take different numbers of trips."""
    deterministic: bool = False
    """True if sums do not depend on the order in which threads get there."""
    knows_lengths: bool = True
    """True if code may depend on lengths of arrays: threads may have copies of large ones that a task accumulates into,
    and tasks two pointers of large ones (`plan.renewal`)."""

    def may(self, strategy: Divergence) -> bool:
        """Returns whether a strategy against divergence may be chosen."""
        return self.divergence in ("auto", strategy)


DEFAULTS = EmitOptions()


def emit_options(options: Options) -> EmitOptions:
    """Returns the options that emitters read."""
    vectorize = None if options.vectorize == "auto" else options.vectorize
    approximate = options.fast_math == "approx"
    return EmitOptions(
        options.changes_rounding, approximate, None, vectorize, options.divergence, deterministic=options.deterministic
    )
