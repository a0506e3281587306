"""Examples in the documents run and give the results shown."""

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))
PAGES = sorted(p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md"))
LONG = {"benchmarks.md"}
"""Pages whose programs take seconds."""
ADDED = re.findall(r'^    "([\w/]+\.md)": "', (ROOT / "docs/hooks.py").read_text(), re.MULTILINE)
"""Documents of the tree that docs/hooks.py makes pages of."""


def blocks(name: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)
    return [text for fence, text in found if fence == language]


def test_the_readme_example_runs() -> None:
    code = blocks("README.md", "python")[0]
    assert "qd.vmap(newton)" in code
    names: dict[str, object] = {}
    exec(compile(code.replace("10_000_000", "10_000"), "README.md", "exec"), names)
    # converged to the loop's own tolerance, half of it in the root
    np.testing.assert_allclose(names["roots"], np.sqrt(np.linspace(1.0, 1e6, 10_000)), rtol=1e-6)
    x = jnp.array([[0.0, 0.0], [2.0, 0.0]])
    edge = jnp.array([[0, 1]], jnp.int32)
    moved, speed = names["spring_step"](x, jnp.zeros((2, 2)), edge, jnp.ones(1), 0.1)  # type: ignore[operator]
    # a spring stretched by 1 pulls both ends with 50 for 0.1, damped by 0.99; the norm has 1e-9 added
    np.testing.assert_allclose(speed, [[4.95, 0.0], [-4.95, 0.0]], rtol=1e-5)
    np.testing.assert_allclose(moved, [[0.495, 0.0], [1.505, 0.0]], rtol=1e-5)
    derivatives = next(code for code in blocks("README.md", "python") if "jax.grad" in code)
    exec(compile(derivatives, "README.md", "exec"), names)
    miss: Any = names["miss"]
    assert miss(names["rest"]) < 0.05 * miss(jnp.ones(2))
    # the derivative of a Newton step lags behind its value: sqrt of the loop's tolerance
    np.testing.assert_allclose(names["slopes"], 0.5 / np.sqrt(np.linspace(2.0, 1e6, 1000)), rtol=1e-3)


def test_the_architecture_shows_the_graphs_of_its_program(tmp_path: Path) -> None:
    code, *_ = blocks("ARCHITECTURE.md", "python")
    script = tmp_path / "architecture.py"  # tracing reads source and frames, so there must be a file
    script.write_text(code)
    names: dict[str, object] = {"qd": qd, "jax": jax, "jnp": jnp}
    exec(compile(code, str(script), "exec"), names)
    low = names["low"]
    assert isinstance(low, qd.Lowered)
    traced, final = blocks("ARCHITECTURE.md")[:2]
    assert low.graph("trace").strip() == traced.strip()
    assert low.graph().strip() == final.strip()


def parsed(code: str) -> ast.Module:
    """A program. One that shows an error catches it: a `try` that ends without an error fails."""
    tree = ast.parse(code)
    for node in tree.body:
        if isinstance(node, ast.Try) and node.handlers and not node.orelse:
            node.orelse = ast.parse("raise AssertionError('the error that the page shows did not come')").body
    return ast.fix_missing_locations(tree)


def run_programs(page: Path, folder: Path) -> dict[str, Any]:
    """Runs the programs of a page in order, as one; gives their names."""
    names: dict[str, Any] = {}
    for k, code in enumerate(blocks(str(page), "python")):
        script = folder / f"block{k}.py"  # tracing reads source and frames, so there must be a file
        script.write_text(code)
        exec(compile(parsed(code), str(script), "exec"), names)
    return names


@pytest.mark.sample(10)
@pytest.mark.parametrize("page", [pytest.param(p, marks=[pytest.mark.full] * (p.name in LONG)) for p in PAGES], ids=str)
def test_every_program_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qdtrace.profiling.COPIED", 1 << 12)
    x64 = jax.config.jax_enable_x64
    try:
        run_programs(page, tmp_path)
    finally:
        jax.config.update("jax_enable_x64", x64)


@pytest.mark.parametrize("page", [*PAGES, *map(Path, ADDED)], ids=str)
def test_every_page_has_a_program_or_a_picture(page: Path) -> None:
    assert "HACKING.md" in ADDED
    assert blocks(str(page), "python") or "![" in (ROOT / page).read_text()


def test_an_error_that_does_not_come_fails_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\ntry:\n    x = 1\nexcept ValueError:\n    pass\n```\n")
    with pytest.raises(AssertionError, match="did not come"):
        run_programs(page, tmp_path)


def test_the_reference_has_every_public_name() -> None:
    found = re.findall(r"^::: qdtrace\.([\w.]+)$", "".join(p.read_text() for p in REFERENCE), re.MULTILINE)
    assert sorted(name.rpartition(".")[2].replace("Config", "config") for name in found) == sorted(qd.__all__)


def test_pictures_are_small_and_shown() -> None:
    texts = "".join((ROOT / page).read_text() for page in [*PAGES, Path("README.md")])
    pictures = [p for p in (ROOT / "docs/pictures").iterdir() if p.suffix in (".svg", ".png")]
    assert len(pictures) > 5
    shown = [p for p in pictures if p.name.replace("-narrow", "") in texts]  # docs/hooks.py adds those for telephones
    assert [p.name for p in pictures if p not in shown or p.stat().st_size > 100_000] == []


def test_the_language_names_what_a_body_is_written_with() -> None:
    """Everything public but derivatives, errors, and what looks at programs from outside."""
    text = (ROOT / "docs/language.md").read_text()
    outside = {"Buffer", "Cell", "Graph", "Jitted", "Lowered", "QdWarning", "config", "options", "make_graph"}
    outside |= {"dataclass", "def_import_rule", "grad", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp"}
    outside |= {"value_and_grad", "autodiff", "check_grads", "profile", "Profile", "stats", "Stats", "torch"}
    outside |= {"Sparsity", "sparse_hessian", "sparse_jacobian", "sparsity"}
    names = [n for n in qd.__all__ if n not in outside and not n.endswith("Error")]
    assert {"local", "while_", "when", "break_if"} <= set(names)
    assert [n for n in names if not re.search(rf"\b{n}\b", text)] == []


DOCUMENTS = ("README.md", "ARCHITECTURE.md", "HACKING.md", "CHANGELOG.md", "benchmarks/README.md")


@pytest.mark.parametrize("name", [*DOCUMENTS, *map(str, PAGES)])
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", text):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("name", [*DOCUMENTS, *map(str, PAGES)])
def test_powers_are_shown_as_written(name: str) -> None:
    """Outside of code two asterisks are bold: `2**63 - 2**32` was shown as 263 - 232."""
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\w\*\*-?\w", text) == []


def test_powers_in_docstrings_are_code() -> None:
    texts = [getattr(qd, name).__doc__ or "" for name in qd.__all__]
    prose = [re.sub(r"^ *>>>(?:.|\n)*?(?:\n\n|\Z)|`[^`\n]*`", "", text, flags=re.MULTILINE) for text in texts]
    assert [found for text in prose for found in re.findall(r"\d\*\*\d", text)] == []


def test_targets_named_in_the_readme_are_in_the_makefile() -> None:
    named = set(re.findall(r"\bmake (\w+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test", "bench"} <= named
    for target in named:
        listed = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert listed.returncode == 0, listed.stderr
