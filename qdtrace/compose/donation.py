"""Donated arguments, paired with the results that may have their memory.

JAX gives XLA the pairs: each output takes the first donated argument of its type that is left. A result that is
computed elsewhere is copied there, so a program is told the pair and may compute in place (`passes/reuse_donated`).
XLA copies an argument that somebody still reads, so a wrong guess here costs time, and is never wrong.

Only `qd.jit` knows its own donations: what `jax.jit(..., donate_argnums=...)` around it donates does not show here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.core import Tracer

from qdtrace.compose.jaxprs import is_literal
from qdtrace.trace.arguments import parameters_of
from qdtrace.trace.markers import read_p

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jax import Array

    from qdtrace.trace.tree import Root


def donated_leaves(
    f: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    argnums: int | Sequence[int],
    argnames: str | Iterable[str],
) -> list[Array]:
    """Returns the tracers among donated arguments, in order. As in JAX, positions imply names and names positions."""
    nums = {argnums} if isinstance(argnums, int) else set(argnums)
    names = {argnames} if isinstance(argnames, str) else set(argnames)
    if not nums and not names:
        return []
    known = [p.name for p in parameters_of(f) if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not names:
        names = {known[n] for n in nums if 0 <= n < len(known)}
    elif not nums:
        nums = {known.index(n) for n in names if n in known}
    chosen = [a for k, a in enumerate(args) if k in nums]
    chosen += [v for k, v in sorted(kwargs.items()) if k in names]
    return [x for x in jax.tree.leaves(chosen) if isinstance(x, Tracer)]


def pair_results(root: Root, donated: Sequence[Array]) -> dict[object, object]:
    """Maps variables of returned buffers to the donated argument in whose memory JAX wants them."""
    if not donated:
        return {}
    reads = {eqn.outvars[0]: eqn.invars[0] for eqn in root.items if eqn.primitive is read_p}
    waiting: dict[tuple[tuple[int, ...], object], list[Array]] = {}
    for x in reversed(donated):
        waiting.setdefault((x.aval.shape, x.aval.dtype), []).append(x)
    pairs: dict[object, object] = {}
    for result in root.results:
        left = waiting.get((result.aval.shape, result.aval.dtype))
        argument = left.pop() if left else None
        buffer = None if is_literal(result) else reads.get(result)
        if argument is not None and buffer is not None:
            pairs.setdefault(buffer, argument)
    return pairs
