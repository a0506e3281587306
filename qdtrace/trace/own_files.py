"""The user's program: the files that are part of it, as opposed to those of libraries.

The answer decides whose state a trace looks into, whose line a message names and whose indices are checked. Code that
nobody has installed is the user's, wherever it lies. So is a package that is installed in place (`pip install
--editable`), as its state shall not be missed; unless another installed distribution is built on it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
from importlib.metadata import Distribution, distributions
from urllib.parse import unquote, urlsplit

from qdtrace.trace.compat import source_info_util
from qdtrace.tracebacks import is_hidden

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
INSTALLED = re.compile(r"[/\\](site-packages|dist-packages|[^/\\]+\.egg)[/\\]")
"""Folders for installed packages, as Python, Debian with its descendants, and old archives name them."""
_RECORD = re.compile(r"^[^/,\n]+", re.MULTILINE)
_REQUIRES = re.compile(r"^Requires-Dist:\s*([\w.-]+)", re.MULTILINE)

for _name in os.listdir(_PACKAGE):
    if _name != "tools":  # its demos are programs
        source_info_util.register_exclusion(os.path.join(_PACKAGE, _name))


@functools.lru_cache(maxsize=1 << 14)
def is_own_file(file: str) -> bool:
    """Returns whether a file is part of the user's program, and not of a library or of the standard library.

    A library lies in a folder for installed packages, or beside its metadata in a folder or archive of `sys.path`. What
    runs as `__main__`, a script or a whole package, is the user's also there.
    """
    if is_hidden(file) or not source_info_util.is_user_filename(file):
        return False
    if file.startswith("<"):  # a cell, a prompt, `exec`
        return not file.startswith(("<built-in", "<frozen"))
    if _is_main(file):
        return True
    if file.startswith(STANDARD) or INSTALLED.search(file) or _is_distributed(file):
        return False
    return not any(file.startswith(folder) and _is_needed(name) for folder, name in _projects().items())


def _is_main(file: str) -> bool:
    main = sys.modules.get("__main__")
    package = getattr(main, "__spec__", None)
    if package is None or not package.parent:
        return file == getattr(main, "__file__", None)
    folders: list[str] = getattr(sys.modules.get(package.parent.partition(".")[0]), "__path__", [])
    return file.startswith(tuple(folder + os.sep for folder in folders))


def _is_distributed(file: str) -> bool:
    """Returns whether a distribution has put the file, or the package around it, into a folder of `sys.path`."""
    for entry in sys.path:
        folder, inside = os.path.abspath(os.fsdecode(entry)), ""
        if file.startswith(folder + os.sep):
            inside, _, _ = file[len(folder) + 1 :].partition(os.sep)
        if inside and _is_recorded(inside, folder):
            return True
    return False


@functools.cache
def _is_recorded(name: str, folder: str) -> bool:
    """Returns whether an installed distribution has put a file or a package of this name into a folder or archive."""
    likely = distributions(name=name.removesuffix(".py"), path=[folder])
    return any(name in _recorded(one) for one in likely) or name in _all_recorded(folder)


@functools.cache
def _all_recorded(folder: str) -> frozenset[str]:
    return frozenset(name for one in distributions(path=[folder]) for name in _recorded(one))


def _recorded(one: Distribution) -> set[str]:
    """Returns what a distribution has put directly into its folder; nothing for a project that is built in place, whose
    metadata lies beside its code, too, but has no record of files.
    """
    return set(_RECORD.findall(_text(one, "RECORD")))


@functools.cache
def _projects() -> dict[str, str]:
    """Returns the folders of projects that are installed in place, with the names of their distributions."""
    found: dict[str, str] = {}
    for one in distributions():
        with contextlib.suppress(ValueError, TypeError):  # of metadata that is broken
            origin = json.loads(_text(one, "direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                found[unquote(urlsplit(origin["url"]).path).rstrip("/") + os.sep] = _canonical(one.name)
    return found


@functools.cache
def _is_needed(name: str) -> bool:
    """Returns whether a distribution that is not installed in place requires this one."""
    others = [one for one in distributions() if not _text(one, "direct_url.json")]
    required = (needed for one in others for needed in _REQUIRES.findall(_text(one, "METADATA")))
    return name in map(_canonical, required)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(one: Distribution, file: str) -> str:
    """Returns a file of a distribution's metadata; nothing if there is none that can be read."""
    try:
        return one.read_text(file) or ""
    except (OSError, UnicodeDecodeError):
        return ""


def is_own_package(file: str) -> bool:
    """Returns whether a file is source of this package."""
    return file.startswith(_PACKAGE)
