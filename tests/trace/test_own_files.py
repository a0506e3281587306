"""Which files are the user's program: state of a library is trusted, that of the user's own code is looked into."""

import json
import os
import random
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import fresh

ROOT = Path(__file__).parents[2]
HELPER = """
import itertools
COUNT = itertools.count(1)
def counted(x):
    return x * next(COUNT)
"""
PROGRAM = """
import importlib
import numpy as np
import qdtrace as qd
for name in {modules}:
    counted = importlib.import_module(name).counted
    try:
        qd.vmap(lambda x: counted(x))(np.ones(3, np.float32))
    except qd.QdError as error:
        assert "would carry a value" in str(error), error
        print("own")
    else:
        print("library")
"""
RECORD = "thing/__init__.py,,\nthing/parts/more.py,,\nlone.py,,\nthing-1.0.dist-info/RECORD,,\n../../bin/thing,,\n"


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


PACKAGE = {"thing/__init__.py": HELPER, "lone.py": HELPER, "thing/parts/more.py": HELPER, "other.py": HELPER}
METADATA = {"thing-1.0.dist-info/RECORD": RECORD, "thing-1.0.dist-info/METADATA": "Name: thing\nVersion: 1.0\n"}


def answers(program: Path, *path: Path, main: tuple[str, ...] = ()) -> list[str]:
    """Returns what a program of its own says of modules, with folders on its path."""
    command = [sys.executable, *(main or (str(program),))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)])}
    return fresh.run(command, env=environment, cwd=program.parent, check=True).stdout.split()


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Path]:
    """Returns what writes a program beside its own module `mine`, given the modules that it asks for."""

    def made(*modules: str) -> Path:
        files = {"mine.py": HELPER, "main.py": PROGRAM.format(modules=modules)}
        return written(tmp_path / "program", files) / "main.py"

    return made


def test_a_library_beside_its_metadata(tmp_path: Path, program: Any) -> None:
    """As `pip install --target` leaves it."""
    target = written(tmp_path / "target", PACKAGE | METADATA)
    asked = program("thing", "thing.parts.more", "lone", "other", "mine")
    assert answers(asked, target) == ["library", "library", "library", "own", "own"]


def test_a_library_in_the_folder_of_the_program(program: Any) -> None:
    asked = program("thing", "mine")
    written(asked.parent, PACKAGE | METADATA)
    assert answers(asked) == ["library", "own"]


def test_folders_that_nothing_was_installed_into(tmp_path: Path, program: Any) -> None:
    folder = written(tmp_path / "plain", PACKAGE)
    archive = packed(tmp_path / "packed.zip", {"inside.py": HELPER})
    assert answers(program("thing", "lone", "inside"), folder, archive) == ["own", "own", "own"]


def packed(archive: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(archive, "w") as out:
        for name, text in files.items():
            out.writestr(name, text)
    return archive


def test_an_archive_with_metadata(tmp_path: Path, program: Any) -> None:
    archive = packed(tmp_path / "packed.zip", PACKAGE | METADATA)
    assert answers(program("thing", "other"), archive) == ["library", "own"]


def test_folders_for_installed_packages(tmp_path: Path, program: Any) -> None:
    folders = ("site-packages", "lib/python3/dist-packages", "thing-1.0-py3.11.egg")
    path = [written(tmp_path / folder, {f"{name}.py": HELPER}) for folder, name in zip(folders, "abc", strict=True)]
    assert answers(program(*"abc"), *path) == ["library", "library", "library"]


def test_what_runs_as_main_is_the_users(tmp_path: Path) -> None:
    """A package that runs by `-m` is, also where it is installed; what it imports from beside it is not."""
    text = PROGRAM.format(modules=("thing", "other"))
    site = written(tmp_path / "site-packages", PACKAGE | {"thing/__main__.py": text})
    assert answers(tmp_path / "any", site, main=("-m", "thing")) == ["own", "library"]
    assert answers(tmp_path / "any", site, main=("-c", text)) == ["library", "library"]


@pytest.mark.parametrize("is_needed", [False, True])
def test_a_project_that_is_installed_in_place(tmp_path: Path, program: Any, is_needed: bool) -> None:
    """It is the user's own, unless another package that is installed is built on it."""
    project = written(tmp_path / "project" / "src", PACKAGE | {"Thing_One.egg-info/PKG-INFO": "Name: Thing_One\n"})
    metadata = {
        "thing_one-1.0.dist-info/METADATA": "Name: Thing_One\nVersion: 1.0\nRequires-Dist: jax\n",
        "thing_one-1.0.dist-info/RECORD": "thing_one.pth,,\n",
        "thing_one-1.0.dist-info/direct_url.json": json.dumps(
            {"url": f"file://{tmp_path}/project", "dir_info": {"editable": True}}
        ),
        "broken-1.0.dist-info/direct_url.json": "{",
        "other-1.0.dist-info/METADATA": f"Name: other\nRequires-Dist: {'Thing.one>=1' if is_needed else 'jax'}\n",
    }
    site = written(tmp_path / "site-packages", metadata)
    assert answers(program("thing"), project, site) == ["library" if is_needed else "own"]


LARGE = """
import time
import numpy as np
import qdtrace as qd
from large import m99
from qdtrace.trace.diagnosis import state
spent, most = 0.0, 0
def timed(method):
    def call(self, *args):
        global spent, most
        begin = time.process_time()
        try:
            return method(self, *args)
        finally:
            spent += time.process_time() - begin
            most = max(most, len(self._codes))
    return call
for name in ("begin", "end", "restore"):
    setattr(state.State, name, timed(getattr(state.State, name)))
@qd.jit
def f(x):
    for i in qd.range(3):
        x[i] = m99.f0(x[i])
    return x
assert f(np.ones(3, np.float32)).tolist() == [2, 2, 2]
print(most, spent)
"""


def large(folder: Path) -> Path:
    """Writes a package of 10,000 functions, each of which names some others of its module and of other modules."""
    draw = random.Random(0)
    files = {"large/__init__.py": ""}
    for k in range(100):
        near = draw.sample(range(k), min(k, 3))
        lines = ["import numpy as np", "TABLE = {}", *(f"from large import m{other}" for other in near)]
        for j in range(100):
            named = [f"f{(j + 1) % 100}", f"f{draw.randrange(100)}", *(f"m{o}.f{draw.randrange(100)}" for o in near)]
            lines.append(f"def f{j}(x, deep=0):\n    for g in ({', '.join(named)},):\n        if deep:")
            lines.append("            TABLE[deep] = g(np.float32(x), deep - 1)\n    return x + 1")
        files[f"large/m{k}.py"] = "\n".join(lines)
    return written(folder, files)


@pytest.mark.parametrize("is_library", [False, True])
def test_what_a_large_program_costs(tmp_path: Path, is_library: bool) -> None:
    """The search for state takes 20 to 50 ms of this program, measured alone on a processor."""
    folder = large(tmp_path / ("site-packages" if is_library else "plain"))
    looked_at, seconds = map(float, answers(tmp_path / "any", folder, main=("-c", LARGE)))
    assert looked_at < 20 if is_library else 100 < looked_at <= 751
    assert seconds < 0.25  # of a processor that others use, too; 0.5 s before there was a bound on functions
