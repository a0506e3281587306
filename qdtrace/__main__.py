"""`python -m qdtrace`: the demo, what this machine has, the cache on disk; for developers passes and benchmarks."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from qdtrace import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEVELOPERS = """for work on qdtrace itself:
  bench     time the benchmark programs beside their peers (needs the source tree)
  opt       run passes over a graph in text form"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status. Without one it lists the commands."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m qdtrace", epilog=_DEVELOPERS, formatter_class=plain)
    parser.add_argument("--version", action="version", version=f"qdtrace {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    commands.add_parser("demo", help="fit a predator-prey model to real data by gradient descent", add_help=False)
    commands.add_parser("info", help="show backends, devices, versions and the place of the cache")
    about = "show or delete the compiled tasks that are kept on disk"
    cache = commands.add_parser("cache", help=about, description=about, formatter_class=plain)
    actions = cache.add_subparsers(dest="action", required=True, title="actions", metavar="ACTION")
    for name, text in {
        "info": "show the folder, its files and their size, by version of the compiler",
        "prune": "delete what other versions made, and beyond offline_cache_limit what was unused for longest",
        "clear": "delete all files; the next calls compile again",
    }.items():
        actions.add_parser(name, help=text, description=text)
    for name in ("opt", "bench"):
        commands.add_parser(name, add_help=False)
    known, rest = parser.parse_known_args(arguments)
    if known.command is None and not rest:
        parser.print_help()
        return 0
    if known.command in (None, "info", "cache") and rest:
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
