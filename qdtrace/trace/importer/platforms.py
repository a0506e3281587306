"""`lax.platform_dependent`: the trace keeps the choice, which is made where a program is lowered (`ir/platforms`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.errors import QdError, UnsupportedError
from qdtrace.ir.platforms import PLATFORMS
from qdtrace.trace.importer.registry import rule
from qdtrace.trace.importer.scalars import constant
from qdtrace.trace.importer.values import Value, rank0

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from qdtrace.errors import Loc
    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer

    Names = Sequence[Sequence[str] | None]


class _RefusedError(Exception):
    """Exception for a branch that cannot be imported."""

    def __init__(self, number: int, error: QdError) -> None:
        super().__init__()
        self.number, self.error = number, error


@rule("platform_index")
def platform_index(imp: Importer, eqn: JaxprEqn, *, platforms: Names) -> Value:
    """Returns the number of the branch for a reader of it; `cond` goes by the platforms, see `on_platforms`."""

    def take(k: int) -> list[Value]:
        return [rank0(constant(np.int32(k)))]

    def either(here: Atom, on_true: Callable[[], list[Value]], on_false: Callable[[], list[Value]]) -> list[Value]:
        first, second = imp.element(on_true()[0], ()), imp.element(on_false()[0], ())
        return [rank0(imp.op("select", here, first, second))]

    return on_platforms(imp, platforms, take, either)[0]


def on_platforms(
    imp: Importer, platforms: Names, take: Callable[[int], list[Value]], either: Callable[..., list[Value]]
) -> list[Value]:
    """Returns the branch of the platform that the program will run on.

    `take(k)` imports a branch, `either(condition, on_true, on_false)` what is chosen. A platform without a branch, or
    with one that cannot be imported, is refused when the program is lowered for it.
    """
    found = _branches(platforms)
    missing = found.pop(None, [])
    errors: dict[str, QdError] = {name: _missing(imp, name) for name in missing}
    while found:
        with imp.block() as opened:
            try:
                results = _choose(imp, list(found.items()), take, either)
            except _RefusedError as refused:
                errors.update(dict.fromkeys(found.pop(refused.number), refused.error))
                continue
        for name, error in errors.items():
            _is_on(imp, [name], error)
        imp.current.eqns += opened.eqns
        return results
    raise next(errors[name] for name in PLATFORMS if name in errors)


def _choose(
    imp: Importer,
    left: Sequence[tuple[Any, Sequence[str]]],
    take: Callable[[int], list[Value]],
    either: Callable[..., list[Value]],
) -> list[Value]:
    (number, names), *rest = left

    def taken() -> list[Value]:
        try:
            return take(number)
        except QdError as error:
            raise _RefusedError(number, error) from error

    if not rest:
        return taken()
    return either(_is_on(imp, names), taken, lambda: _choose(imp, rest, take, either))


def _branches(platforms: Names) -> dict[int | None, list[str]]:
    """Returns the platforms of each branch: the first one for it, or for any (None); those of no branch under None."""
    found: dict[int | None, list[str]] = {}
    for platform in PLATFORMS:
        number = next((k for k, names in enumerate(platforms) if names is None or platform in names), None)
        found.setdefault(number, []).append(platform)
    return found


def _is_on(imp: Importer, names: Sequence[str], error: QdError | None = None) -> Atom:
    """Emits a test of whether the program runs on one of these platforms; with an error it is refused there."""
    imp.locate()
    loc: Loc | None = imp.loc
    refused, hint = ("", "") if error is None else (error.rule, error.help)
    imp.loc = loc if error is None else error.loc or loc
    (found,) = imp.emit("platform", names=" ".join(names), refused=refused, help=hint)
    imp.loc = loc
    return found


def _missing(imp: Importer, platform: str) -> UnsupportedError:
    return UnsupportedError(
        f"`platform_dependent` has no branch for {platform!r}, where the loop runs",
        loc=imp.here(),
        help="give a branch for it, or a `default`",
    )
