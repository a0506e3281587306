"""Checks of one rule, in a process of their own: spawned processes find functions of modules, not of `__main__`."""

import warnings

import jax

from .all_cases import TABLE
from .compare import Finding, findings
from .draw import drawn
from .known import known


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
