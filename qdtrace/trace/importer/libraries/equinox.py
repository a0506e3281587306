"""Equinox: errors that are raised while a program runs (`eqx.error_if`, `throw=True` of what is built on it).

    cond[branches=(
      { lambda ; x. let  in (x,) }                                                 the error is not raised
      { lambda ; x. let y = pure_callback[callback=raises] 2:i32                   message 2 is raised
                        z = pure_callback[callback=tpu_msg] y 2:i32 in (z,) }      where raising does nothing
    )] failed x

In a lane `raises` is a check that does not hold: the call fails with the message. The importer of `cond` turns a branch
that fails into a check of its condition.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.errors import UnsupportedError
from qdtrace.ir.program import Literal
from qdtrace.trace.importer.scalars import FALSE, integer
from qdtrace.trace.importer.values import array_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value

_ERRORS = "equinox._errors"
_RAISES = "_error.<locals>.raises"
_NEVER_CALLED = "_error.<locals>.tpu_msg"


def callback(imp: Importer, function: Callable[..., object], eqn: JaxprEqn, *operands: Value) -> list[Value] | None:
    """Imports a function of `equinox._errors` that a program calls when it fails; None for any other."""
    if function.__module__ != _ERRORS or function.__qualname__ not in (_RAISES, _NEVER_CALLED):
        return None
    if function.__qualname__ == _RAISES:
        _fail(imp, _messages(imp, function), operands[0])
    zeros = [imp.element(imp.constant_value(np.zeros((), v.aval.dtype)[()], v.aval), ()) for v in eqn.outvars]
    return [array_of([z] * v.aval.size, v.aval.shape) for z, v in zip(zeros, eqn.outvars, strict=True)]


def _messages(imp: Importer, function: Callable[..., object]) -> Sequence[str]:
    found = inspect.getclosurevars(function).nonlocals.get("msgs")
    if isinstance(found, (list, tuple)) and found and all(isinstance(m, str) for m in found):
        return found
    raise UnsupportedError(
        "this release of Equinox keeps the messages of `eqx.error_if` where they are not found",
        loc=imp.here(),
        help="use qd.check, or a release that the tests are run with (`libs` in pyproject.toml)",
    )


def _fail(imp: Importer, messages: Sequence[str], which: Value) -> None:
    """Emits a check for each message; the last one takes any number that is left."""
    index = imp.element(which, ())
    imp.locate()
    if isinstance(index, Literal):
        imp.emit("check", FALSE, message=messages[int(index.value)])
        return
    for k, message in enumerate(messages[:-1]):
        imp.emit("check", imp.op("ne", index, integer(k, index.type.dtype)), message=message)
    imp.emit("check", FALSE, message=messages[-1])
