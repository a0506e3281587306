"""Records of what task fusion decided about pairs of tasks, and their text on one line.

The fusion pass calls `on_decision` with one record a pair that it judged:

    fused    v (spring.py:14) + x (spring.py:16): every access to `v` is at [i] in both
    refused  a (chain.py:3) + b (chain.py:5): `v[i - 1]` reads what iteration i - 1 of the other wrote
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from qdtrace.errors import Loc


@frozen(slots=True)
class Decision:
    """The decision about one pair of tasks, in program order: whether they were fused, and why."""

    first: str
    """Name of the earlier task or group; a group has the name of its first task, or all names joined by `+`."""
    second: str
    fused: bool
    reason: str
    """The reason in words: the rule that allows it, or the reference, the distance or the cost that forbids it."""
    locs: tuple[Loc | None, ...] = ()
    """Source lines of the first and of the second task; then those of the accesses that decided."""

    @property
    def verdict(self) -> str:
        """`fused` or `refused`."""
        return "fused" if self.fused else "refused"


def short_loc(loc: Loc | None) -> str:
    """Returns a source line as `file.py:14`, without folders; empty for None."""
    return "" if loc is None else f"{PurePath(loc.file).name}:{loc.line}"


def format_decision(decision: Decision) -> str:
    """Returns the decision on one line."""
    first, second, *accesses = (*decision.locs, None, None)[: max(2, len(decision.locs))]
    tasks = " + ".join(_with_loc(n, at) for n, at in ((decision.first, first), (decision.second, second)))
    seen = ", ".join(dict.fromkeys(text for at in accesses if (text := short_loc(at))))
    return f"{decision.verdict:<7}  {tasks}: {decision.reason}" + (f" (at {seen})" if seen else "")


def _with_loc(name: str, loc: Loc | None) -> str:
    return (name or "unnamed") + (f" ({short_loc(loc)})" if loc is not None else "")
