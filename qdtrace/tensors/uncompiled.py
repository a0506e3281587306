"""A call of a layer for `torch.compile`: a graph break with a reason. Loaded by the compiler, as that loads Dynamo."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = import_module("torch")
REASON = "qd.torch: XLA and qdtrace compile the function, torch.compile does not see into it"


@torch.compiler.disable(reason=REASON)
def run(layer: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the results of a layer's arguments, outside of the graph."""
    return layer(args, kwargs)
