"""The result of `qd.profile`: one row per task, as data, as text, in a notebook and as a picture."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.errors import Loc

HEAD = ("launch", "time", "share", "times", "moved", "GB/s", "of a copy", "iterations")
REST = "XLA, dispatch"
"""Name of the row for what no task does."""


@frozen
class Row:
    """One task of a profile, over all its launches in a call."""

    name: str
    """The name given to `qd.range`, or function and line."""
    seconds: float
    """Seconds per call, as the median of the runs."""
    launches: int
    """Launches per call."""
    bytes: int
    """Bytes that its launches must move between memory and the core (`Lowered.traffic`)."""
    exact: bool
    """False if `bytes` is an upper bound, as accesses depend on data."""
    iterations: int
    """Iterations per call, over all launches."""
    loc: Loc | None
    """The line of its loop; None for a fill."""
    task: str
    """The task's name in `Lowered.tasks`; empty for a fill of a buffer with its initial value."""
    program: str
    """Name of the task's program."""

    @property
    def gb_per_second(self) -> float:
        """The speed in 10**9 bytes per second."""
        return self.bytes / self.seconds * 1e-9 if self.seconds else 0.0


@frozen
class Profile:
    """The result of `qd.profile`, which prints as a table.

    >>> import jax.numpy as jnp, qdtrace as qd
    >>> @qd.jit
    ... def double(x):
    ...     for i in qd.range(x.shape[0], name="doubling"):
    ...         x[i] = 2 * x[i]
    ...     return x
    >>> profile = qd.profile(double, runs=3)(jnp.arange(1000.0))
    >>> slowest = max(profile.rows, key=lambda row: row.seconds)
    >>> slowest.name, slowest.launches, profile.runs
    ('doubling', 1, 3)
    >>> profile.task_seconds < profile.call_seconds
    True
    """

    name: str
    """Name of the function."""
    rows: tuple[Row, ...]
    """Tasks and fills in the order of their first launch."""
    call_seconds: float
    """Seconds of a whole call until its results are there, as the median of the runs."""
    runs: int
    copy_gb_per_second: float
    """Speed of a copy of 64 MiB by a task on the same threads, counting read and written bytes."""
    left_out: int = 0
    """Number of launches that were not timed, as there were too many."""

    @property
    def task_seconds(self) -> float:
        """The seconds of all rows together."""
        return sum(row.seconds for row in self.rows)

    @property
    def other_seconds(self) -> float:
        """The seconds of the rest of the call: JAX's dispatch, and operations of XLA."""
        return max(0.0, self.call_seconds - self.task_seconds)

    def __str__(self) -> str:
        cells = [HEAD, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [self._title()]
        for row in cells:
            texts = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            lines.append("  ".join(texts).rstrip())
        return "\n".join((*lines, *self._notes()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in HEAD)
        rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self._cells())
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"<p>{escape(self._title())}</p><table><tr>{head}</tr>{rows}</table>{notes}"

    def plot(self, ax: Any = None) -> Any:
        """Draws the times as bars, by matplotlib (the extra `demo`), and returns the axes.

        Args:
            ax: the matplotlib axes to draw on; new ones when None.

        Raises ImportError if matplotlib is not installed.
        """
        if ax is None:
            try:
                from matplotlib import pyplot  # only here: an extra
            except ImportError as error:
                raise ImportError(
                    "Profile.plot needs matplotlib: pip install matplotlib, or print the profile, or read its rows"
                ) from error
            ax = pyplot.figure(figsize=(8, 1 + 0.4 * (len(self.rows) + 1)), layout="constrained").add_subplot()
        names = [*(row.name for row in self.rows), REST]
        times = [*(1e3 * row.seconds for row in self.rows), 1e3 * self.other_seconds]
        places = range(len(names))
        bars = ax.barh(places, times, color=[*("tab:blue" for _ in self.rows), "lightgrey"])
        said = [*(f" {row.gb_per_second:.3g} GB/s, {self._of_copy(row)} of a copy" for row in self.rows), ""]
        ax.bar_label(bars, said)
        ax.set_yticks(places, names)
        ax.invert_yaxis()
        ax.margins(x=0.45)
        ax.set_xlim(left=0)
        ax.set_xlabel("ms a call")
        ax.set_title(self._title().partition(",")[0])
        return ax

    def said_of(self, program: str, task: str) -> tuple[str, str, str]:
        """Returns time, speed and share of a copy's speed of a task as text, empty if the profile lacks the task."""
        for row in self.rows:
            if (row.program, row.task) == (program, task):
                return _time(row.seconds), f"{row.gb_per_second:.3g}", self._of_copy(row)
        return "", "", ""

    def _title(self) -> str:
        share = self._share(self.task_seconds) or "all"
        return (
            f"{self.name}: {_time(self.call_seconds)} a call (median of {self.runs}), {share} of it in its tasks; "
            f"a copy moves {self.copy_gb_per_second:.3g} GB/s"
        )

    def _cells(self) -> Iterable[tuple[str, ...]]:
        for row in self.rows:
            moved = ("" if row.exact else "<= ") + _bytes(row.bytes)
            speed = f"{row.gb_per_second:.3g}", self._of_copy(row)
            iterations = f"{row.iterations:,}" if row.task else ""
            yield row.name, _time(row.seconds), self._share(row.seconds), str(row.launches), moved, *speed, iterations
        yield REST, _time(self.other_seconds), self._share(self.other_seconds), *[""] * (len(HEAD) - 3)

    def _share(self, seconds: float) -> str:
        return f"{seconds / self.call_seconds:.0%}" if self.call_seconds else ""

    def _of_copy(self, row: Row) -> str:
        return f"{row.gb_per_second / self.copy_gb_per_second:.0%}"

    def _notes(self) -> list[str]:
        notes = [f"{self.left_out} more launches found no room"] if self.left_out else []
        if self.other_seconds > self.task_seconds:
            notes.append(
                "most of the call is no task: array operations around loops, copies of arguments that are written, "
                "states that lax.scan keeps for a gradient, or JAX's dispatch (under jax.jit less); jax.profiler "
                "shows which"
            )
        return notes


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3f} {unit}"
    return f"{seconds / 1e-6:.1f} us"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
