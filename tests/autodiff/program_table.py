"""Tables of programs: functions of arrays of floats and of further arguments, by name."""

from typing import Any

Table = dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]]


def adding_to(table: Table):
    """Returns a decorator that adds a program of some floats and other arguments to a table."""

    def program(name, floats, *rest):
        def add(f):
            table[name] = (f, floats, rest)
            return f

        return add

    return program
