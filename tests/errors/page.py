"""The programs of docs/errors.md and what each is told: those that fail are fenced as `py`, the others as `python`."""

import linecache
import re
import warnings
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def programs() -> list[tuple[str, str | None]]:
    """Each program, with the message below it, if it is one that fails."""
    pattern = r"^```py(?:thon)?\n(.*?)^```\n(?:```text\n(.*?)^```\n)?"
    found = re.findall(pattern, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [(code, text.rstrip("\n") or None) for code, text in found]


def run(code: str) -> None:
    """Runs a program as `program.py`."""
    linecache.cache["program.py"] = (len(code), None, code.splitlines(keepends=True), "program.py")
    exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})


def told(code: str) -> str:
    """The error or warning that a program ends in, as Python shows it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            run(code)
        except (Exception, Warning) as error:
            return f"{type(error).__module__}.{type(error).__name__}: {error}"
    return "nothing"
