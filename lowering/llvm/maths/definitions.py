"""Definitions of functions of the library, which modules hold beside the code that calls them.

`collect([...])` returns the definitions of functions and of those they need, once each, without the formulas.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

_PURE = "nounwind willreturn nosync nofree memory(none)"
INLINE, CALL, COLD = f"alwaysinline {_PURE}", f"noinline {_PURE}", f"noinline cold {_PURE}"


@frozen(slots=True)
class Form:
    """Form of the library's functions for a kind of machine."""

    attributes: str = ""
    """Attributes of every function, besides its own."""
    inline_cold: bool = False
    """True if a call costs more than inlined code that is hardly ever run."""

    def written(self, text: str) -> str:
        """Returns a definition of the library in this form."""
        if self.inline_cold:
            text = text.replace(COLD, INLINE, 1)
        return text.replace(_PURE, f"{_PURE} {self.attributes}", 1) if self.attributes else text


PLAIN = Form()


@frozen(slots=True)
class MathFunction:
    """One definition: `text` defines `@symbol` and calls the `requires` symbols. Intrinsics need no declaration."""

    symbol: str
    text: str
    requires: tuple[str, ...] = ()
    several: str = ""
    """The type of its results, if it has several."""

    @property
    def size(self) -> int:
        """The approximate number of instructions of the definition."""
        return self.text.count("\n")


BY_SYMBOL: dict[str, MathFunction] = {}
"""Functions that were written, which others may require."""
_DEFINITION = re.compile(r"^define internal (.*@(qdm\.[\w.]+)\(.*\) noinline .*) \{$")


def closure(functions: Iterable[MathFunction]) -> tuple[MathFunction, ...]:
    """Returns the functions and all that they require, each once."""
    found: dict[str, MathFunction] = {}
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        if function.symbol not in found:
            found[function.symbol] = function
            waiting += [BY_SYMBOL[symbol] for symbol in function.requires]
    return tuple(found.values())


def collect(functions: Iterable[MathFunction], called: Container[str] = (), form: Form = PLAIN) -> str:
    """Returns the definitions of the functions and of all that they require; those in `called` are not inlined."""
    texts = [(function.symbol, form.written(function.text)) for function in closure(functions)]
    return "\n".join(text.replace(INLINE, CALL, 1) if symbol in called else text for symbol, text in texts)


def without_calls(text: str) -> tuple[str, tuple[str, ...]]:
    """Returns a module without the definitions of functions never inlined, and the symbols of those it calls.

    They are the same for all tasks (`module_of`); slow paths are as much code as the loops of many a task.
    """
    kept: list[str] = []
    declared: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        found = None if inside else _DEFINITION.match(line)
        if found is not None:
            inside = True
            declared[found[2]] = f"declare {found[1]}"
        if not inside:
            kept.append(line)
        inside &= line != "}"
    if not declared:
        return text, ()
    rest = "\n".join(kept)
    called = tuple([symbol for symbol in declared if f"@{symbol}(" in rest])
    return "\n".join([*kept, *(declared[symbol] for symbol in called), ""]), called
