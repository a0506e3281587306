"""mypy and basedpyright, both strict, on the programs of the documents and on files of annotated code.

Left out are the rules that ask for annotations (the documents have few), and for basedpyright those on unknown types,
as `jnp.ones` itself has one; annotated code switches them on again, but for members of JAX. Packages without types are
no error (Optax, SciPy, Lineax), and a page may import again what it has imported, so that its programs can be copied.
"""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import qdtrace as qd
from tests.types import programs

ROOT = programs.ROOT
MYPY = ("--strict", "--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls")
UNTYPED = ("--disable-error-code=import-untyped",)
UNKNOWN = ("Argument", "Lambda", "Member", "Parameter", "Variable")
OFF = [f"reportUnknown{what}Type" for what in UNKNOWN]
OFF += ["reportMissingParameterType", "reportMissingTypeStubs", "reportDuplicateImport", "enableTypeIgnoreComments"]
WRONG = {f"failing_{name}" for name in programs.FOUND_BY_TYPES}

pytestmark = [
    pytest.mark.slow,  # `make lint` runs them
    pytest.mark.skipif(not (find_spec("mypy") and find_spec("basedpyright")), reason="needs the extra `dev`"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, code in programs.programs().items():
        (folder / f"{name}.py").write_text(code)
    rules = dict.fromkeys(OFF, False) | {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": True}
    settings = {**rules, "extraPaths": [str(ROOT)], "pythonVersion": "3.11", "include": ["*.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


def mypy(files: list[str]) -> subprocess.CompletedProcess[str]:
    cache = ROOT / ".mypy_cache"
    command = [sys.executable, "-m", "mypy", *MYPY, *UNTYPED, "--follow-imports=silent", f"--cache-dir={cache}", *files]
    return subprocess.run(command, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True)


def assert_found(told: str) -> None:
    """Errors are in those programs of the documents that are to have one, and nowhere else."""
    errors = [line for line in told.splitlines() if re.search(r":\d+(:\d+)?:? (- )?error: ", line)]
    assert [line for line in errors if Path(line.strip().partition(":")[0]).stem not in WRONG] == [], told
    assert {Path(line.strip().partition(":")[0]).stem for line in errors} == WRONG, told


def test_mypy_finds_nothing(folder: Path) -> None:
    told = mypy(sorted(map(str, folder.glob("*.py"))))
    assert told.returncode in (0, 1), told.stdout + told.stderr
    assert_found(told.stdout)


def test_basedpyright_finds_nothing(folder: Path) -> None:
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", str(folder)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode in (0, 1), told.stdout + told.stderr
    assert_found(told.stdout)


def test_a_mistake_in_a_program_without_annotations_is_found(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("import qdtrace as qd\n\n@qd.jit\ndef f(x):\n    return qd.zeros(x.shape).shpe\n")
    told = mypy([str(script)])
    assert told.returncode == 1
    assert 'wrong.py:5: error: "Array" has no attribute "shpe"' in told.stdout


def test_every_program_is_checked() -> None:
    code = programs.programs()
    for page in programs.PAGES:
        for block in programs.blocks(page, "python"):
            assert any(block.code in text for name, text in code.items()), f"{page}:{block.first + 1}"
    assert len(programs.NOTEBOOKS) > 8


def test_programs_that_are_only_shown_have_a_reason() -> None:
    shown = {str(page) for page in programs.PAGES if programs.blocks(page, "py")}
    assert shown == {str(programs.FAILING), *programs.SHOWN}


def test_a_function_that_is_defined_again_begins_a_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    parts = ["x = 1", "def f(): return x", "def f(): return 2 * x", "y = f()", "f = abs"]
    page.write_text("".join(f"```python\n{part}\n```\n" for part in parts))
    files = [[line for line in text.splitlines() if line] for text in programs.files_of(page)]
    assert files == [parts[:2], [parts[0], *parts[2:4]], [parts[0], parts[3], parts[4]]]


def test_annotated_programs_use_every_public_name() -> None:
    trees = [ast.parse(path.read_text()) for path in programs.CODE[:2]]
    attributes = (n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    used = {n.attr for n in attributes if ast.unparse(n.value) == "qd"}
    assert set(qd.__all__) - used == set()
