"""The table of mistakes, and how its programs are run.

A block of a text file here is a mistake: a headline with its name and kind, the program, and after a line of dashes
the error, the line it names, all of its notes or none, and the fix; after another one the program with the fix applied,
and after a last one its result in NumPy, if that is not what Python makes of the mistaken program (`plain`).
A kind says where the lines stand: `task` in a loop over 8 elements, `function` in a function under `qd.jit`, `lane` in
a function under `qd.vmap`, `program` at the top. Those in the folder `refused` have no fix that gives what was meant.
"""

import linecache
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAD = """\
import functools, math, random
import jax, numpy as np
import jax.numpy as jnp
from jax import lax
import qdtrace as qd
X = np.linspace(-1, 2, 8).astype(np.float32)
K = np.array([1, 0, 3, 2, 5, 4, 7, 6], np.int32)
M = np.arange(12, dtype=np.float32).reshape(4, 3)
TABLE = np.arange(8.0)
table = jnp.arange(8.0)
names = ["a", "b", "c", "d", "e", "f", "g", "h"]
places = {0: 1.0, 1: 2.0}
"""
KINDS = {
    "task": ("def f(x, k, m):\n    for i in qd.range(8):\n", 8, "    return x\nresult = qd.jit(f)(X, K, M)\n"),
    "function": ("def f(x, k, m):\n", 4, "result = qd.jit(f)(X, K, M)\n"),
    "lane": ("def f(v, k):\n", 4, "result = qd.vmap(f)(X, K)\n"),
    "program": ("", 0, ""),
}


@dataclass(frozen=True)
class Mistake:
    """A program, what it is told, and what it should have been."""

    name: str
    kind: str
    wrong: str
    error: str
    rule: str
    line: str
    notes: list[str]
    """All notes of the error, with the text of a source line in its place; empty: they are not compared."""
    fix: str
    right: str
    answer: str
    """Expression for the result of the right program; empty if the mistaken one is its meaning."""


def run(kind: str, body: str, file: str) -> Any:
    """Runs the program as that file; what it names `result`."""
    head, indent, tail = KINDS[kind]
    text = HEAD + head + textwrap.indent(body.strip("\n"), " " * indent) + "\n" + tail
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "mistake"}
    exec(compile(text, file, "exec"), names)
    return names.get("result")


def mistakes(folder: str = "") -> list[Mistake]:
    """All of the table."""
    return [_read(block) for path in sorted((Path(__file__).parent / folder).glob("*.txt")) for block in _blocks(path)]


def _blocks(path: Path) -> list[str]:
    return [block for block in ("\n" + path.read_text()).split("\n## ") if block.strip()]


def _read(block: str) -> Mistake:
    headline, _, rest = block.partition("\n")
    name, kind = headline.split()
    wrong, told, right, answer = (*rest.split("\n---\n"), "", "")[:4]
    error, line, *rest = told.strip("\n").splitlines()
    notes = [text.removeprefix("note: ") for text in rest if text.startswith("note: ")]
    fix = rest[len(notes) :]
    kind_of_error, rule = error.split(": ", 1)
    return Mistake(
        name, kind, wrong, kind_of_error, rule, line.removeprefix("at: "), notes, "\n".join(fix).removeprefix("help: "),
        right.strip("\n"), answer.strip("\n"),
    )  # fmt: skip
