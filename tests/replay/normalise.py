"""Takes out of a text where a tree is, and line numbers of the package: they differ where nothing has changed.

Lines of the programs stay, because a user sees them in errors and reports.
"""

import re

PACKAGES = ("qdtrace", "lowering")
_OWN_LINE = re.compile(rf"(?<![\w/])((?:{'|'.join(PACKAGES)})/[\w/]+\.py):\d+")


def normalised(text: str, root: str) -> str:
    """The text with files named from `root` on, and without the line numbers of files of the package."""
    return _OWN_LINE.sub(r"\1", text.replace(root.rstrip("/") + "/", ""))
