"""Tracebacks of errors, reduced to the user's frames as JAX's option `jax_traceback_filtering` says.

JAX removes its own frames at the outermost of its functions, and adds a note and where an operation was recorded. It
does so through methods of the error (`errors.QdError`), which ask here: an error of this package loses all frames that
are not the user's, and takes no addition, as its text has the user's line. Other errors, those of the user's own code,
lose their frames of this package in JAX's functions, to which `hide_from_jax` names it, and in ours by `shorten`.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_OWN = (_PACKAGE + os.sep, os.path.join(os.path.dirname(_PACKAGE), "lowering") + os.sep)
_HELPERS = (os.path.abspath(contextlib.__file__), os.path.abspath(functools.__file__), "numpy" + os.sep)
_TOOLS = os.path.join(_PACKAGE, "tools") + os.sep
_NOTE = "JAX has removed its internal frames"


def _mode() -> str:
    jax = sys.modules.get("jax")  # the graph and the passes, which raise errors too, go without it
    return "auto" if jax is None else str(jax.config.jax_traceback_filtering)


def _shell() -> Any:
    """Returns the IPython shell that runs this process, if there is one."""
    module = sys.modules.get("IPython")
    return module and module.get_ipython()


@functools.cache
def _libraries() -> tuple[str, ...]:
    found = [str(sys.modules[name].__file__) for name in ("jax", "jaxlib", "numpy", "torch") if name in sys.modules]
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in found)


def look_for_libraries() -> None:
    """Has the frames of a library that was imported after the first error be hidden, too."""
    _libraries.cache_clear()
    is_hidden.cache_clear()


@functools.lru_cache(maxsize=1 << 14)
def is_hidden(file: str) -> bool:
    """Returns whether a file is of this package, JAX, NumPy or torch, or of a helper that they call through."""
    return file.startswith((*_OWN, *_libraries(), *_HELPERS)) and not file.startswith(_TOOLS)


def user_frame(depth: int = 1) -> types.FrameType | None:
    """Returns the innermost running frame that belongs to the user."""
    frame: types.FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and is_hidden(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def shortened(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Returns the traceback with the user's frames alone, or unchanged if JAX filters nothing."""
    mode = _mode()
    if mode == "off":
        return traceback
    frames: list[types.TracebackType] = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    made = None
    for one in reversed(frames):
        if mode == "tracebackhide" and is_hidden(one.tb_frame.f_code.co_filename):
            one.tb_frame.f_locals["__tracebackhide__"] = True  # IPython looks for it
        elif is_hidden(one.tb_frame.f_code.co_filename):
            continue
        made = types.TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return made


def shorten(error: BaseException) -> None:
    """Reduces the tracebacks of an error, and of those that led to it, to the user's frames."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = shortened(one.__traceback__)
        one = one.__cause__ or one.__context__


def forget_handling(error: BaseException, handled: BaseException) -> None:
    """Takes an error that was being handled, which the user has not seen, out of the contexts of a later one."""
    one = error
    while one.__context__ is not None and one.__context__ is not handled:
        one = one.__context__
    one.__context__ = None


def hide_from_jax(exclude: Callable[[str], None]) -> None:
    """Registers the folders of this package with JAX's filter of tracebacks."""
    for folder in _OWN:
        exclude(folder)


def is_wanted_cause(cause: object) -> bool:
    """Returns False for the place that JAX adds as a cause, unless everything is to be shown."""
    return type(cause).__name__ != "JaxStackTraceBeforeTransformation" or _mode() == "off"


def is_wanted_note(note: str) -> bool:
    """Returns False for JAX's note on frames that it removed."""
    return _NOTE not in note


def cause(error: Exception) -> Exception | None:
    """Returns the cause for our error that restates `error`: None, unless everything is to be shown."""
    return error if _mode() == "off" else None


def cell_of(file: str) -> str:
    """Returns `Cell In[5]` for the file of a notebook's cell, otherwise nothing."""
    shell = _shell()
    name = shell and shell.compile.format_code_name(file)
    return " ".join(name) if name else ""


def file_of(cell: str) -> str:
    """Returns the file of a notebook's cell, or the argument if it is no cell."""
    files = list(linecache.cache) if _shell() is not None else []
    return next((file for file in files if cell_of(file) == cell), cell)
