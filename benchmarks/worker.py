"""One peer in a process of its own: reads commands as JSON lines, answers on what was its standard output.

    python -m benchmarks.worker PEER INPUTS.npz OUTPUT.npz PROGRAM

`run` gives the first call's time and saves the output; `time` gives the times of `repeats` calls, or of fewer (two at
least) once they have taken `SLOW` seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

import numpy as np

from benchmarks.peers import MODULES, Run

SLOW = 30.0


def main(peer: str, inputs: str, output: str, program: str) -> None:
    # libraries print banners: only answers go to the caller
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")

    run: Run | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "run":
                run, first = _load(peer, inputs, output, program)
                answer(first=first, about=run.about())
            elif command["do"] == "time":
                assert run is not None
                answer(times=_times(run, command["repeats"]))
        except Exception as error:  # reported by the caller, who goes on with other peers
            answer(error=f"{type(error).__name__}: {error}".splitlines()[0][:200])


def _load(peer: str, inputs: str, output: str, program: str) -> tuple[Run, float]:
    module, table = MODULES[peer]
    with np.load(inputs) as stored:
        given = {name: stored[name] for name in stored.files}
    programs = getattr(importlib.import_module(f"benchmarks.peers.{module}"), table)
    run = programs[program](**given)
    first, out = _timed(run)
    np.savez(output, *run.result(out))
    return run, first


def _times(run: Run, repeats: int) -> list[float]:
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < repeats and (len(times) < 2 or time.perf_counter() - began < SLOW):
        times.append(_timed(run)[0] / run.calls)
    return times


def _timed(run: Run) -> tuple[float, Any]:
    given = run.prepare()
    began = time.perf_counter()
    out = run.call(given)
    return time.perf_counter() - began, out


if __name__ == "__main__":
    main(*sys.argv[1:])
