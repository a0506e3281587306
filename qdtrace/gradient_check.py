"""`qd.check_grads`: derivatives of a function held against differences of its values and against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import GradientError, TraceValueError, boundary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Tree = Any

MODES = ("fwd", "rev")


@boundary
def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 1,
    modes: Sequence[str] = MODES,
    *,
    rtol: float | None = None,
    step: float | None = None,
    seed: int = 0,
) -> None:
    """Checks the derivatives of `f` at `args`, up to an order; returns nothing when they agree.

    For each argument that is a float, along one random direction of length about one:

    - `"fwd"`: `jax.jvp` against central differences with two steps. Without `step` they are a tenth of the cube root of
      the dtype's resolution, and half of it, of each element: elements of different size are changed by the same part,
      so none changes its sign. A given `step` is absolute, along the direction. What both steps disagree by is added
      to the tolerance, and what the rounding of large values makes of differences.
    - `"rev"`: `jax.vjp` against `jax.jvp` by `<w, J v> = <J^T w, v>`, for a random `w` of each result.

    Higher orders check the derivatives of these derivatives in the same way. At a kink, or where a function jumps,
    differences mean nothing: choose another point.

    >>> qd.check_grads(lambda x: jnp.sin(x).sum(), (jnp.array([1.0, 2.0]),), order=2)

    Args:
        f: the function.
        args: its arguments, any trees of arrays; integers are held fixed.
        order: the highest derivative to check.
        modes: `"fwd"`, `"rev"` or both.
        rtol: relative to the largest element of a derivative; when None the fourth root of the dtype's resolution for
            differences, its square root times ten for the identity.
        step: of the differences; see above.
        seed: of the random directions.

    Raises:
        GradientError: names the result and the argument whose derivative disagrees, with both numbers.
        TraceValueError: there is nothing to check, or a mode is unknown.
    """
    unknown = [m for m in modes if m not in MODES]
    if unknown or not modes or order < 1:
        wanted = f"modes out of {', '.join(MODES)} and order 1 or more"
        raise TraceValueError(f"check_grads needs {wanted}, got {tuple(modes)} and {order}")
    _check(f, tuple(args), order, tuple(modes), np.random.default_rng(seed), (rtol, step), "")


def _check(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    order: int,
    modes: tuple[str, ...],
    rng: np.random.Generator,
    limits: tuple[float | None, float | None],
    of: str,
) -> None:
    leaves, tree = jax.tree.flatten(args)
    leaves = [jnp.asarray(x) for x in leaves]
    names = _names("argument", args)
    floats = [k for k, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]
    if not floats:
        raise TraceValueError("check_grads needs an argument of floats, got none", help="pass floats, not integers")

    def of_floats(values: list[Any]) -> list[Any]:
        full = list(leaves)
        for k, v in zip(floats, values, strict=True):
            full[k] = v
        return [y for y in jax.tree.leaves(f(*jax.tree.unflatten(tree, full))) if _is_float(y)]

    at = [leaves[k] for k in floats]
    out = jax.eval_shape(lambda: f(*jax.tree.unflatten(tree, leaves)))
    results = [n for n, y in zip(_names("result", out), jax.tree.leaves(out), strict=True) if _is_float(y)]
    directions = [_random(rng, x) for x in at]
    weights = [_random(rng, y) for y in of_floats(at)]
    for i, k in enumerate(floats):
        along = [v if j == i else jnp.zeros_like(v) for j, v in enumerate(directions)]
        pairs = [f"{of}{r} by {names[k]}" for r in results]
        if "fwd" in modes:
            _against_differences(of_floats, at, along, i, limits, pairs)
        if "rev" in modes:
            tangents = jax.jvp(of_floats, (at,), (along,))[1]
            _against_reverse(of_floats, at, i, directions[i], tangents, weights, limits, pairs)
    if order > 1:
        if "fwd" in modes:
            _check(
                lambda values: jax.jvp(of_floats, (values,), (directions,))[1],
                (at,), order - 1, modes, rng, limits, f"{of}tangent of ",
            )  # fmt: skip
        if "rev" in modes:
            _check(
                lambda values: jax.vjp(of_floats, values)[1](weights)[0],
                (at,), order - 1, modes, rng, limits, f"{of}adjoint of ",
            )  # fmt: skip


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _names(what: str, tree: Any) -> list[str]:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [f"{what} {path}" if path else what for path in paths]


def _random(rng: np.random.Generator, like: Any) -> Any:
    drawn = rng.normal(size=like.shape)
    return jnp.asarray(drawn / max(float(np.linalg.norm(drawn)), 1e-30), like.dtype)


def _resolution(values: Sequence[Any]) -> float:
    return max(float(jnp.finfo(x.dtype).eps) for x in values)


def _against_differences(
    f: Callable[[list[Any]], list[Any]],
    at: list[Any],
    along: list[Any],
    i: int,
    limits: tuple[float | None, float | None],
    names: list[str],
) -> None:
    size = min(float(jnp.max(jnp.abs(at[i]), initial=0.0)), 1.0) or 1.0
    if limits[1] is None:
        parts = jnp.where(at[i] == 0, size, jnp.abs(at[i])) * max(at[i].size, 1) ** 0.5
        along = [v * parts if k == i else v for k, v in enumerate(along)]
    tangents = jax.jvp(f, (at,), (along,))[1]
    eps = _resolution([*at, *tangents])
    step = limits[1] or 0.1 * eps ** (1 / 3)

    def values(h: float) -> list[np.ndarray]:
        return [np.asarray(y, np.float64) for y in f([x + h * v for x, v in zip(at, along, strict=True)])]

    outer, inner = [(values(h), values(-h)) for h in (step, step / 2)]
    for name, tangent, above, below, upper, lower in zip(names, tangents, *outer, *inner, strict=True):
        wide, narrow = (above - below) / (2 * step), (upper - lower) / step
        got = np.asarray(tangent, np.float64)
        scale = max(float(np.max(np.abs(narrow), initial=0.0)), float(np.max(np.abs(got), initial=0.0)))
        rounding = eps * np.maximum(np.abs(above), 1.0 if limits[1] else size) / step
        allowed = (limits[0] or eps**0.25) * scale + 2 * np.abs(wide - narrow) + rounding
        _compare(name, "jvp", got, "central differences", narrow, allowed)


def _against_reverse(
    f: Callable[[list[Any]], list[Any]],
    at: list[Any],
    i: int,
    direction: Any,
    tangents: list[Any],
    weights: list[Any],
    limits: tuple[float | None, float | None],
    names: list[str],
) -> None:
    eps = _resolution([*at, *tangents])
    _, pull = jax.vjp(f, at)
    for j, (name, tangent) in enumerate(zip(names, tangents, strict=True)):
        (adjoints,) = pull([w if k == j else jnp.zeros_like(w) for k, w in enumerate(weights)])
        forward = np.sum(np.asarray(weights[j], np.float64) * np.asarray(tangent, np.float64))
        back = np.sum(np.asarray(adjoints[i], np.float64) * np.asarray(direction, np.float64))
        sizes = np.linalg.norm(np.asarray(tangent, np.float64)), np.linalg.norm(np.asarray(adjoints[i], np.float64))
        allowed = (limits[0] or 10 * eps**0.5) * max(*map(float, sizes), 1e-30)
        _compare(name, "<w, J v>", forward, "<J^T w, v>", back, np.asarray(allowed))


def _compare(name: str, first: str, a: Any, second: str, b: Any, allowed: Any) -> None:
    wrong = ~(np.abs(a - b) <= allowed)
    if not np.any(wrong):
        return
    at = np.unravel_index(int(np.argmax(wrong)), np.shape(wrong))
    where = f" at {tuple(map(int, at))}" if np.ndim(wrong) else ""
    raise GradientError(
        f"derivative of {name} disagrees{where}: {first} gives {float(np.asarray(a)[at]):.9g}, "
        f"{second} {float(np.asarray(b)[at]):.9g}",
        notes=[f"{int(np.sum(wrong))} of {np.size(wrong)} numbers differ by more than {float(np.max(allowed)):.3g}"],
        help="check at another point: at a kink or a jump differences mean nothing",
    )
