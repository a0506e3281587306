"""Options of the emitter, apart from it: cache keys need them where no code is emitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.config import Options


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """What the user may choose."""

    fast_math: bool = True
    approximate: bool = False
    """Functions of f32 by the hardware's approximations, where there are some."""
    vectors: int | None = None
    """Vectors side by side; None lets the number of live values decide."""


DEFAULTS = EmitOptions()


def emit_options(options: Options) -> EmitOptions:
    """The options that emitters look at."""
    return EmitOptions(options.changes_rounding, options.fast_math == "approx")
