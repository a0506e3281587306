"""The page of errors is true: each program gives the message below it, each fix runs, each class is there."""

import re

import pytest

import qdtrace as qd
from tests.errors.page import PAGE, programs, run, told

PROGRAMS = programs()


@pytest.mark.parametrize(("code", "text"), PROGRAMS, ids=map(str, range(len(PROGRAMS))))
def test_a_program_gives_what_is_below_it(code: str, text: str | None) -> None:
    if text is None:
        run(code)
    else:
        assert told(code) == text


def test_every_class_has_a_heading_and_a_row() -> None:
    classes = [name for name in qd.__all__ if name.endswith(("Error", "Warning")) and name != "QdError"]
    text = PAGE.read_text()
    assert re.findall(r"^## qd\.(\w+)$", text, re.MULTILINE) == re.findall(r"^\| \[`qd\.(\w+)`\]", text, re.MULTILINE)
    assert sorted(re.findall(r"^## qd\.(\w+)$", text, re.MULTILINE)) == sorted(classes)
    told = [name for name in classes if any(f"qdtrace.errors.{name}: " in (text or "") for _, text in PROGRAMS)]
    assert {*classes} - {*told} == {"OutOfMemoryError"}


def test_the_table_names_the_bases() -> None:
    for name, bases in re.findall(r"^\| \[`qd\.(\w+)`\]\S+ \| (.*?) \|", PAGE.read_text(), re.MULTILINE):
        named = re.findall(r"`(?:qd\.)?(\w+)`", bases)
        assert named == [b.__name__ for b in getattr(qd, name).__bases__ if b.__name__ != "QdError"]
