"""mypy and basedpyright, both strict, on the programs of the documents and on two files of annotated code.

Left out are the rules that ask for annotations (the documents have few), and for basedpyright those on unknown types,
as `jnp.ones` itself has one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/language.md")
CODE = ("tests/types/annotated.py", "tests/types/mistakes.py")
MYPY = ("--strict", "--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls")
UNKNOWN = ("Argument", "Lambda", "Member", "Parameter", "Variable")

pytestmark = [
    pytest.mark.slow,  # `make lint` runs them
    pytest.mark.skipif(not (find_spec("mypy") and find_spec("basedpyright")), reason="needs the extra `dev`"),
]


def program(page: str) -> str:
    """The Python blocks of a page, each where it is: an error names the line of the page."""
    text = (ROOT / page).read_text()
    lines = [""] * text.count("\n")
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        first = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("programs")
    for name in PAGES:
        code = program(name)
        assert "qd." in code
        (folder / name.replace("/", "_").replace(".md", ".py")).write_text(code)
    for name in CODE:
        (folder / Path(name).name).write_text((ROOT / name).read_text())
    off = [f"reportUnknown{what}Type" for what in UNKNOWN] + ["reportMissingParameterType", "enableTypeIgnoreComments"]
    rules = dict.fromkeys(off, False) | {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": True}
    settings = {**rules, "extraPaths": [str(ROOT)], "pythonVersion": "3.11", "include": ["*.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return sorted(map(str, folder.glob("*.py")))


def mypy(files: list[str]) -> subprocess.CompletedProcess[str]:
    cache = ROOT / ".mypy_cache"
    command = [sys.executable, "-m", "mypy", *MYPY, "--follow-imports=silent", f"--cache-dir={cache}", *files]
    return subprocess.run(command, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True)


def test_mypy_finds_nothing(files: list[str]) -> None:
    told = mypy(files)
    assert told.returncode == 0, told.stdout + told.stderr


def test_basedpyright_finds_nothing(files: list[str]) -> None:
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    told = subprocess.run([*command, "--project", str(Path(files[0]).parent)], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_mistake_in_a_program_without_annotations_is_found(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("import qdtrace as qd\n\n@qd.jit\ndef f(x):\n    return qd.zeros(x.shape).shpe\n")
    told = mypy([str(script)])
    assert told.returncode == 1
    assert 'wrong.py:5: error: "Array" has no attribute "shpe"' in told.stdout
