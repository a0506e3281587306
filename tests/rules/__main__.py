"""`python -m tests.rules`: draws programs of every rule, prints faults, and writes their part of docs/coverage.md.

`python -m tests.rules 5 sort add` draws five programs of each case of these rules, and writes nothing. Rules are
checked side by side, one process a core.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import jax

from . import document
from .all_cases import TABLE
from .compare import Finding, findings
from .draw import drawn
from .known import known

PROGRAMS = 2


def set_up() -> None:
    """Settings of each process."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    warnings.simplefilter("ignore")


def checked(count: int, rule: str) -> tuple[list[Finding], int, int]:
    """Returns what holds of a rule, the number of programs that were drawn, and of faults that are not known."""
    results: list[Finding] = []
    programs = faults = 0
    for case in TABLE.cases[rule]:
        for program in drawn(case, count):
            found = findings(program)
            programs += 1
            results += found
            for f in found:
                if f.kind in ("wrong", "crash"):
                    fault = known(rule, f)
                    faults += fault is None
                    print("known" if fault else f.kind, program.name, f.part, f.way, f.side, f.detail, flush=True)
        jax.clear_caches()
    return results, programs, faults


def main(arguments: list[str]) -> int:
    """Returns 1 where something is wrong that is no known fault."""
    count = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else PROGRAMS
    rules = [rule for rule in TABLE.cases if not arguments or rule in arguments]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(rules), os.cpu_count() or 1), context, set_up) as pool:
        every = dict(zip(rules, pool.map(partial(checked, count), rules), strict=True))
    programs, faults = (sum(counts) for counts in zip(*(found[1:] for found in every.values()), strict=True))
    print(f"{programs} programs, {faults} faults")
    if not arguments:
        results = {rule: found[0] for rule, found in every.items()}
        text = document.PATH.read_text()
        document.PATH.write_text(document.merged(text, document.page(results, programs)))
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
