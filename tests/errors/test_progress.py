"""A terminal shows progress while compiling takes long, and nothing but a terminal shows it."""

import os
import pty
import re
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import qdtrace as qd
from qdtrace import progress

CHILD = """
import sys, time
import qdtrace as qd
from qdtrace import progress
from qdtrace.progress import doing
progress.PATIENCE, progress._AGAIN = float(sys.argv[1]), 0.01
with doing("optimising", "step"):
    time.sleep(0.1)
    with doing("compiling", "", 17) as stage:
        for k in range(4):
            stage.step(f"step.{k}")
        time.sleep(0.1)
print("done", file=sys.stderr)
"""


def seen_by_a_terminal(patience: float, **variables: str) -> str:
    leading, following = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(patience)], stderr=following, env={**os.environ, **variables}
    )
    os.close(following)
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(leading, 1 << 12)
        except OSError:  # the child has closed its end
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(leading)
    assert child.wait() == 0
    return b"".join(pieces).decode()


@pytest.mark.full
def test_a_terminal_shows_stage_task_and_count_and_is_cleared() -> None:
    shown = seen_by_a_terminal(0.01)
    lines = shown.split("\r\x1b[K")
    assert "qdtrace: optimising step, 0 s" in lines
    assert "qdtrace: compiling step.3 (4 of 17), 0 s" in lines
    assert lines[-1] == "done\r\n"


@pytest.mark.full
def test_a_terminal_shows_nothing_of_what_is_quick_or_silenced() -> None:
    assert seen_by_a_terminal(60.0) == "done\r\n"
    assert seen_by_a_terminal(0.01, QD_PROGRESS="0") == "done\r\n"


class Terminal:
    """Says that it is one, and keeps what is written."""

    def __init__(self, is_one: bool) -> None:
        self.is_one, self.text = is_one, ""

    def isatty(self) -> bool:
        return self.is_one

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """Nothing is kept back."""


@pytest.mark.parametrize(("is_one", "silenced"), [(False, False), (True, True)])
def test_no_thread_watches_where_nobody_would_see(monkeypatch, is_one: bool, silenced: bool) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(is_one))
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with qd.options(progress=not silenced), progress.doing("optimising", "f"):
        assert not [t for t in threading.enumerate() if t.name == "qdtrace progress"]
    assert terminal.text == ""


def test_compiling_says_what_it_is_at(monkeypatch) -> None:
    said: list[str] = []

    class Told(progress.Stage):
        def __init__(self, *settings: Any) -> None:
            super().__init__(*settings)
            said.append(self.what)

        def step(self, name: str) -> None:
            super().step(name)
            said.append(self.text())

    monkeypatch.setattr(progress, "Stage", Told)

    def step(x):
        y = qd.zeros(9, x.dtype)
        for i in qd.range(8):
            x[i] = x[i] * 3.25 + 1
        for i in qd.range(9):
            y[i] = i
        return x, y

    with qd.options(offline_cache=False):
        qd.jit(step)(np.ones(8, np.float32))
    assert said[:3] == ["importing", "optimising", "compiling"]
    assert [re.sub(r"step\.\d", "step.N", text) for text in said[3:]] == [
        "compiling step.N (1 of 2)",
        "compiling step.N (2 of 2)",
    ]


def test_a_failure_ends_its_stage(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(True))
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with pytest.raises(KeyError), progress.doing("optimising", "f"):  # noqa: PT012 - the wait is a part of it
        while not terminal.text:
            time.sleep(0.001)
        raise KeyError
    assert terminal.text.endswith("\r\x1b[K")
    assert progress._open == []
