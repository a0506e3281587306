"""The replay sees a text that differs, names it, and does not see where a tree is."""

import re
from pathlib import Path

import pytest

from qdtrace.ir.parser import parse_program
from qdtrace.passes import pipelines
from qdtrace.passes.mem2reg import Mem2Reg
from tests.replay import __main__ as command
from tests.replay import store
from tests.replay.difference import compare
from tests.replay.normalise import normalised
from tests.replay.programs import adjoints_of, collected, graph
from tests.replay.texts import texts_of
from tests.replay.trees import ROOT, NoTextsError

PROGRAM = parse_program("""
program scaled(x: ref[f64,40])
  buffer y: ref[f64,40]
  range_for i in 0:i32 : 40:i32 @"scaled.0"
    v: f64 = load x i
    unused: f64 = sin v
    twice: f64 = mul v 2.0:f64
    store y twice i
  return y
""")
TARGETS = ("cpu", "avx512", "avx2", "aarch64", "sm_90", "gfx942")


def kept(folder: Path, **programs: dict[str, str]) -> Path:
    """A folder with the texts of programs."""
    folder.mkdir()
    for name, texts in programs.items():
        store.save(store.path_in(folder, name), texts)
    return folder


def test_texts_are_kept_as_they_are(tmp_path: Path) -> None:
    texts = {"cpu final": "a\nb", "cpu storage": "", "sm_90 llvm": "==== no header\n\nend\n"}
    assert store.load(store.path_in(kept(tmp_path / "a", one=texts), "one")) == texts


def test_a_changed_text_is_seen_and_named(tmp_path: Path) -> None:
    same = {"cpu traced": "equal"}
    before = kept(tmp_path / "a", one={**same, "cpu final": "x\ny\nz"}, two=same)
    after = kept(tmp_path / "b", one={**same, "cpu final": "x\nw\nz", "sm_90 llvm": "new"}, two=same)
    found = compare(before, after)
    assert found.summary == "2 programs, 4 texts, 2 differ"
    changed, added = found.differences
    head = ["--- one: cpu final (abc)", "+++ one: cpu final (this tree)"]
    assert changed.lines("abc", "this tree") == [*head, "@@ -1,3 +1,3 @@", " x", "-y", "+w", " z"]
    assert added.lines("abc", "this tree")[0] == "--- one: sm_90 llvm (abc, none)"
    assert compare(before, after, "two").summary == "1 programs, 1 texts, 0 differ"


@pytest.mark.parametrize(("text", "status"), [("x", 0), ("y", 1)])
def test_the_exit_status(
    text: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [kept(tmp_path / "a", one={"cpu final": "x"}), kept(tmp_path / "b", one={"cpu final": text})]
    (tmp_path / "build" / "replay").mkdir(parents=True)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "commit_of", str)
    monkeypatch.setattr(command, "make_texts", lambda commit, *_: folders[0 if commit else 1])
    assert command.main(["--ref", "abc"]) == status
    assert f"1 programs, 1 texts, {status} differ" in capsys.readouterr().out
    assert command.main(["nothing", "--ref", "abc"]) == 2


def test_a_tree_without_texts_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*_: object) -> Path:
        raise NoTextsError("abc has no printer")

    monkeypatch.setattr(command, "commit_of", str)
    monkeypatch.setattr(command, "make_texts", refused)
    assert command.main(["--ref", "abc"]) == 2
    assert "abc has no printer" in capsys.readouterr().err


def test_lines_of_programs_stay_and_those_of_the_package_go() -> None:
    text = "a  # {0}/tests/importer/bodies.py:12 in f\nb  # {0}/lowering/simd/emit.py:77\nc  # /qdtrace/mine.py:5"
    want = "a  # tests/importer/bodies.py:12 in f\nb  # lowering/simd/emit.py\nc  # /qdtrace/mine.py:5"
    assert normalised(text.format("/there/replay-1"), "/there/replay-1") == want


def test_the_folder_is_that_of_the_content(tmp_path: Path) -> None:
    source = tmp_path / "qdtrace" / "one.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    first = store.folder_of(tmp_path, ROOT)
    assert store.folder_of(tmp_path, ROOT) == first
    source.write_text("x = 2\n")
    assert store.folder_of(tmp_path, ROOT) != first


def test_a_program_has_a_text_of_each_stage_for_each_target() -> None:
    texts = texts_of(graph(lambda: PROGRAM))
    assert {name.split()[0] for name in texts} == set(TARGETS)
    for machine in ("cpu", "sm_90", "gfx942"):
        assert texts[f"{machine} traced"].count("sin") == 1
        assert [texts[f"{machine} {stage}"].count("sin") for stage in ("canonical", "joined", "final")] == [0, 0, 0]
    assert re.search(r"<8 x double>", texts["avx512 llvm"])
    assert re.search(r"<4 x double>", texts["avx2 llvm"])
    assert "import triton" in texts["sm_90 triton"]


def test_adjoints_are_made_for_each_machine() -> None:
    texts = texts_of(adjoints_of(lambda: PROGRAM))
    assert "program scaled_r0" in texts["cpu traced"]
    assert "program scaled_r0" in texts["gfx942 final"]


def test_a_changed_pass_is_seen_from_its_stage_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept(tmp_path / "a", one=texts_of(graph(lambda: PROGRAM)))
    again = kept(tmp_path / "b", one=texts_of(graph(lambda: PROGRAM)))
    assert not compare(before, again).differences
    monkeypatch.setattr(pipelines, "simplify_for", lambda *_, **__: Mem2Reg())
    after = kept(tmp_path / "c", one=texts_of(graph(lambda: PROGRAM)))
    names = [one.text for one in compare(before, after).differences]
    assert names[0] == "cpu canonical"
    assert "avx2 llvm" in names
    assert not any("traced" in name for name in names)


@pytest.mark.full
def test_there_are_programs_of_each_kind() -> None:
    kinds = {name.split(".")[0] for name in collected()}
    assert kinds == {"corpus", "random", "body", "derivative", "bench"}
