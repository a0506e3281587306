"""What is kept on disk is never stale: processes over one folder, before and after a change of each program."""

import json
import os
from pathlib import Path

import pytest

from tests import fresh
from tests.compose.changing_programs import PLACES, command, drawn, write

ROOT = Path(__file__).parents[2]
COUNTS = [6, pytest.param(150, marks=pytest.mark.full)]


@pytest.mark.every_case
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("pure", [False, True], ids=["default", "pure"])
def test_none_is_stale(tmp_path, pure, count):
    programs = drawn(count, count, promised=pure)

    def told(cache, *, after):
        """Returns values and gradients, with the numbers of functions that were found and traced, by program."""
        write(tmp_path, programs, after=after)
        env = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(tmp_path / cache), "PYTHONPATH": str(ROOT)}
        env |= {"QD_OFFLINE_CACHE": "1", "QD_OFFLINE_CACHE_PASSES": "1", "QD_PURE": str(int(pure))}
        return json.loads(fresh.run(command(programs), env=env, cwd=tmp_path, check=True).stdout)

    first, second = told("kept", after=False), told("kept", after=True)
    expected, third = told("fresh", after=True), told("kept", after=True)
    for program, old, new, want, again in zip(programs, first, second, expected, third, strict=True):
        assert old[0] != want[0], f"{program.change} changes nothing"
        assert new[0] == again[0] == want[0], program.change
        assert new[1] == 0, program.change
        assert bool(again[1]) == pure, program.change


def test_all_places_are_drawn():
    assert {p.change for p in drawn(150, 150, promised=False)} == {*PLACES}
