"""The part of the report that shows the user's source, each line beside its equations in the final graph."""

from __future__ import annotations

import linecache
import re
from html import escape
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING

from qdtrace.passes.stage_text import StageTexts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qdtrace.ir.program import Program

APART = 6
"""Largest distance of two source lines with equations that are shown in one piece."""
_PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+)(?: in .*)?")


def source_table(program: Program) -> str:
    """Returns a table of the source lines that equations of the program come from; empty if none is known."""
    graph: dict[tuple[str, int], list[str]] = {}
    for line in StageTexts().lines(program):
        if (place := _PLACE.fullmatch(line.loc)) is not None:
            graph.setdefault((place["file"], int(place["line"])), []).append(line.text.strip())
    rows: list[str] = []
    for file, numbers in groupby(sorted(graph), lambda place: place[0]):
        for piece in _pieces([number for _, number in numbers]):
            rows += _rows(file, piece, graph)
    if not rows:
        return ""
    head = "<tr><th></th><th>source</th><th>what is launched of it</th></tr>"
    return f'<h3>Source</h3>\n<table class="source">{head}\n' + "\n".join(rows) + "\n</table>"


def _pieces(numbers: Sequence[int]) -> Iterable[range]:
    """Yields ranges of source lines that are close together, with the lines in between."""
    begin = last = numbers[0]
    for number in numbers[1:]:
        if number - last > APART:
            yield range(begin, last + 1)
            begin = number
        last = number
    yield range(begin, last + 1)


def _rows(file: str, lines: range, graph: dict[tuple[str, int], list[str]]) -> Iterable[str]:
    texts = [linecache.getline(file, number).rstrip() for number in lines]
    if not any(texts):
        return
    margin = min(len(text) - len(text.lstrip()) for text in texts if text)
    yield f'<tr><td></td><td colspan="2"><i title="{escape(file)}">{escape(PurePath(file).name)}</i></td></tr>'
    for number, text in zip(lines, texts, strict=True):
        left = "\n".join(graph.get((file, number), ()))
        cells = f"<td><pre>{escape(text[margin:])}</pre></td><td><pre>{escape(left)}</pre></td>"
        yield f"<tr><td>{number}</td>{cells}</tr>"
