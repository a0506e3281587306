"""`python -m tests.replay [PATTERN]`: whether programs have the same texts, at every stage, as in another commit.

Exits with 0 where they are, with 1 where a text differs, and with 2 where the texts cannot be made.
"""

import argparse
import os
import sys
import time

from tests.replay.difference import compare
from tests.replay.trees import ROOT, NoTextsError, commit_of, make_texts, usual_reference

SHOWN = 60
"""Lines of a difference that are printed; all of them are in the file."""
MOST_SHOWN = 12
"""Differences that are printed."""


def main(arguments: list[str]) -> int:
    """Compares, prints what differs, and gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="a part of the names of programs; else all")
    parser.add_argument("--ref", default="", help="a commit; else HEAD if the package has changes, or its parent")
    parser.add_argument("--of", help="the commit that is compared with it; else this tree as it is")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8))
    options = parser.parse_args(arguments)
    try:
        ref = commit_of(options.ref or usual_reference())
        own = commit_of(options.of) if options.of else None
        begun = time.perf_counter()
        before = make_texts(ref, options.pattern, options.processes)
        between = time.perf_counter()
        after = make_texts(own, options.pattern, options.processes)
        ended = time.perf_counter()
    except NoTextsError as error:
        print(error, file=sys.stderr)
        return 2
    found = compare(before, after, options.pattern)
    if not found.programs:
        print(f"no program has {options.pattern!r} in its name", file=sys.stderr)
        return 2
    tree = own or "this tree"
    times = f"{ref} in {between - begun:.0f} s, {tree} in {ended - between:.0f} s"
    if found.differences:
        page = ROOT / "build" / "replay" / "differences.diff"
        with page.open("w") as file:
            for number, one in enumerate(found.differences):
                lines = one.lines(ref, tree)
                print(*lines, sep="\n", file=file)
                if number < MOST_SHOWN:
                    left = [f"... {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
                    print(*lines[:SHOWN], *left, sep="\n")
        names = dict.fromkeys(one.program for one in found.differences)
        print(f"{len(names)} programs with differences: {' '.join(names)}\nall of it: {page.relative_to(ROOT)}")
    print(f"{found.summary} ({times})")
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
