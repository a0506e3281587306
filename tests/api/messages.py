"""Helpers of tests of errors."""

import inspect
import re
from typing import Any

import qdtrace as qd


def text_of(error: qd.QdError, function: Any) -> str:
    """The message; the file becomes FILE and lines of the function count from its `def`."""
    code = inspect.unwrap(function).__code__
    place = re.compile(re.escape(code.co_filename) + r":(\d+)")
    return place.sub(lambda m: f"FILE:{int(m[1]) - code.co_firstlineno}", str(error))


def good(x):
    """A function without fault, to call after one with some."""
    for i in qd.range(x.shape[0]):
        x[i] = x[i] + 1
    return x
