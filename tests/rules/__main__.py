"""`python -m tests.rules`: draws programs of every rule, prints faults, and writes their part of docs/coverage.md.

`python -m tests.rules 5 sort add` draws five programs of each case of these rules, and writes nothing. Rules are
checked side by side, one process a core.
"""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from . import document
from .all_cases import TABLE
from .sweep import checked, set_up

PROGRAMS = 2


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
