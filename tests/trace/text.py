"""Texts that errors have, and equations of traces."""

from __future__ import annotations

import linecache
from textwrap import dedent, indent
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import qdtrace as qd
from qdtrace.trace.tree import equations_in

if TYPE_CHECKING:
    from qdtrace.trace.compat import JaxprEqn


def clean(text: str) -> str:
    """Returns a text without its indentation, and without empty lines at its ends."""
    return dedent(text).strip("\n")


def first(traced: Any, primitive: object) -> JaxprEqn:
    """Returns the first equation of a primitive in a trace."""
    return next(e for e in equations_in(traced.root.items) if e.primitive is primitive)


def task(body: str, before: str = "", **known: Any) -> Any:
    """Returns the function of `x`, `m` and `k` that executes statements in a loop over four elements, after others."""
    lines = [*before.splitlines(), "for i in qd.range(4):", *indent(body, "    ").splitlines()]
    text = "def f(x, m, k):\n" + indent("\n".join(lines), "    ") + "\n"
    file = f"<{body}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "qd": qd, **known}
    exec(compile(text, file, "exec"), names)
    return names["f"]
