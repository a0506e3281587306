"""Decisions of task fusion as text."""

from typing import Any

import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import Loc
from qdtrace.passes.fusion_decisions import Decision, format_decision
from qdtrace.passes.observers import DecisionPrinter

V, X, READ = Loc("a/spring.py", 14), Loc("a/spring.py", 16, "step"), Loc("spring.py", 17)
SAME = "every access to `v` is at [i] in both"


@pytest.mark.parametrize(
    ("decision", "line"),
    [
        (Decision("v", "x", True, SAME, (V, X)), f"fused    v (spring.py:14) + x (spring.py:16): {SAME}"),
        (Decision("v", "x", False, "n", (V, X)), "refused  v (spring.py:14) + x (spring.py:16): n"),
        (Decision("v", "x", False, "n", (None, X)), "refused  v + x (spring.py:16): n"),
        (Decision("v", "x", False, "n", (V,)), "refused  v (spring.py:14) + x: n"),
        (Decision("", "x", False, "n"), "refused  unnamed + x: n"),
        (
            Decision("v", "x", False, "n", (V, X, READ, None, X, READ)),
            "refused  v (spring.py:14) + x (spring.py:16): n (at spring.py:17, spring.py:16)",
        ),
    ],
)
def test_lines(decision: Decision, line: str) -> None:
    assert format_decision(decision) == line


def test_the_printer_writes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    printer = DecisionPrinter()
    printer.on_decision(Decision("v", "x", True, "n"))
    printer.on_decision(Decision("x", "y", False, "m"))
    assert capsys.readouterr() == ("", "fused    v + x: n\nrefused  x + y: m\n")


def test_the_option_prints_each_decision(capsys: pytest.CaptureFixture[str]) -> None:
    def two(x: Any) -> Any:
        for i in qd.range(x.shape[0], name="one"):
            x[i] = 2 * x[i]
        for i in qd.range(x.shape[0], name="other"):
            x[i] = 1 + x[i]
        return x

    for option in (False, True):
        qd.jit(two, options={"fuse_tasks_diag": option}).lower(np.ones(4, np.float32)).graph()
        assert capsys.readouterr().err.startswith("fused    one (") is option
