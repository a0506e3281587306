"""Runs tests and benchmarks of a GPU, prints the table: `python -m benchmarks.gpu [WORK ...] [--tests] [--out FILE]`.

A work that fails is a line of the table; the others go on. Each line is printed when it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.row import Row, summary, table
from benchmarks.run import processor, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.gpu.bench import Bench, Work

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gpu", "cuda", "lowering", "differential", "api", "autodiff", "compose")
TESTS = tuple(f"tests/{folder}" for folder in FOLDERS)
"""Folders with tests of a GPU; others need packages that its machine may lack."""
OURS = "0.6"
"""The part of the device's memory that JAX takes: programs of the peers need some beside it."""


def run(
    works: Mapping[str, Work], bench: Bench, say: Any = print, keep: Callable[[list[Row]], Any] = len
) -> list[Row]:
    """Measures all works and returns their rows; prints each, and passes those so far to `keep` after each work."""
    rows: list[Row] = []
    for name, work in works.items():
        began = time.perf_counter()
        try:
            for row in work(bench):
                rows.append(row)
                say("  ".join(cell for cell in row.cells if cell))
        except Exception as error:  # one work of many: its line says what happened
            words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            rows.append(Row(name, None, note=words, failed=True))
            say(f"{name}  FAILED  {words}")
        say(f"  [{name}: {time.perf_counter() - began:.1f} s]")
        keep(rows)
    return rows


def report(rows: Sequence[Row], bench: Bench, tests: str) -> dict[str, Any]:
    """Returns the report of a run: figures, machine, versions, date, and what the programs in CUDA printed."""
    import jax

    device = jax.devices()[0]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": device.device_kind,
        "platform": " ".join(str(device.client.platform_version).split()),
        "processor": f"{processor()}, {os.cpu_count()} CPUs",
        "versions": versions(),
        "tests": tests,
        "rows": [r.as_json() for r in rows],
        "by_hand": dict(bench.cuda.results),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Gives 1 when a test or a work failed; a figure that was not reached is printed, no more."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", OURS)
    from benchmarks.gpu.bench import Bench
    from benchmarks.gpu.works import WORKS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"out of {', '.join(WORKS)}; default all")
    parser.add_argument("--tests", action="store_true", help="run `pytest -m gpu` first")
    parser.add_argument("--small", action="store_true", help="tiny sizes, on any machine: does it run at all?")
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    options = parser.parse_args(argv)
    chosen = options.works or list(WORKS)
    if unknown := set(chosen) - set(WORKS):
        parser.error(f"no work {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
    tests, passed = run_tests() if options.tests else ("", True)
    with Bench(small=options.small) as bench:

        def keep(rows: list[Row]) -> None:
            if options.out:
                options.out.write_text(json.dumps(report(rows, bench, tests), indent=1))

        rows = run({name: WORKS[name] for name in chosen}, bench, lambda text: print(text, flush=True), keep)
        written = report(rows, bench, tests)
    print(f"\n{written['date']}, {written['device']}, {written['platform']}; {written['versions']}\n")
    print(table(rows))
    print("\n" + "\n".join(filter(None, [summary(rows), tests and f"tests: {tests}"])))
    return 0 if passed and not any(r.failed for r in rows) else 1


def run_tests() -> tuple[str, bool]:
    """`pytest -m gpu`: its last line, and whether it passed. Its processes take memory as they need it."""
    # in several processes where pytest can; a plugin that times functions warns of that
    several = ["-n", str(min(16, os.cpu_count() or 1)), "-p", "no:benchmark"] if find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *several, *TESTS]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        last = ""
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    return last, process.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
