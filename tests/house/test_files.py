"""House rules that hold for every file: size, finished work, no traces of one machine."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("qdtrace", "lowering", "tests", "benchmarks", "notebooks", "docs", ".ci")
SUFFIXES = {".py", ".md", ".toml", ".csv", ".txt", ".ipynb", ""}
MOST_LINES = 600


def word(*parts: str) -> str:
    """A word in pieces, so that this file does not contain it."""
    return "".join(parts)


UNFINISHED = [
    word(r"\bTO", r"DO\b"),
    word(r"\bFIX", r"ME\b"),
    word(r"\bXX", r"X\b"),
    word("raise ", "Not", "Implemented", "Error"),
    word("not ", "implemented yet"),
    word("(?i)place", "holder"),
]
MACHINE = [
    word(r"(?<![\w.])/ro", r"ot/"),
    word(r"(?<![\w.])/wo", r"rk/"),
    word(r"(?<![\w.])/ho", r"me/\w"),
    word("pypi", r"\.", "org"),
    word("python", "hosted"),
    word("npm", r"js\.", "(org|com)"),
    word("DESIGN", r"\.md"),
]
WORKSHOP = [  # how the project is made is no part of it
    word(r"(?i)(?<!scope=\")\bag", r"ents?\b"),  # LLVM calls the threads of an AMD GPU so
    word("(?i)proto", "type"),
    word(r"(?i)\bissue #?", r"\d"),
]


def project_files() -> list[Path]:
    found = [p for p in ROOT.iterdir() if p.is_file() and (p.suffix in SUFFIXES) and p.name != ".git"]
    for folder in FOLDERS:
        found += [
            p
            for p in (ROOT / folder).rglob("*")
            if p.is_file() and p.suffix in SUFFIXES and "__pycache__" not in p.parts
        ]
    return sorted(found)


FILES = project_files()


def offences(patterns: list[str], files: list[Path]) -> list[str]:
    rule = re.compile("|".join(f"(?:{p})" if not p.startswith("(?i)") else f"(?i:{p[4:]})" for p in patterns))
    lines = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := rule.search(line):
                lines.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    return lines


def test_there_are_files_of_every_part() -> None:
    parts = {p.relative_to(ROOT).parts[0] for p in FILES}
    assert {"qdtrace", "lowering", "tests", "benchmarks", "README.md", "Makefile", "LICENSE"} <= parts


def test_no_source_file_is_longer_than_the_cap() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in FILES if p.suffix == ".py"}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_the_architecture_fits_on_a_few_screens() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 230


def test_nothing_looks_unfinished() -> None:
    assert offences(UNFINISHED, FILES) == []


def test_no_paths_of_a_machine_and_no_hosts_of_registries() -> None:
    assert offences(MACHINE, FILES) == []


def test_nothing_tells_how_it_was_made() -> None:
    assert offences(WORKSHOP, FILES) == []


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        (word("x = 1  # TO", "DO later"), UNFINISHED),
        (word("raise Not", "ImplementedError"), UNFINISHED),
        (word("a Place", "holder"), UNFINISHED),
        (word('open("/ro', 'ot/x")'), MACHINE),
        (word("see iss", "ue 12"), WORKSHOP),
    ],
)
def test_the_rules_find_what_they_are_for(text: str, patterns: list[str]) -> None:
    assert re.search("|".join(p.removeprefix("(?i)") for p in patterns), text, re.IGNORECASE)


def test_every_package_is_explained() -> None:
    silent = []
    for path in FILES:
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("qdtrace", "lowering"):
            text = path.read_text().lstrip()
            if text and not text.startswith(('"""', 'r"""')):
                silent.append(str(path.relative_to(ROOT)))
    assert silent == []
