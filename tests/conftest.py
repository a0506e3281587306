"""Settings of all tests, in processes that run some: one that hands them to workers does without JAX."""

import importlib

import pytest

AGAIN = "passes only with the compilers' optimisation"
"""Property of cases that fail where XLA and LLVM compile quickly, and pass with both as users have them."""


def pytest_configure(config: pytest.Config) -> None:
    hands_out = getattr(config.option, "dist", "no") != "no" and not config.option.collectonly
    if not hands_out or hasattr(config, "workerinput"):
        config.pluginmanager.register(importlib.import_module("tests.session"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, case in report.user_properties:
            if name == AGAIN:
                terminalreporter.write_line(f"{AGAIN}: {case}")
