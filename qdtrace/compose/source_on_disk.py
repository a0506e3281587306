"""The source of a program that was found on disk: facts about it, and its trace once a derivative needs that."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.compose.pass_cache import GraphKey
    from qdtrace.compose.source import Source


@frozen(eq=False)
class FoundSource:
    """A source that `trace` makes, with the facts about it that are on disk."""

    key: GraphKey
    """The key of what was traced."""
    has_primal: bool
    trace: Callable[[], Source]
    unknown: None = None
    may_have_rules: bool = True
    """Only a trace tells."""

    @functools.cached_property
    def traced(self) -> Source:
        """The source."""
        return self.trace()

    @property
    def has_backward(self) -> bool:
        """Returns whether an equation has a derivative rule for reverse mode alone; such equations have no key."""
        return bool(self.key.reason) and self.traced.has_backward

    @property
    def has_primals_of_rules(self) -> bool:
        """Returns whether rules of users may return other values than their functions; such equations have no key."""
        return bool(self.key.reason) and self.traced.has_primals_of_rules
