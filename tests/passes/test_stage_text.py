"""Differences of graphs between stages: names are kept, and only what changed is marked."""

from dataclasses import replace

from qdtrace.config import Options
from qdtrace.ir.program import Program
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.stage_text import Change, Line, StageTexts, changes
from tests.passes.harness import parsed

TEXT = """\
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32 @one
    a: f32 = load x i
    b: f32 = mul a 2.0:f32
    unused: f32 = exp b
    c: f32 = add b -0.0:f32
    store x c i
  range_for i_1 in 0:i32 : 8:i32 @two
    d: f32 = load y i_1
    e: f32 = add d d
    store y e i_1
  return x, y
"""


def unnamed(text: str) -> Program:
    """The program without hints, as the importer makes most values."""
    program = parsed(text)
    for var in (v for t in program.tasks for e in t.body.eqns for v in e.outvars):
        object.__setattr__(var, "hint", "")
    return program


def marked(before: list[Line], after: list[Line]) -> list[tuple[str, str]]:
    return [(c.kind, c.line.text.strip()) for c in changes(before, after) if c.kind != "same"]


def test_names_are_kept_when_equations_before_them_go() -> None:
    texts, program = StageTexts(), unnamed(TEXT)
    first = texts.lines(program)
    one, two = program.tasks
    shorter = replace(one, body=replace(one.body, eqns=(*one.body.eqns[:2], *one.body.eqns[3:])))
    second = texts.lines(replace(program, tasks=(shorter, two)))
    assert marked(first, second) == [("removed", "v2: f32 = exp v1")]
    third = texts.lines(replace(program, tasks=(two,)))
    assert [kind for kind, _ in marked(second, third)] == ["removed"] * 5
    # A name that nobody has is given anew: what comes back is as it was.
    assert marked(first, texts.lines(program)) == []


def test_a_line_that_defines_the_same_is_changed() -> None:
    texts, program = StageTexts(), unnamed(TEXT)
    stages = {"trace": texts.lines(program)}
    optimise(program, Options(), (lambda name, after: stages.setdefault(name, texts.lines(after)),))
    assert marked(stages["trace"], stages["mem2reg"]) == []
    assert marked(stages["trace"], stages["simplify"]) == [
        ("removed", "v2: f32 = exp v1"),
        ("removed", "v3: f32 = add v1 -0.0:f32"),
        ("removed", "store x v3 i"),
        ("added", "store x v1 i"),
    ]
    old, new, same = Line("  a: f32 = add b c"), Line("  a: f32 = mul b c"), Line("  store x a")
    assert changes([old, same], [new, same]) == [Change("changed", new, old), Change("same", same)]


def test_applying_the_changes_gives_both_texts() -> None:
    texts, program = StageTexts(), parsed(TEXT)
    before = texts.lines(program)
    after = texts.lines(optimise(program, Options()))
    found = changes(before, after)
    assert [c.line for c in found if c.kind != "removed"] == after
    old = [c.before if c.before is not None else c.line for c in found if c.kind != "added"]
    assert sorted(line.text for line in old) == sorted(line.text for line in before)
    assert len({c.kind for c in found}) > 1


def test_source_lines_stand_beside_the_text() -> None:
    lines = StageTexts().lines(parsed(TEXT))
    assert all(line.text == line.text.rstrip() and "#" not in line.text for line in lines)
    assert all(line.loc for line in lines if " = " in line.text)
