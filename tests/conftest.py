"""Settings of all tests, in processes that run some: one that hands them to workers does without JAX."""

import importlib

import pytest

AGAIN = "passes only with XLA's optimisation"
"""Property of cases that the quick XLA fails, and XLA as users have it passes."""


def pytest_configure(config: pytest.Config) -> None:
    hands_out = getattr(config.option, "dist", "no") != "no" and not config.option.collectonly
    if not hands_out or hasattr(config, "workerinput"):
        config.pluginmanager.register(importlib.import_module("tests.session"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, case in report.user_properties:
            if name == AGAIN:
                terminalreporter.write_line(f"{AGAIN}: {case}")
