"""Mistakes that newcomers from JAX, NumPy, Taichi, Numba and Warp make: each is told the rule, the line and a fix."""

import linecache
import re
import traceback

import jax
import numpy as np
import pytest

import qdtrace as qd
from tests.mistakes.plain import answer, meant
from tests.mistakes.programs import Mistake, mistakes, run

ALL = mistakes()
FIXED = [
    pytest.param(m, marks=pytest.mark.slow if k % 3 else ()) for k, m in enumerate(m for m in ALL if m.right)
]  # all of them take a minute and a half
WARNED = [m for m in ALL if m.error == "QdWarning"]
REFUSED = mistakes("refused")


def test_the_table_is_whole() -> None:
    assert len(ALL) >= 300
    assert len({m.name for m in ALL + REFUSED}) == len(ALL + REFUSED)
    assert all(m.right for m in ALL)


def with_lines(note: str, file: str) -> str:
    """The note, with the source line in the place of `FILE:LINE in FUNCTION`."""
    place = re.compile(rf"{re.escape(file)}:(\d+)( in \S+)?")
    return place.sub(lambda found: linecache.getline(file, int(found[1])).strip(), note)


def told(mistake: Mistake) -> list[str]:
    """Runs it, and looks at its error, of which these are the notes."""
    file = f"{mistake.name}.py"
    with pytest.raises(getattr(qd, mistake.error)) as caught:
        run(mistake.kind, mistake.wrong, file)
    error = caught.value
    assert isinstance(error, qd.QdError)
    assert error.rule.startswith(mistake.rule)  # newer releases of JAX say more
    assert error.help == mistake.fix
    shown = [line.strip() for line in str(error).splitlines()]
    assert mistake.line in shown
    shown_frames = traceback.extract_tb(error.__traceback__)[2:]  # without this file and programs.py
    assert {frame.filename for frame in shown_frames} == {file}
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    return [with_lines(note, file) for note in error.notes]


@pytest.mark.parametrize("mistake", [m for m in ALL if m not in WARNED], ids=lambda m: m.name)
def test_a_mistake_is_told_rule_line_and_fix(mistake: Mistake) -> None:
    notes = told(mistake)
    assert not mistake.notes or notes == mistake.notes


@pytest.mark.parametrize("mistake", REFUSED, ids=lambda m: m.name)
def test_a_refusal_is_told_whole_and_leaves_nothing(mistake: Mistake) -> None:
    for _ in range(2):  # the second call must not find anything that the first one left
        assert told(mistake) == mistake.notes
        np.testing.assert_array_equal(run("task", "x[i] = i", "good.py"), np.arange(8))


@pytest.mark.parametrize("mistake", WARNED, ids=lambda m: m.name)
def test_a_mistake_that_has_no_effect_is_told(mistake: Mistake) -> None:
    file = f"{mistake.name}.py"
    with pytest.warns(qd.QdWarning) as caught:
        run(mistake.kind, mistake.wrong, file)
    (told,) = caught
    assert str(told.message) == f"{mistake.rule}\nhelp: {mistake.fix}"
    assert (told.filename, linecache.getline(file, told.lineno).strip()) == (file, mistake.line)


@pytest.mark.sample(3)
@pytest.mark.parametrize("mistake", FIXED, ids=lambda m: m.name)
def test_the_fix_gives_what_was_meant(mistake: Mistake) -> None:
    result = run(mistake.kind, mistake.right, f"{mistake.name}_right.py")
    with np.errstate(all="ignore"):
        right = answer(mistake.answer) if mistake.answer else meant(mistake.kind, mistake.wrong)
    assert jax.tree.structure(result) == jax.tree.structure(right)
    for given, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(given, np.asarray(wanted), rtol=1e-5, atol=1e-6)  # of f32, by other libraries
