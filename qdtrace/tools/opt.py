"""`python -m qdtrace opt FILE -p a,b`: runs passes over a graph in text form and prints the result.

FILE is a dumped graph (or `-` for standard input), so a defect found in a long pipeline can be cut down by hand and run
through the one pass that is at fault. `--html` writes a page that shows what each pass changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qdtrace.config import options_from
from qdtrace.errors import QdError, TraceValueError
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import verify_program
from qdtrace.passes.by_name import PASSES, pass_named
from qdtrace.passes.observers import DecisionPrinter, Timer, Verifier, finish, listening, write_page
from qdtrace.passes.pipelines import stages
from qdtrace.passes.stage_record import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.passes.base import Pass
    from qdtrace.passes.observers import Observer


def passes_named(names: Iterable[str], options: Options, each_round: Sequence[Observer] = ()) -> list[Pass]:
    """Returns the passes of those names; `optimise` stands for the whole pipeline. Raises TraceValueError.

    `each_round` are observers of the passes inside of simplify.
    """
    found: list[Pass] = []
    for name in names:
        if name == "optimise":
            found += [one for passes in stages(options, each_round, each_pass=True).values() for one in passes]
        elif name in PASSES:
            found.append(pass_named(name, options))
        else:
            raise TraceValueError(f"needs the name of a pass, got {name!r}", notes=(f"passes are {', '.join(PASSES)}",))
    return found


def describe(one: Pass) -> str:
    """Returns one line on a pass: the first line of its file, `Name: what it does.`, without the name."""
    line = (sys.modules[type(one).__module__].__doc__ or "").partition("\n")[0]
    return line.partition(": ")[2] or line


def run_passes(program: Program, passes: Iterable[Pass], observers: Sequence[Observer]) -> Program:
    """Returns the program after the passes; observers see it after each."""
    for one in listening(passes, observers):
        program = one(program)
        for observe in observers:
            observe(one.name, program)
    finish(observers)
    return program


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qdtrace opt", description="Run passes over a graph in text form.")
    parser.add_argument("file", nargs="?", help="a graph in text form; - reads standard input")
    parser.add_argument("-p", "--passes", default="optimise", help=f"comma-separated: optimise, {', '.join(PASSES)}")
    parser.add_argument("--print-between", action="store_true", help="print the graph after each pass")
    parser.add_argument("--verify-each", action="store_true", help="check the graph after each pass")
    parser.add_argument("--time", action="store_true", help="print the time of each pass to stderr")
    parser.add_argument("--diag", action="store_true", help="print each decision of task fusion to stderr")
    parser.add_argument("--html", metavar="PAGE", type=Path, help="write a page that shows what each pass changed")
    parser.add_argument("--no-fast-math", action="store_true", help="only rules that are exact")
    parser.add_argument("--list", action="store_true", help="list the passes")
    asked = parser.parse_args(argv)
    if asked.list:
        width = max(map(len, PASSES))
        for name in PASSES:
            print(f"{name:<{width}}  {describe(pass_named(name, options_from({})))}")
        return 0
    if asked.file is None:
        parser.error("the following arguments are required: file")
    try:
        text = sys.stdin.read() if asked.file == "-" else Path(asked.file).read_text(encoding="utf-8")
        program = parse_program(text, file="<stdin>" if asked.file == "-" else asked.file)
        verify_program(program)
        options = options_from({"fast_math": not asked.no_fast_math})
        timer, recorder = Timer(), Recorder()
        observers: list[Observer] = [timer] if asked.time else []
        if asked.verify_each:
            observers.append(Verifier())
        if asked.print_between:
            observers.append(lambda name, after: print(f"# after {name}", print_program(after), sep="\n"))
        if asked.diag:
            observers.append(DecisionPrinter())
        if asked.html:
            recorder("input", program)
            observers.append(recorder)
        passes = passes_named(asked.passes.split(","), options, (recorder,) if asked.html else ())
        program = run_passes(program, passes, observers)
        if asked.html:
            write_page(asked.html, program.name, [recorder])
    except (QdError, OSError) as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return 1
    if not asked.print_between or not passes:
        print(print_program(program))
    for name, seconds in timer.seconds.items():
        print(f"{name}: {seconds * 1e3:.2f} ms", file=sys.stderr)
    return 0
