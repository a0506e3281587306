"""A line of the table: what was measured, beside what, and what is asked of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ask(Enum):
    """The quantity that the required number bounds."""

    RATIO = "x the peer's, at most"
    """Ours over the peer's."""
    FASTER = "times faster, at least"
    """The peer's over ours."""
    MOST = "at most"
    """Ours."""
    LEAST = "at least"
    """Ours."""


@dataclass(frozen=True)
class Row:
    """One figure. `peer` names what it is compared with: another program's time, or a limit that was measured."""

    name: str
    ours: float | None
    unit: str = "ms"
    peer: str = ""
    theirs: float | None = None
    ask: Ask | None = None
    asked: float | None = None
    note: str = ""
    failed: bool = False
    """True if there is no figure, for the reason in `note`."""

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's, or the peer's over ours if the ratio has to be large."""
        if not self.ours or not self.theirs:
            return None
        return self.theirs / self.ours if self.ask is Ask.FASTER else self.ours / self.theirs

    @property
    def reached(self) -> bool | None:
        """True if the figure is as required; None if nothing is required or a number is missing."""
        value = self.ours if self.ask in (Ask.MOST, Ask.LEAST) else self.ratio
        if self.ask is None or self.asked is None or value is None:
            return None
        return value >= self.asked if self.ask in (Ask.FASTER, Ask.LEAST) else value <= self.asked

    @property
    def verdict(self) -> str:
        """A word for `reached`, or that the work failed."""
        if self.failed:
            return "FAILED"
        return {None: "", True: "ok", False: "MISS"}[self.reached]

    @property
    def cells(self) -> tuple[str, ...]:
        """Texts of the row: name, ours, peer, ratio, the required number, whether it is reached, a note."""
        beside = self.peer if self.theirs is None else f"{self.peer} {_figure(self.theirs)}"
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}"
        asked = "" if self.ask is None or self.asked is None else _asked(self.ask, self.asked, self.unit)
        ours = "-" if self.ours is None else f"{_figure(self.ours)} {self.unit}"
        return self.name, ours, beside, ratio, asked, self.verdict, self.note

    def as_json(self) -> dict[str, Any]:
        """Returns all fields, with the ratio and whether the figure is reached."""
        return {
            **asdict(self),
            "ask": self.ask and self.ask.name,
            "ratio": self.ratio,
            "reached": self.reached,
        }

    @staticmethod
    def of_json(values: dict[str, Any]) -> Row:
        """Returns the row that `as_json` was called on."""
        known: dict[str, Any] = {k: v for k, v in values.items() if k not in ("ratio", "reached")}
        known["ask"] = Ask[known["ask"]] if known["ask"] else None
        return Row(**known)


def _figure(number: float) -> str:
    return f"{number:.4g}" if abs(number) < 1e4 else f"{number:.0f}"


HEADER = ("work", "ours", "beside", "ratio", "asked", "", "")


def _asked(ask: Ask, number: float, unit: str) -> str:
    return {
        Ask.RATIO: f"<= {number:g} x",
        Ask.FASTER: f">= {number:g} x faster",
        Ask.MOST: f"<= {number:g} {unit}",
        Ask.LEAST: f">= {number:g} {unit}",
    }[ask]


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    lines = [HEADER, *(r.cells for r in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(HEADER) - 1)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, [*widths, 0], strict=True)).rstrip() for line in lines
    )


def summary(rows: Sequence[Row]) -> str:
    """Returns a text with the number of figures that are as required, and the names of the others."""
    stated = [r for r in rows if r.asked is not None]
    missed = [r.name for r in stated if r.reached is False]
    untold = [r.name for r in stated if r.reached is None]
    failed = [r.name for r in rows if r.failed]
    lines = [f"{len(stated)} figures asked for, {len(stated) - len(missed) - len(untold)} reached"]
    for words, names in (("not reached", missed), ("not measured", untold), ("failed", failed)):
        if names:
            lines.append(f"{words}: {', '.join(names)}")
    return "\n".join(lines)
