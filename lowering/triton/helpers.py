"""The text of `functions`, function by function, with the functions that each one calls."""

from __future__ import annotations

import re
from importlib.resources import files

from qdtrace.frozen import frozen

_BEGIN = "@triton.jit\n"
_COMBINE = {
    "add": "a + b",
    "mul": "a * b",
    "min": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "max": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "and": "a & b",
    "or": "a | b",
    "xor": "a ^ b",
}
"""The operations of sums."""


@frozen(slots=True)
class Helper:
    """The text of a function and the helpers that it calls."""

    text: str
    needs: tuple[str, ...] = ()


def _texts() -> dict[str, str]:
    """Returns the text of each function, without its decorator."""
    found = [
        f'def combine_{op}(a, b):\n    """Combines sums of a block: `{op}`."""\n    return {result}\n'
        for op, result in _COMBINE.items()
    ]
    _, *written = files("lowering.triton").joinpath("functions.py").read_text().split(f"\n\n\n{_BEGIN}")
    for text in written:
        made_for = _COMBINE if "_OP(" in text else [""]
        found += [text.rstrip("\n").replace("_OP", f"_{op}") + "\n" for op in made_for]
    return {text[len("def ") : text.index("(")]: text for text in found}


def _helpers() -> dict[str, Helper]:
    texts, found = _texts(), dict[str, Helper]()
    for name, text in texts.items():
        *_, body = text.split('"""')
        words = dict.fromkeys(re.findall(r"\w+", body))
        found[name] = Helper(_BEGIN + text, tuple([word for word in words if word in texts]))
    return found


HELPERS = _helpers()
"""All functions, by name."""
