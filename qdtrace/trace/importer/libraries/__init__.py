"""Import rules for packages on top of JAX that JAX's primitives do not cover: one module a package, named like it.

A module is loaded when an equation of its package is imported, which is after the user has imported the package; none
imports the package itself. Most packages need none, as their primitives are imported by their implementation.

A module may have `callback(importer, function, eqn, *operands) -> list[Value] | None`: what a Python function of the
package that `jax.pure_callback` calls is in a lane; None where it is nothing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value


@functools.cache
def _library(package: str) -> ModuleType | None:
    name = f"{__name__}.{package}"
    return None if importlib.util.find_spec(name) is None else importlib.import_module(name)


def callback_of(imp: Importer, eqn: JaxprEqn, operands: tuple[Value, ...]) -> list[Value] | None:
    """Returns the results of a `pure_callback` to a function that its package is known to mean otherwise; else None."""
    function = getattr(eqn.params["callback"], "callback_func", None)
    library = _library((getattr(function, "__module__", None) or "").partition(".")[0] or "none")
    return None if library is None else library.callback(imp, function, eqn, *operands)
