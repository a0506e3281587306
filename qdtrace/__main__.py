"""`python -m qdtrace`: demo, info, opt, bench, cache and the version."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from qdtrace import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m qdtrace", description=__doc__)
    parser.add_argument("--version", action="version", version=f"qdtrace {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="fit a predator-prey model to real data by gradient descent", add_help=False)
    commands.add_parser("info", help="backends, devices, versions and the artifact cache")
    commands.add_parser("opt", help="run passes over a graph in text form", add_help=False)
    commands.add_parser("bench", help="time the benchmark programs beside their peers", add_help=False)
    cache = commands.add_parser("cache", help="the artifact cache on disk")
    cache.add_argument("action", choices=("info", "prune", "clear"))
    known, rest = parser.parse_known_args(arguments)
    if known.command in ("info", "cache") and rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    # A command loads its own module alone.
    if known.command in ("demo", "opt", "bench"):
        status: int = import_module(f"qdtrace.tools.{known.command}").main(rest)
        return status
    info = import_module("qdtrace.tools.info")
    if known.command == "info":
        return info.show()
    return {"info": info.show_cache, "prune": info.prune_cache, "clear": info.clear_cache}[known.action]()


if __name__ == "__main__":
    sys.exit(main())
