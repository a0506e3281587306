"""What documents name of the tree is there: modules, what is in them, designs by number."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = sorted(p.relative_to(ROOT) for part in ("qdtrace", "lowering") for p in (ROOT / part).rglob("README.md"))
TOP = ("README.md", "ARCHITECTURE.md", "HACKING.md", "benchmarks/README.md")
DOCUMENTS = [*map(Path, TOP), *READMES, *sorted(p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md"))]
MODULES = [p.relative_to(ROOT) for part in ("qdtrace", "lowering") for p in (ROOT / part).rglob("*.py")]
PARTS = ("qdtrace", "lowering", "tests", "benchmarks", "docs", "notebooks", ".ci")
PLACES = {"/" + str(p.relative_to(ROOT)) for part in PARTS for p in [ROOT / part, *(ROOT / part).rglob("*")]}
"""Files and folders, each behind a slash, so that a path may begin at any folder."""
MADE = ("build/", "dist/")
"""Folders that commands make."""
OTHERS = ("qdtrace.backends", "qdtrace.cache")
"""A group of entry points, and a logger."""


def words_of(text: str) -> list[str]:
    """What stands in backticks, as one word, outside of programs."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return sorted(set(re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", prose)))


def files_of(path: str) -> list[Path]:
    """Modules that a path without suffix names, from any folder on; of a package its `__init__`."""
    ends = (f"/{path}.py", f"/{path}/__init__.py")
    return [m for m in MODULES if f"/{m}".endswith(ends)]


def is_there(name: str) -> bool:
    """Whether a word that looks like a path, or like something in a module, names something of the tree."""
    if name in OTHERS or name.startswith(MADE) or any(place.endswith(f"/{name.rstrip('/')}") for place in PLACES):
        return True
    words = re.split(r"[/.]", name)
    ways = [(files_of("/".join(words[:k])), words[k:]) for k in range(1, len(words) + 1)]
    if "/" not in name and (len(words) == 1 or not any(files for files, _ in ways)):
        return not name.endswith(".py")  # another word
    texts = [([(ROOT / f).read_text() for f in files], rest) for files, rest in ways]
    return any(all(re.search(rf"\b{word}\b", text) for word in rest) for found, rest in texts for text in found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_what_is_named_is_there(document: Path) -> None:
    text = (ROOT / document).read_text()
    assert [name for name in words_of(text) if not is_there(name)] == []
    for number in re.findall(r"\bdesign/(\d{4})\b", text):
        assert list((ROOT / "docs/design").glob(f"{number}-*.md")), number


@pytest.mark.parametrize("readme", READMES, ids=str)
def test_a_readme_names_every_file_of_its_package(readme: Path) -> None:
    text = (ROOT / readme).read_text()
    stems = {p.stem for p in (ROOT / readme).parent.glob("*.py")} - {"__init__"}
    assert sorted(stem for stem in stems if not re.search(rf"\b{stem}\b", text)) == []


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("analysis/index/affine", True),
        ("importer/elements.per_element", True),
        ("qdtrace/passes/pipelines.py", True),
        ("lowering/tables", True),
        ("runtime/tables", False),
        ("analysis.affine", False),
        ("pipelines.no_such_name", False),
        ("no_such_file.py", False),
        ("jax.jit", True),
        ("build/site", True),
    ],
)
def test_the_rule_finds_what_it_is_for(name: str, there: bool) -> None:
    assert is_there(name) is there
