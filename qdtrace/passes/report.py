"""Writes one static HTML page that shows programs after each stage, their launches and the decisions of passes.

The left shows the stages with their sizes; those that changed nothing are folded. The right shows the launches, with
times if they were profiled, the decisions of task fusion, the source beside its graph, and the text of each stage:
added lines are green, removed ones red, changed ones yellow with the old line as tooltip; each names its source line.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from itertools import groupby, repeat
from pathlib import PurePath
from typing import TYPE_CHECKING

from qdtrace.analysis.checked import indexed_accesses
from qdtrace.analysis.traffic import program_traffic, task_traffic
from qdtrace.frozen import frozen
from qdtrace.passes.fusion_decisions import short_loc
from qdtrace.passes.report_source import source_table
from qdtrace.passes.stage_text import Change, StageTexts, changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qdtrace.passes.fusion_decisions import Decision
    from qdtrace.passes.stage_record import Recorder

CONTEXT = 4
"""Unchanged lines that stay in sight around a change; longer runs are folded."""
_SIGNS = {"same": " ", "added": "+", "removed": "-", "changed": "~"}


@frozen(slots=True)
class _Row:
    """One stage of the pipeline as the page shows it."""

    key: str
    name: str
    tasks: int
    equations: int
    moved: str
    """Memory traffic after the stage, as text."""
    lines: list[Change]

    @property
    def changed(self) -> bool:
        return any(c.kind != "same" for c in self.lines)

    def count(self, *kinds: str) -> int:
        return sum(c.kind in kinds for c in self.lines)


def report_page(title: str, records: Sequence[Recorder]) -> str:
    """Returns the report as a self-contained page of HTML."""
    menu: list[str] = []
    body: list[str] = []
    for number, record in enumerate(records, 1):
        rows = _rows(record, f"p{number}")
        name = record.stages[0][1].name if record.stages else ""
        caption = name if len(records) == 1 else f"{name}, program {number} of {len(records)}"
        menu.append(_menu(caption, rows))
        body.append(f"<h2>{escape(caption)}</h2>")
        if record.stages:
            body.append(_launches(record))
        body.append(_decisions(record.decisions))
        if record.stages:
            body += [_loops(record), _indices(record), source_table(record.stages[-1][1])]
        body += [_section(row, first=row is rows[0]) for row in rows]
    template = files("qdtrace.data").joinpath("report.html").read_text(encoding="utf-8")
    parts = {"title": escape(title), "menu": "\n".join(menu), "body": "\n".join(body)}
    for key, text in parts.items():
        template = template.replace(f"<!-- {key} -->", text)
    return template


def _rows(record: Recorder, prefix: str) -> list[_Row]:
    texts, rows = StageTexts(), list[_Row]()
    last = None
    for number, (name, program) in enumerate(record.stages):
        lines = texts.lines(program)
        moved = program_traffic(program)
        rows.append(
            _Row(
                f"{prefix}-{number}",
                name,
                len(program.tasks),
                sum(1 for _ in program.all_eqns),
                ("" if moved.exact else "≤ ") + _bytes(moved.total),
                [Change("same", line) for line in lines] if last is None else changes(last, lines),
            )
        )
        last = lines
    return rows


def _menu(caption: str, rows: Iterable[_Row]) -> str:
    head = "<tr><th>stage</th><th>tasks</th><th>equations</th><th>moved</th><th>lines</th></tr>"
    lines: list[str] = []
    for number, row in enumerate(rows):
        marks = f"+{row.count('added', 'changed')} -{row.count('removed', 'changed')}" if row.changed else ""
        quiet = "" if row.changed or not number else ' class="quiet"'
        cells = (row.tasks, row.equations, row.moved, marks)
        numbers = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr{quiet}><td><a href="#{row.key}">{escape(row.name)}</a></td>{numbers}</tr>')
    quiet = sum('class="quiet"' in line for line in lines)
    fold = f'<label><input type="checkbox"> {quiet} stages changed nothing</label>\n' if quiet else ""
    return f"<h2>{escape(caption)}</h2>\n<table>{head}\n" + "\n".join(lines) + f"\n</table>\n{fold}"


def _section(row: _Row, *, first: bool) -> str:
    title = f'<h3 id="{row.key}">{escape(row.name)}</h3>'
    if not row.changed and not first:
        return f'<div class="quiet">{title}\n<p>nothing changed</p></div>'
    return f"{title}\n<pre>{''.join(_folded(row.lines, first))}</pre>"


def _folded(lines: Sequence[Change], first: bool) -> Iterable[str]:
    """Yields the lines; long runs of unchanged ones are folded in the middle, except in the first text."""
    at = 0
    for same, group in groupby(lines, lambda c: c.kind == "same"):
        run = list(group)
        lead, tail = (CONTEXT if at else 0), (CONTEXT if at + len(run) < len(lines) else 0)
        at += len(run)
        hidden = run[lead : len(run) - tail]
        if first or not same or len(hidden) <= CONTEXT:
            yield from map(_line, run)
            continue
        yield from map(_line, run[:lead])
        yield f"<details><summary>{len(hidden)} lines</summary>{''.join(map(_line, hidden))}</details>"
        yield from map(_line, run[len(run) - tail :])


def _line(change: Change) -> str:
    title = "" if change.before is None else f' title="was: {escape(change.before.text.strip())}"'
    loc = change.line.loc
    at = f'<i title="{escape(loc)}">{escape(PurePath(loc).name)}</i>' if loc else ""
    return f'<span class="{change.kind}"{title}><b>{_SIGNS[change.kind]}</b>{escape(change.line.text)}{at}</span>'


def _table(title: str, heads: Iterable[str], rows: Iterable[Iterable[str]], kinds: Iterable[str] = repeat("")) -> str:
    """Returns a section that is a table of texts; `kinds` has the class of each row, empty for none."""
    lines = [f"<h3>{title}</h3>\n<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"]
    for cells, kind in zip(rows, kinds, strict=False):
        start = f'<tr class="{kind}">' if kind else "<tr>"
        lines.append(start + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "\n".join(lines) + "\n</table>"


def _decisions(decisions: Sequence[Decision]) -> str:
    if not decisions:
        return ""
    rows = [
        (f"{d.first} + {d.second}", d.verdict, d.reason, ", ".join(filter(None, map(short_loc, d.locs))))
        for d in decisions
    ]
    return _table("Fusion decisions", ("tasks", "verdict", "reason", "lines"), rows, [d.verdict for d in decisions])


def _indices(record: Recorder) -> str:
    """Returns the section on accesses: which are proven to be in range, and which are checked."""
    found = indexed_accesses(record.stages[0][1], record.stages[-1][1])
    if not found:
        return ""
    proven = sum(a.count for a in found if not a.axes)
    said = f"{proven} of {sum(a.count for a in found)} accesses are proven to be in range"
    verdicts = ["checked: axis " + ", ".join(map(str, a.axes)) if a.axes else "proven" for a in found]
    rows = [(a.buffer, str(a.count), verdict, short_loc(a.loc)) for a, verdict in zip(found, verdicts, strict=True)]
    return _table("Indices", ("buffer", "accesses", "index", "line"), rows) + f"\n<p>{said}</p>"


def _loops(record: Recorder) -> str:
    """Returns the section on reverse mode: what is kept of each loop."""
    if not record.loops:
        return ""
    rows = [(reason, short_loc(loc)) for reason, loc in record.loops]
    return _table("Reverse mode", ("kept of the loop", "line"), rows)


def _launches(record: Recorder) -> str:
    tasks = record.stages[-1][1].tasks
    said = [reason for _, reason in record.launches] or [""] * len(tasks)
    rows: list[tuple[str, ...]] = []
    times = record.times or ((),) * len(tasks)
    for task, reason, took in zip(tasks, said, times, strict=True):
        moved = task_traffic(task)
        most = "" if moved.exact else "≤ "
        rows.append(
            (task.name, *took, most + _bytes(moved.read), most + _bytes(moved.written), reason, short_loc(task.loc))
        )
    timed = ("time", "GB/s", "of a copy") if record.times else ()
    return _table("Launches", ("task", *timed, "read", "written", "vectorised", "line"), rows)


def _bytes(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
