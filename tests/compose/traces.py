"""Has this process forget what it derived, as a new one has none of it."""

from __future__ import annotations

import jax

from qdtrace.compose.derivative import _derived, _eager, reached_by
from qdtrace.compose.linearised import linearised
from qdtrace.compose.residuals import keeping, residuals_of


def forget():
    """Has the next trace of a function look on disk for what this process has derived."""
    jax.clear_caches()
    for made in (linearised, residuals_of, keeping, reached_by, _derived, _eager):
        made.cache_clear()
