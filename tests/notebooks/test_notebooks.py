"""Every notebook runs from its first cell to its last, and draws."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NEEDS = "notebooks need the extra `notebooks`"
SLOW = {"batching", "chains", "million_odes", "physics", "rays", "settling", "sparse"}  # near 20 s and above
NEEDS_TORCH = {"throwing"}
BROKEN = "# %% [markdown]\n# Halves\n\n# %%\nhalf = 1 / 2\n\n# %%\nassert half == 2, 'a half is not two'\n"


def execute(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    for name in ("diffrax", "ipykernel", "jupytext", "matplotlib", "nbconvert", "optax"):
        pytest.importorskip(name, reason=NEEDS)
    command = [sys.executable, "-m", "jupytext", "--to", "ipynb", "--execute", "--output", str(target), str(source)]
    return subprocess.run(command, cwd=target.parent, capture_output=True, text=True, check=False, timeout=600)


def sources():
    for path in sorted(FOLDER.glob("*.py")):
        yield pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in SLOW else pytest.mark.full)


@pytest.mark.parametrize("source", [*sources()])
def test_a_notebook_runs(source: Path, tmp_path: Path) -> None:
    if source.stem in NEEDS_TORCH:
        pytest.importorskip("torch", reason="the notebook needs the extra `torch`")
    target = tmp_path / "out.ipynb"
    done = execute(source, target)
    assert done.returncode == 0, done.stderr
    cells = [cell for cell in json.loads(target.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    # a warning would stand in the notebook that a reader sees
    assert ["".join(o["text"]) for o in outputs if o.get("name") == "stderr"] == []


def test_a_cell_that_raises_fails_the_notebook(tmp_path: Path) -> None:
    source = tmp_path / "broken.py"
    header = (FOLDER / "quickstart.py").read_text().split("# %%")[0]  # names the kernel
    source.write_text(header + BROKEN)
    done = execute(source, tmp_path / "out.ipynb")
    assert done.returncode != 0
    assert "a half is not two" in done.stderr


def test_there_are_notebooks_and_only_sources_are_kept() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} > SLOW | {"quickstart"}
    listed = subprocess.run(["git", "ls-files", "*.ipynb"], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert listed.stdout == ""
