"""Times the programs beside their peers: `make bench`, or `python -m benchmarks.run` in the source tree.

Every peer runs in a process of its own, on the same inputs from disk. Outputs are checked before anything is timed.
Ours and the peer's take turns; each time is the smallest and the median of at least seven calls after a first one
(fewer where the peer takes many seconds a call; the table says so).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import compile_time, dense, large_functions, new_process, stencils
from benchmarks.gradients import compile_time as gradient_compile
from benchmarks.gradients import memory as gradient_memory
from benchmarks.gradients.programs import GRADIENTS
from benchmarks.peers import FLAGS
from benchmarks.programs import PROGRAMS, Program, WrongResultError
from benchmarks.worker import SLOW

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
OURS = "qdtrace"
TURN = 3
"""Calls of ours, then of the peer, in turn."""
SECONDS = 3.0
"""They take turns at least so long, as machines do other things at times."""


@dataclass
class Row:
    """One program of one size beside one peer; times in milliseconds."""

    program: str
    size: str
    peer: str
    peer_min: float | None = None
    peer_median: float | None = None
    ours_min: float | None = None
    ours_median: float | None = None
    required: float | None = None
    note: str = ""
    limited: bool = False
    """The ratio is ours over the peer's and may be at most what is required."""

    @property
    def ratio(self) -> float | None:
        if not self.peer_min or not self.ours_min:
            return None
        return self.ours_min / self.peer_min if self.limited else self.peer_min / self.ours_min

    @property
    def reached(self) -> bool | None:
        """True if the ratio is as required; None if nothing is required or nothing was measured."""
        if self.required is None or self.ratio is None:
            return None
        return self.ratio <= self.required if self.limited else self.ratio >= self.required

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return self.note
        return ("reached" if self.reached else "NOT reached") + (f"; {self.note}" if self.note else "")


class PeerError(Exception):
    """A peer is not installed, or failed on this program."""


def flags_of(name: str) -> str:
    """XLA's flags in the process of a peer: the caller's, and its own."""
    return f"{os.environ.get('XLA_FLAGS', '')} {FLAGS.get(name, '')}".strip()


class Peer:
    """A worker process: see `worker`."""

    def __init__(self, name: str, program: str, inputs: Path, folder: Path) -> None:
        self.name = name
        self.output = folder / f"{name}.npz"
        command = [sys.executable, "-m", "benchmarks.worker", name, str(inputs), str(self.output), program]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "XLA_FLAGS": flags_of(name)}
        self._log = (folder / f"{name}.log").open("w+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Sends a command and waits for the answer. Raises PeerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:] or ["no message"]
            raise PeerError(f"{self.name} ended: {last[0][:160]}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def results(self) -> tuple[np.ndarray[Any, Any], ...]:
        with np.load(self.output) as stored:
            return tuple(stored[name] for name in stored.files)

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


def measure(program: Program, size: int, repeats: int, say: Any = print) -> list[Row]:
    """Runs one program of one size with every peer."""
    given: dict[str, Any] = dict(program.inputs(size))
    rows = [Row(program.name, f"{size} {program.unit}", peer) for peer in program.peers]
    for row in rows:
        row.limited = row.peer in program.limits
        if size == program.size:
            row.required = program.limits.get(row.peer, program.goals.get(row.peer))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = folder / "inputs.npz"
        np.savez(inputs, **given)
        ours = Peer(program.ours, program.name, inputs, folder)
        try:
            try:
                _first_call(ours, program, given, say)
            except (PeerError, WrongResultError) as error:
                for row in rows:
                    row.note = f"{OURS}: {error}"
            for row in rows:
                _beside(ours, row, program, given, inputs, repeats, say)
        finally:
            ours.close()
    return rows


def _first_call(peer: Peer, program: Program, given: Any, say: Any) -> None:
    answer = peer.ask("run")
    about = f"; {answer['about']}" if answer["about"] else ""
    accuracy = program.other_checks.get(peer.name, program.check)(given, peer.results())
    say(f"  {program.name}: {peer.name} first call {answer['first']:.2f} s, checked: {accuracy}{about}")


def _beside(ours: Peer, row: Row, program: Program, given: Any, inputs: Path, repeats: int, say: Any) -> None:
    theirs = Peer(row.peer, program.name, inputs, inputs.parent)
    try:
        _first_call(theirs, program, given, say)
        broken = bool(row.note)
        mine, other = [], []
        began = time.perf_counter()
        while len(other) < repeats or time.perf_counter() - began < SECONDS:
            mine += [] if broken else ours.ask("time", repeats=TURN)["times"]
            other += theirs.ask("time", repeats=TURN)["times"]
            if time.perf_counter() - began > SLOW:
                break
        mine += [] if broken else ours.ask("time", repeats=TURN)["times"]
        if len(other) < repeats:
            row.note = f"{len(other)} calls of the peer"
        row.peer_min, row.peer_median = 1e3 * min(other), 1e3 * statistics.median(other)
        if mine:
            row.ours_min, row.ours_median = 1e3 * min(mine), 1e3 * statistics.median(mine)
    except (PeerError, WrongResultError) as error:
        row.note = row.note or f"not timed: {error}"
    finally:
        theirs.close()


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text: smallest time, with the median in brackets."""

    def pair(smallest: float | None, median: float | None) -> str:
        return "-" if smallest is None or median is None else f"{smallest:.4g} ({median:.4g})"

    def factor(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    def required(row: Row) -> str:
        return ("<= " if row.limited and row.required is not None else "") + factor(row.required)

    lines = [("program", "size", "peer", "peer ms", "qdtrace ms", "ratio", "required", "")]
    lines += [
        (
            r.program,
            r.size,
            r.peer,
            pair(r.peer_min, r.peer_median),
            pair(r.ours_min, r.ours_median),
            factor(r.ratio),
            required(r),
            r.verdict,
        )
        for r in rows
    ]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]) - 1)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, [*widths, 0], strict=True)).rstrip() for line in lines
    )


def versions() -> str:
    found = []
    for name in ("qdtrace", "jax", "jaxlib", "numpy", "llvmlite", "drjit", "quadrants", "numba"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    return f"Python {platform.python_version()}, " + ", ".join(found)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs and prints; gives 1 when qdtrace failed or was wrong. A factor that was not reached is printed, no more."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    reports = {
        "compile": compile_time.measure,
        "large": large_functions.measure,
        "process": new_process.measure,
        "dense": dense.measure,
        "stencils": stencils.measure,
        "gradient_memory": gradient_memory.measure,
        "gradient_compile": gradient_compile.measure,
    }
    programs = (*PROGRAMS, *GRADIENTS)
    names = [*(p.name for p in programs), *reports]
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"out of {', '.join(names)}; default all")
    parser.add_argument("--sizes", choices=("stated", "all"), default="stated", help="all: three sizes each")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    chosen = options.programs or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    print(f"{processor()}, {os.cpu_count()} CPUs; {versions()}")
    print("ratio: the peer's time over ours, or ours over the peer's where <= stands in front of what is required")
    print("times: smallest (median) of repeated calls, ours and the peer's in turn\n")
    rows: list[Row] = []
    for program in programs:
        if program.name in chosen:
            for size in program.sizes if options.sizes == "all" else (program.size,):
                rows += measure(program, size, options.repeats)
    print("\n" + table(rows) if rows else "")
    missed = [f"{r.program}/{r.peer}" for r in rows if r.reached is False]
    stated = [r for r in rows if r.required]
    untimed = sum(r.reached is None for r in stated)
    words = f"{len(stated)} factors stated; not timed: {untimed}; not reached: {', '.join(missed) or 'none'}"
    print(f"\n{words}" if stated else "")
    good = not any(r.note.startswith(OURS) for r in rows)
    for name, measured in reports.items():
        if name in chosen:
            report = measured(ROOT)
            print("\n" + report.text)
            good &= report.ran
    if options.json:
        options.json.write_text(json.dumps([asdict(r) | {"ratio": r.ratio} for r in rows], indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
