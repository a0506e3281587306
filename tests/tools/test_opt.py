"""`python -m qdtrace opt`: its list of passes, its page and the decisions that it prints."""

import re
from pathlib import Path

import pytest

from qdtrace.passes.by_name import PASSES
from qdtrace.tools.opt import main

TEXT = """\
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32 @one
    a: f32 = load x i
    b: f32 = add a 0.0:f32
    store x b i
  range_for j in 0:i32 : 8:i32 @two
    c: f32 = load x j
    d: f32 = mul c 2.0:f32
    store x d j
  return x
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "p.qd"
    path.write_text(TEXT)
    return str(path)


def test_every_pass_is_listed_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PASSES)
    assert all(re.fullmatch(r"\w+ {2,}\S.*\.", line) for line in lines)
    said = re.compile(r"dead_code +removes code that no result of the program depends on\.")
    assert any(map(said.fullmatch, lines))


def test_a_file_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "the following arguments are required: file" in capsys.readouterr().err


@pytest.mark.parametrize(("passes", "rounds"), [("optimise", True), ("algebraic,dead_code", False)])
def test_html(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], passes: str, rounds: bool) -> None:
    page = tmp_path / "out.html"
    assert main([file, "-p", passes, "--html", str(page)]) == 0
    assert capsys.readouterr().out.startswith("program p(")
    stages = re.findall(r'<a href="#p1-\d+">(\w+)</a>', page.read_text(encoding="utf-8"))
    assert stages[0] == "input"
    assert ("simplify_1_dead_code" in stages) == rounds
    assert rounds or stages == ["input", "algebraic", "dead_code"]


def test_html_refuses_a_folder_that_is_not_there(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([file, "--html", str(tmp_path / "none" / "out.html")]) == 1
    assert capsys.readouterr().err.startswith("FileNotFoundError: ")


def test_decisions_of_fusion(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    assert main([file, "-p", "fuse_tasks", "--diag", "--html", str(page)]) == 0
    assert re.match(r"fused    one \(p\.qd:2\) \+ two \(p\.qd:6\): \S.*\n$", capsys.readouterr().err)
    text = page.read_text(encoding="utf-8")
    assert "<h3>Fusion decisions</h3>" in text
    assert '<tr class="fused"><td>one + two</td><td>fused</td>' in text
    apart = tmp_path / "apart.qd"
    apart.write_text(TEXT.replace("load x j", "load x 3:i32"))
    assert main([str(apart), "-p", "fuse_tasks", "--diag"]) == 0
    assert re.match(r"refused  one \(apart\.qd:2\) \+ two \(apart\.qd:6\): \S.*\n$", capsys.readouterr().err)
    assert main([file, "-p", "fuse_tasks"]) == 0
    assert capsys.readouterr().err == ""
