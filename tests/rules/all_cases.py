"""The whole table of cases: those of all modules of import rules."""

# pyright: reportUnusedImport=false

from . import array_cases, control_cases, fold_cases, matrix_cases, number_cases  # noqa: F401 - they fill the table
from .table import TABLE, Case

CASES: list[Case] = [case for cases in TABLE.cases.values() for case in cases]
__all__ = ["CASES", "TABLE", "Case"]
