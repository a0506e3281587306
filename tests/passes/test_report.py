"""The page of stages: what it says of a program, and that it is complete in itself."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, ClassVar

from qdtrace.config import Options
from qdtrace.errors import Loc
from qdtrace.frozen import frozen
from qdtrace.ir.program import Stage
from qdtrace.passes.base import Pass
from qdtrace.passes.fusion_decisions import Decision
from qdtrace.passes.observers import DecisionPrinter, Timer, listening
from qdtrace.passes.pipelines import optimise, stages
from qdtrace.passes.report import report_page
from qdtrace.passes.stage_record import Recorder
from tests.passes.harness import parsed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from qdtrace.ir.program import Program
    from qdtrace.passes.observers import Observer

EQNS = "".join(f"    b{k}: f32 = sin b{k - 1}\n" for k in range(1, 21))
TEXT = f"""\
program p(x: ref[f32,256])
  range_for i in 0:i32 : 256:i32 @"a<b"
    b0: f32 = load x i
{EQNS}    c: f32 = add b20 -0.0:f32
    store x c i
  return x
"""
DECISIONS = (
    Decision("a<b", "two", True, "every access to `x` is at [i] in both", (Loc("dir/f.py", 3), None)),
    Decision("a<b", "three", False, "`x[i - 1]` reads what iteration i - 1 wrote", (Loc("f.py", 3), Loc("f.py", 9))),
)


class Page(HTMLParser):
    """Counts what a page holds, and checks that elements are closed in order."""

    VOID: ClassVar = {"meta", "br", "input"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: Counter[str] = Counter()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: Counter[str] = Counter()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags[tag] += 1
        self.classes[given.get("class") or ""] += 1
        self.links += [str(given[k]) for k in ("href", "src") if k in given]
        self.ids += [str(given["id"])] if "id" in given else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def record_of(text: str, each_pass: bool = True) -> Recorder:
    recorder = Recorder()
    optimise(parsed(text), Options(), (recorder,), each_pass=each_pass)
    return recorder


def text_of(html: str) -> str:
    return re.sub(r"<[^>]*>", " ", html)


def test_the_page_shows_every_stage() -> None:
    recorder = record_of(TEXT)
    html = report_page("p & q", [recorder])
    page = Page(html)
    assert [f"#{name}" for name in page.ids] == page.links, "each stage has a link, and nothing comes from elsewhere"
    assert len(page.ids) == len(recorder.stages)
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == 0
    assert html.count("p &amp; q") == 2
    assert "a&lt;b" in html
    assert "<!-- " not in html
    assert page.classes["removed"] == 2 + 1, "the legend has one of each"
    assert page.classes["added"] == 1 + 1
    # trace: tasks, equations, bytes; then what changed
    assert re.search(r"> *trace</a></td><td>1</td><td>23</td><td>2\.0 KiB</td><td></td>", html)
    assert re.search(r"simplify_1_rewrite</a></td><td>1</td><td>2\d</td><td>2\.0 KiB</td><td>\+\d -\d</td>", html)


def test_long_unchanged_runs_are_folded() -> None:
    html = report_page("p", [record_of(TEXT)])
    assert re.search(r"<summary>\d+ lines</summary>", html)
    short = TEXT.replace(EQNS, "").replace("b20", "b0")
    assert "<summary>" not in report_page("p", [record_of(short)])


def test_decisions_and_launches() -> None:
    recorder = record_of(TEXT)
    recorder.decisions += DECISIONS
    html = report_page("p", [replace(recorder, launches=[("a<b", "16 lanes <of> 32 bits")])])
    page = Page(html)
    assert (page.classes["fused"], page.classes["refused"]) == (1, 1)
    assert "<td>a&lt;b + two</td><td>fused</td><td>every access to `x` is at [i] in both</td><td>f.py:3</td>" in html
    assert "<td>f.py:3, f.py:9</td>" in html
    assert "<td>1.0 KiB</td><td>1.0 KiB</td><td>16 lanes &lt;of&gt; 32 bits</td>" in html
    assert "Fusion decisions" not in report_page("p", [record_of(TEXT)])


def test_the_page_begins_with_the_launches() -> None:
    recorder = record_of(TEXT)
    recorder.decisions += DECISIONS
    html = report_page("p", [replace(recorder, launches=[("a<b", "16 lanes")], times=[("1.5 ms", "20", "80%")])])
    heads = re.findall("<h3[^>]*>(.*?)</h3>", html)
    assert heads[:3] == ["Launches", "Fusion decisions", "Indices"]
    assert heads[3] == "trace"
    assert "<th>task</th><th>time</th><th>GB/s</th><th>of a copy</th><th>read</th>" in html
    assert "<td>a&lt;b</td><td>1.5 ms</td><td>20</td><td>80%</td><td>1.0 KiB</td>" in html
    assert "<th>time</th>" not in report_page("p", [record_of(TEXT)])


def test_stages_without_a_change_are_folded() -> None:
    recorder = record_of(TEXT)
    html = report_page("p", [recorder])
    page = Page(html)
    quiet = len(re.findall("nothing changed", html))
    assert page.classes["quiet"] == 2 * quiet  # in the list of stages, and in the text
    assert f'<label><input type="checkbox"> {quiet} stages changed nothing</label>' in html
    assert "body:not(:has(nav input:checked)) .quiet { display: none; }" in html
    assert page.tags["input"] == 1
    recorder.stages[1:] = []
    assert Page(report_page("p", [recorder])).tags["input"] == 0


def test_programs_of_one_function() -> None:
    html = report_page("f", [record_of(TEXT), record_of(TEXT)])
    assert "p, program 2 of 2" in html
    assert len(set(Page(html).ids)) == len(Page(html).ids)


def test_bytes_that_may_be_fewer() -> None:
    text = TEXT.replace(EQNS, "").replace("add b20 -0.0:f32", "mul b0 2.0:f32").replace("store x c i", "store x c k")
    text = text.replace("    b0:", "    t: f32 = load x 0:i32\n    k: i32 = convert[dtype=i32] t\n    b0:")
    assert "≤ 2.0 KiB" in report_page("p", [record_of(text)])


@frozen
class Decides(Pass):
    """A pass that tells of one decision."""

    name: ClassVar[str] = "decides"
    on_decision: Callable[[Decision], None] | None = None

    def __call__(self, program: Program) -> Program:
        """The same program."""
        if self.on_decision is not None:
            self.on_decision(DECISIONS[1])
        return program


def test_decisions_reach_the_observers_that_listen(capsys: pytest.CaptureFixture[str]) -> None:
    recorder, printer = Recorder(), DecisionPrinter()
    deaf: list[Observer] = [Timer(), lambda stage, program: None]
    program = parsed(TEXT)
    silent = stages(Options())[Stage.CANONICAL][0]
    (kept, decides) = listening((silent, Decides()), [*deaf, recorder, printer])
    assert kept is silent
    decides(program)
    assert recorder.decisions == [DECISIONS[1]]
    assert capsys.readouterr().err.startswith("refused  a<b (f.py:3) + three (f.py:9): `x[i - 1]` reads")
    (alone,) = listening((Decides(),), deaf)
    assert alone == Decides()


def test_every_stage_is_dumped_with_a_report(tmp_path: Path) -> None:
    text = TEXT.replace("program p", 'program "a/b c"')
    names: list[str] = []
    options = Options(dump_simplify=True, debug_dump_path=str(tmp_path))
    optimise(parsed(text), options, (lambda name, program: names.append(name),))
    (folder,) = tmp_path.iterdir()
    assert re.fullmatch(r"\d{3,}_a_b_c", folder.name)
    files = sorted(p.name for p in folder.glob("*.qd"))
    assert files == [f"{n:03}_{name}.qd" for n, name in enumerate(names)]
    assert {s.name for passes in stages(Options()).values() for s in passes} <= set(names)
    assert Page((folder / "report.html").read_text(encoding="utf-8")).ids == [f"p1-{n}" for n in range(len(names))]
    assert "nothing changed" in text_of((folder / "report.html").read_text(encoding="utf-8"))
