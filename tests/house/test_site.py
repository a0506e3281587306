"""docs/hooks.py and docs/doctests.py turn the sources of the site into its pages and tests."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"tour.md", "design/0008-bounds.md", "architecture.md", "index.md", "notebooks/quickstart.md"}


def loaded(name: str) -> ModuleType:
    for needed in ("mkdocs", "griffe", "jupytext", "nbconvert"):
        pytest.importorskip(needed, reason="the site needs the extra `docs`")
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(text: str, page: str) -> str:
    files: Any = SimpleNamespace(get_file_from_path=lambda name: name if name in PAGES else None)
    at: Any = SimpleNamespace(file=SimpleNamespace(src_uri=page), meta={})
    return loaded("hooks").on_page_markdown(text, at, SimpleNamespace(), files)


@pytest.mark.parametrize(
    ("text", "page", "want"),
    [
        ("[a](tour.md#x)", "index.md", "[a](tour.md#x)"),
        ("[a](../README.md)", "tour.md", "[a](index.md)"),
        ("[a](../notebooks/quickstart.py)", "tour.md", "[a](notebooks/quickstart.md)"),
        ("[a](docs/design/0008-bounds.md)", "architecture.md", "[a](design/0008-bounds.md)"),
        ("[`a`](../../ARCHITECTURE.md)", "design/0008-bounds.md", "[`a`](../architecture.md)"),
        ("[a](../Makefile), [b](../qdtrace/ir/README.md)", "tour.md", "a, b"),  # of the tree, no page
        ("[a](docs/design)", "architecture.md", "a"),
        ("[a](none.md)", "tour.md", "[a](none.md)"),  # mkdocs warns of it
        ("[a](https://example.org/b)", "tour.md", "[a](https://example.org/b)"),
        ("`f[i](../Makefile)`", "tour.md", "`f[i](../Makefile)`"),
        ("```\nf[i](x)\n```\n", "tour.md", "```\nf[i](x)\n```\n"),
    ],
)
def test_links_of_the_tree_lead_to_pages(text: str, page: str, want: str) -> None:
    assert shown(text, page) == want


def test_a_notebook_that_did_not_run_says_so(tmp_path: Path) -> None:
    source = tmp_path / "never_run.py"
    source.write_text("# %% [markdown]\n# # Halves\n\n# %%\nhalf = 1 / 2\n")
    made = loaded("hooks").notebook(source)
    assert list(made) == ["never_run.md"]
    text = str(made["never_run.md"])
    assert text.startswith("# Halves\n\n!!! note\n")
    assert "make notebooks docs" in text
    assert "```python\nhalf = 1 / 2\n```" in text


@pytest.mark.parametrize(
    ("page", "is_behind"), [("tour.md", False), ("reference/functions.md", False), ("design/0008-bounds.md", True)]
)
def test_search_lists_pages_for_users_first(page: str, is_behind: bool) -> None:
    at: Any = SimpleNamespace(file=SimpleNamespace(src_uri=page), meta={})
    loaded("hooks").on_page_markdown("text", at, SimpleNamespace(), SimpleNamespace())
    assert (at.meta.get("search", {}).get("boost", 1.0) < 1.0) is is_behind


def test_the_site_names_the_first_functions_and_says_how_to_search() -> None:
    assert "qd.jit, qd.vmap: reference/functions.md" in (DOCS / ".nav.yml").read_text()
    assert "make serve" in (DOCS / "local.js").read_text()
    assert re.search(r"^serve: docs$", (DOCS.parent / "Makefile").read_text(), re.MULTILINE)


def test_an_example_of_a_docstring_is_a_program() -> None:
    docstring = SimpleNamespace(value="Adds.\n\n>>> add(1)\n2\n\nArgs:\n    x: a number.")
    loaded("doctests").Doctests().on_object(obj=SimpleNamespace(docstring=docstring))
    assert docstring.value == "Adds.\n\n```pycon\n>>> add(1)\n2\n```\n\nArgs:\n    x: a number."


def test_an_open_bracket_in_front_of_much_code() -> None:
    """With two ways to match, each further pair of backticks doubled the time."""
    text = "an open [ and " + "`a` of " * 200
    assert shown(text, "index.md") == text
