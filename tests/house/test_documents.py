"""What the documents show is what happens."""

from __future__ import annotations

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


@pytest.mark.parametrize("page", ["docs/language.md", "docs/debugging.md"])
def test_every_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    codes = blocks(page, "python")
    assert len(codes) >= 5
    for k, code in enumerate(codes):
        script = tmp_path / f"block{k}.py"
        script.write_text(code)
        exec(compile(code, str(script), "exec"), names)


def test_refusals_of_the_language_happen() -> None:
    """Blocks that show an error catch it: without it they would pass."""
    names: dict[str, Any] = {}
    for code in blocks("docs/language.md", "python"):
        exec(compile(code.split("\ntry:")[0], "language.md", "exec"), names)
    with pytest.raises(qd.InterpreterError, match="race"):
        names["race"](jnp.array([2.0, 3.0]))
    with pytest.raises(qd.BoundsError):
        names["shifted"](jnp.arange(3.0), 1)


def test_the_language_names_what_a_body_is_written_with() -> None:
    """Everything public but derivatives, errors, and what looks at programs from outside."""
    text = (ROOT / "docs/language.md").read_text()
    outside = {"Buffer", "Cell", "Graph", "Jitted", "Lowered", "QdWarning", "config", "options", "make_graph"}
    outside |= {"dataclass", "def_import_rule", "grad", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp"}
    outside |= {"value_and_grad", "autodiff", "check_grads"}
    names = [n for n in qd.__all__ if n not in outside and not n.endswith("Error")]
    assert {"local", "while_", "when", "break_if"} <= set(names)
    assert [n for n in names if not re.search(rf"\b{n}\b", text)] == []


@pytest.mark.parametrize(
    "name",
    ["README.md", "ARCHITECTURE.md", "HACKING.md", "CHANGELOG.md", "benchmarks/README.md", "docs/language.md"],
)
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_targets_named_in_the_readme_are_in_the_makefile() -> None:
    named = set(re.findall(r"\bmake (\w+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test", "bench"} <= named
    for target in named:
        listed = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert listed.returncode == 0, listed.stderr
