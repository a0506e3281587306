"""Functions that tests have as text."""

from __future__ import annotations  # the texts, too, have annotations that nobody evaluates

import linecache
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import qdtrace as qd

KNOWN = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "qd": qd, "SimpleNamespace": SimpleNamespace}


def written(body: str, arguments: str = "x", **more: Any) -> Any:
    """Returns the function `f` of these arguments that has these statements; its file is named as they are."""
    return defined(f"def f({arguments}):\n{indent(body, '    ')}\n", body.replace("\n", "; "), **more)


def defined(text: str, file: str, **more: Any) -> Any:
    """Returns the function `f` that a text defines; errors and warnings show lines of the text."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {**KNOWN, **more}
    exec(compile(text, file, "exec"), names)
    return names["f"]
