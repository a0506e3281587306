"""`python -m tests.rules`: draws programs of every rule, prints faults, and writes their part of docs/coverage.md.

`python -m tests.rules 5 sort add` draws five programs of each case of these rules, and writes nothing.
"""

from __future__ import annotations

import sys
import time
import warnings

import jax

from . import document
from .all_cases import TABLE
from .compare import findings
from .draw import drawn
from .known import known

PROGRAMS = 2


def main(arguments: list[str]) -> int:
    """Returns 1 where something is wrong that is no known fault."""
    count = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else PROGRAMS
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    warnings.simplefilter("ignore")
    results: document.Results = {}
    programs = faults = 0
    begun = time.process_time()
    for rule, cases in TABLE.cases.items():
        if arguments and rule not in arguments:
            continue
        for case in cases:
            for program in drawn(case, count):
                found = findings(program)
                programs += 1
                results.setdefault(rule, []).extend(found)
                for f in found:
                    if f.kind in ("wrong", "crash"):
                        fault = known(rule, f)
                        faults += fault is None
                        print("known" if fault else f.kind, program.name, f.part, f.way, f.side, f.detail, flush=True)
            jax.clear_caches()
    print(f"{programs} programs, {time.process_time() - begun:.0f} s, {faults} faults")
    if not arguments:
        text = document.PATH.read_text()
        document.PATH.write_text(document.merged(text, document.page(results, programs)))
    return int(faults > 0)


sys.exit(main(sys.argv[1:]))
