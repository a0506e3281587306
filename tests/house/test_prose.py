"""Docstrings can be read alone: none begins like a fragment that leans on its neighbours (HACKING, "Prose")."""

import ast
import re

import pytest

from .tables import ROOT, ROOTS

FRAGMENT = re.compile(r"(What|Of|Whether|Where|How|Which|That|Those|True when|From|By|As|For|With|In|Into|To)\b")
FILES = sorted(p for root in ROOTS for p in (ROOT / root).rglob("*.py"))


def fragments(text: str) -> list[str]:
    """Returns the first lines of docstrings, of fields too, that begin like a fragment."""
    values = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    strings = (v.value.strip() for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))
    return [string.splitlines()[0] for string in strings if FRAGMENT.match(string)]


@pytest.mark.parametrize("root", ROOTS)
def test_no_docstring_is_a_fragment(root: str) -> None:
    found = {str(p.relative_to(ROOT)): fragments(p.read_text()) for p in FILES if p.is_relative_to(ROOT / root)}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_fragments_are_seen() -> None:
    module = '"""Heads."""\nx = 1\n"""Of the loop."""\ndef f():\n    """Whether it is."""\n'
    assert fragments(module) == ["Of the loop.", "Whether it is."]
