"""Python text that grows: lines, indentation, fresh names, used helpers."""

from __future__ import annotations

import keyword
import linecache
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.triton.helpers import HELPERS

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from qdtrace.errors import Loc

_RESERVED = frozenset({"tl", "triton", "libdevice", "range", "float", *HELPERS})


class Source:
    """A module of kernels."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.helpers: dict[str, None] = {}
        self.uses_libdevice = False
        self.kernels: list[str] = []

    def helper(self, name: str) -> str:
        """Adds a helper and those that it calls to the module and returns its name."""
        for needed in HELPERS[name].needs:
            self.helper(needed)
        self.helpers.setdefault(name)
        return name

    def render(self) -> str:
        """Returns the text of the module."""
        imports = ["import triton", "import triton.language as tl"]
        if self.uses_libdevice:
            imports.append("from triton.language.extra import libdevice")
        parts = [HELPERS[name].text for name in self.helpers] + self.kernels
        return f'"""{self.title}"""\n\n' + "\n".join(imports) + "\n\n\n" + "\n\n".join(parts)


class Text:
    """The lines of one kernel."""

    def __init__(self, module: Source) -> None:
        self.module = module
        self._lines: list[str] = []
        self._depth = 1
        self._taken: set[str] = set()
        self._loc: Loc | None = None

    def name(self, hint: str) -> str:
        """Returns a fresh name."""
        stem = re.sub(r"\W", "_", hint, flags=re.ASCII).strip("_") or "v"
        if stem[0].isdigit() or keyword.iskeyword(stem) or stem in _RESERVED:
            stem = f"v_{stem}"
        found, n = stem, 0
        while found in self._taken:
            n += 1
            found = f"{stem}_{n}"
        self._taken.add(found)
        return found

    def line(self, text: str) -> None:
        """Appends a line."""
        self._lines.append("    " * self._depth + text)

    def let(self, hint: str, expression: str) -> str:
        """Assigns an expression to a new variable and returns its name."""
        name = self.name(hint)
        self.line(f"{name} = {expression}")
        return name

    def at(self, loc: Loc | None) -> None:
        """Appends the user's line that the next code comes from, as a comment, unless it was the last one."""
        if loc is None or loc == self._loc:
            return
        self._loc = loc
        source = linecache.getline(loc.file, loc.line).strip()
        self.line(f"# {os.path.basename(loc.file)}:{loc.line}" + (f": {source}" if source else ""))

    @contextmanager
    def block(self, header: str) -> Generator[None]:
        """Appends a header and indents the lines of the body."""
        self.line(header)
        self._depth += 1
        before = len(self._lines)
        yield
        if not any(not line.lstrip().startswith("#") for line in self._lines[before:]):
            self.line("pass")
        self._depth -= 1
        self._loc = None

    def close(self, name: str, arguments: Sequence[str], doc: str) -> None:
        """Puts the kernel into the module."""
        header = ["@triton.jit", f"def {name}({', '.join(arguments)}):", f'    """{doc}"""']
        self.module.kernels.append("\n".join([*header, *self._lines, ""]))
