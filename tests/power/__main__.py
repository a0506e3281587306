"""`python -m tests.power [NAME ...]`: whether `make test` finds faults that were mended once.

Each is put back into a copy of the tree, alone. First the files of tests that it names run there, then, if they pass,
the whole sample. A test that finds it must pass without it. Exits with 0 if all are found, and with 1 if one is not.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.power.catalogue import ROOT, Fault, all_faults

MADE = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist")
"""Patterns of names that are no part of the tree."""
FAILS = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Runs the tests with each fault, prints what finds it, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of faults; else all")
    parser.add_argument("--processes", type=int, default=1, help="faults that are tried at a time")
    parser.add_argument("--expected", action="store_true", help="runs no tests but those that a fault names")
    options = parser.parse_args(arguments)
    faults = [f for f in all_faults() if not options.names or any(name in f.name for name in options.names)]
    if not faults:
        parser.error("no fault has such a name")
    survive: list[str] = []
    with ThreadPoolExecutor(options.processes) as pool:
        runs = {pool.submit(_try, fault, options.expected): fault for fault in faults}
        for run in as_completed(runs):
            is_found, test, seconds = run.result()
            if not is_found:
                survive.append(runs[run].name)
            print(f"{runs[run].name:36} {seconds:5.0f} s  {'' if is_found else 'SURVIVES '}{test}", flush=True)
    print(f"{len(faults) - len(survive)} of {len(faults)} faults are found", *survive, sep="\nsurvives: ")
    return 1 if survive else 0


def _try(fault: Fault, only_expected: bool) -> tuple[bool, str, float]:
    """Returns whether a test finds a fault, the first one that fails, and the seconds that it took."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="power-") as folder:
        tree = Path(folder).resolve() / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*MADE))
        file = tree / fault.path
        intact = file.read_text()
        file.write_text(fault.with_it(intact))
        found = _first_failure(tree, fault.tests) or (None if only_expected else _first_failure(tree, ()))
        seconds = time.perf_counter() - begun
        if found is None:
            return False, fault.was, seconds
        file.write_text(intact)
        if _first_failure(tree, [found]):
            return False, f"{found} fails without it, too", seconds
        return True, found, seconds


def _first_failure(tree: Path, tests: Sequence[str]) -> str | None:
    """Returns the first test of the sample that fails in a tree, or None if all pass."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("QD_", "JAX_", "XLA_", "PYTEST"))}
    own = {"PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tree.with_name("cache"))}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-rfE", "--tb=no"]
    command += ["--ignore=tests/house/test_power.py", *tests]
    done = subprocess.run(command, cwd=tree, env={**kept, **own}, capture_output=True, text=True, check=False)
    named = FAILS.findall(done.stdout)
    if done.returncode and not named:
        raise SystemExit(f"pytest {' '.join(tests)} ends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return named[0] if named else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
