"""Writes the text of random programs, line by line."""

import numpy as np


class Writer:
    """Text of one task's body."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.count = 0

    def name(self, hint: str) -> str:
        """A name that is new."""
        self.count += 1
        return f"{hint}{self.count}"

    def line(self, depth: int, text: str) -> None:
        """Writes a line inside of so many blocks."""
        self.lines.append("  " * (depth + 2) + text)

    def value(self, depth: int, dtype: str, text: str) -> str:
        """Writes an equation and gives the name of its result."""
        name = self.name("v")
        self.line(depth, f"{name}: {dtype} = {text}")
        return name
