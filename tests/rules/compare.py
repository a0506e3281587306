"""Runs a drawn program as lanes and by `jax.vmap`, with its derivatives from outside and inside of the lane.

Outside: `jax.jvp(qd.vmap(f), ...)`, `jax.vjp(qd.vmap(f), ...)` and the tangent of the adjoint. Inside: `qd.vmap` of the
same things of `f`. Both are compared with what JAX gives for `jax.vmap(f)`.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.errors import QdError

from .draw import Program, directions
from .points import info, is_inexact

WAYS = ("value", "jvp", "vjp", "second")
SIDES = ("outside", "inside")


@dataclass(frozen=True)
class Finding:
    """What holds for one arrangement, way and side: equal, wrong, crash, refused, none where JAX has none.

    It is right where JAX has another value for an operand that is as good: see `_is_right`.
    """

    part: str
    way: str
    side: str
    kind: str
    detail: str = ""


def _ways(f: Callable[..., Any], active: list[list[int]]) -> dict[str, Callable[..., Any]]:
    """Value and derivatives of a function of the arguments of all parts; tangents and cotangents are operands."""

    def placed(arguments: Any, chosen: Any) -> Any:
        out = [list(xs) for xs in arguments]
        for xs, ks, values in zip(out, active, chosen, strict=True):
            for k, value in zip(ks, values, strict=True):
                xs[k] = value
        return out

    def setup(arguments: Any) -> tuple[Any, Callable[..., Any]]:
        chosen = [[xs[k] for k in ks] for xs, ks in zip(arguments, active, strict=True)]
        smooth = lambda c: [  # noqa: E731
            [y for y in part if is_inexact(y.dtype)] for part in f(*placed(arguments, c))
        ]
        return chosen, smooth

    def value(arguments: Any, tangents: Any, cotangents: Any) -> Any:
        return f(*arguments)

    def jvp(arguments: Any, tangents: Any, cotangents: Any) -> Any:
        chosen, smooth = setup(arguments)
        return jax.jvp(smooth, (chosen,), (tangents,))[1]

    def vjp(arguments: Any, tangents: Any, cotangents: Any) -> Any:
        chosen, smooth = setup(arguments)
        return jax.vjp(smooth, chosen)[1](cotangents)[0]

    def second(arguments: Any, tangents: Any, cotangents: Any) -> Any:
        chosen, smooth = setup(arguments)
        return jax.jvp(lambda c: jax.vjp(smooth, c)[1](cotangents)[0], (chosen,), (tangents,))[1]

    return {"value": value, "jvp": jvp, "vjp": vjp, "second": second}


Runs = dict[tuple[str, str], Any]
"""(way, side) -> results of each part, or the exception."""


def findings(program: Program, pairs: Any = None) -> list[Finding]:
    """What holds for each part of a program; `pairs` are the ways and sides to run, all without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _findings(program, [(w, s) for s in SIDES for w in WAYS] if pairs is None else list(pairs))


def _findings(program: Program, pairs: list[tuple[str, str]]) -> list[Finding]:
    arguments = program.arguments()
    tangents, cotangents, active = directions(program, arguments, np.random.default_rng(program.seed))
    if not any(active) or not any(cotangents):
        pairs = [p for p in pairs if p[0] == "value"][:1]
    operands = (arguments, tangents, cotangents)
    if any(w != "value" for w, _ in pairs) and program.extreme:
        # slopes at subnormal numbers are as large as numbers get, and some of XLA's threads take them for zeros
        smooth = [p for p in pairs if p[0] != "value"]
        flushed = (_without_subnormal_numbers(arguments), tangents, cotangents)
        values = [p for p in pairs if p[0] == "value"]
        return _compared(program, smooth, active, flushed) + (
            _compared(program, values, active, operands) if values else []
        )
    return _compared(program, pairs, active, operands)


def _compared(program: Program, pairs: list[tuple[str, str]], active: Any, operands: Any) -> list[Finding]:
    f = program.function()
    wanted = _oracle(_ways(jax.vmap(f), active), operands, {w for w, _ in pairs})
    out: list[Finding] = []
    again: set[tuple[str, str]] = set()
    got = _lanes(f, active, operands, pairs, wanted)
    for (way, side), result in got.items():
        if isinstance(wanted[way], Exception) and len(program.parts) > 1:
            again.add((way, side))
        elif isinstance(wanted[way], Exception):
            out += [Finding(str(p), way, side, "none", _first_line(wanted[way])) for p in program.parts]
        elif isinstance(result, Exception):
            again.add((way, side))
        else:
            for k, part in enumerate(program.parts):
                why = _different(program, k, result[k], wanted[way][k])
                kind = "wrong" if why else "equal"
                if why and _is_right(program, k, result[k], way, active, operands):
                    kind = "right"
                out.append(Finding(str(part), way, side, kind, why))
    for way, side in again:
        if len(program.parts) > 1:
            for k in range(len(program.parts)):
                out += _findings(program.alone(k), [(way, side)])
        else:
            error = got[way, side]
            kind = "refused" if isinstance(error, QdError) else "crash"
            out.append(Finding(str(program.parts[0]), way, side, kind, _first_line(error)))
    return out


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:300]


def _oracle(ways: dict[str, Any], operands: Any, names: set[str]) -> dict[str, Any]:
    """JAX's results; an exception where JAX has none."""
    asked = {w: ways[w] for w in WAYS if w in names}
    try:
        return _arrays(jax.jit(lambda *x: {w: fn(*x) for w, fn in asked.items()})(*operands))
    except Exception:  # one of them is what JAX refuses: each by itself
        out: dict[str, Any] = {}
        for way, fn in asked.items():
            try:
                out[way] = _arrays(jax.jit(fn)(*operands))
            except Exception as error:  # whatever JAX raises
                out[way] = error
        return out


def _lanes(f: Any, active: Any, operands: Any, pairs: list[tuple[str, str]], wanted: dict[str, Any]) -> Runs:
    """Results of lanes; those inside of one lane function at first, each by itself where that fails."""
    out: Runs = {}
    mapped, inner = _ways(qd.vmap(f), active), _ways(f, active)
    for way, side in pairs:
        if isinstance(wanted[way], Exception):
            out[way, side] = None
        elif side == "outside":
            out[way, side] = _run(mapped[way], operands)
    inside = [w for w, s in pairs if s == "inside" and not isinstance(wanted[w], Exception)]
    together = _run(qd.vmap(lambda *x: {w: inner[w](*x) for w in inside}), operands) if inside else {}
    for way in inside:
        if isinstance(together, Exception):
            out[way, "inside"] = _run(qd.vmap(inner[way]), operands) if len(inside) > 1 else together
        else:
            out[way, "inside"] = together[way]
    return out


def _run(fn: Any, operands: Any) -> Any:
    try:
        return _arrays(jax.jit(fn)(*operands))
    except Exception as error:  # whatever it is, it is what the test looks for
        return error


def _arrays(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def _different(program: Program, k: int, got: list[Any], want: list[Any]) -> str:
    """Where results of a part differ from JAX's; nothing where they agree."""
    for g, w in zip(got, want, strict=True):
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return f"{g.dtype}{g.shape} instead of {w.dtype}{w.shape}"
        bad = _bad(program.parts[k], g, w)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            row = [_shown(x[at[0]], at[1:]) for x in program.arguments()[k]]
            return f"{np.count_nonzero(bad)} of {bad.size}, at {at} of {row}: {g[at]} instead of {w[at]}"[:400]
    return ""


def _shown(x: Any, at: tuple[int, ...]) -> Any:
    """The operand of an element, or the start of its lane."""
    if x.shape and len(at) == x.ndim and all(i < n for i, n in zip(at, x.shape, strict=True)):
        return str(x[at])
    return np.array2string(x.ravel()[:6], threshold=6) if x.ndim else str(x)


def _bad(part: Any, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    if not is_inexact(want.dtype):
        return got != want
    eps = float(info(want.dtype).eps)
    # of narrow floats a tenth at most: many of their roundings are no bound
    ulps = min(part.case.ulps, 0.1 / eps)
    with np.errstate(all="ignore"):
        allowed = ulps * eps * _size(part, want)
        if want.dtype.kind != "c":
            return ~_same(got, want, allowed)
        return ~(_same(got.real, want.real, allowed) & _same(got.imag, want.imag, allowed))


def _size(part: Any, want: np.ndarray) -> np.ndarray:
    """Sizes that errors are relative to: of the element or one, of the whole lane where elements are put together."""
    size = np.abs(want.astype(np.complex128 if want.dtype.kind == "c" else np.float64))
    size = np.where(np.isfinite(size), size, 0)
    # sums of numbers of size one, of which narrow floats lose more
    terms = max((int(np.prod(s)) for s in part.shapes()), default=1)
    size = np.maximum(size, 1 + terms / (64 if want.dtype.itemsize > 2 else 8))
    if part.case.elementwise or size.ndim < 2 or not size.size:
        return size
    return np.broadcast_to(size.reshape(len(size), -1).max(1).reshape(-1, *[1] * (size.ndim - 1)), size.shape)


def _same(got: Any, want: Any, allowed: Any) -> Any:
    got, want = got.astype(np.float64), want.astype(np.float64)
    return (got == want) | (np.isnan(got) & np.isnan(want)) | (np.isfinite(want) & (np.abs(got - want) <= allowed))


def _is_right(program: Program, k: int, got: Any, way: str, active: Any, operands: Any) -> bool:
    """Whether each element is JAX's for other operands that are as good.

    Subnormal numbers may be zeros: threads of XLA take them so, others do not. A branch cut may be reached from the
    side that its zero's sign says. And XLA changes products with infinities and NaN where it compiles many operations
    at once (0 times x is taken as 0 where 0 comes from a comparison): one by one they are what JAX wrote.
    """
    program = program.alone(k)
    operands, active = [x[k : k + 1] for x in operands], active[k : k + 1]
    flushed = _without_subnormal_numbers(operands)
    found = []
    for f in [program.function(), *([program.function(mirrored=True)] if program.parts[0].case.cut else [])]:
        for given in [operands, *([flushed] if program.extreme else [])]:
            wanted = _oracle(_ways(jax.vmap(f), active), given, {way})[way]
            if isinstance(wanted, Exception):
                return False
            found.append(wanted[0])
    if program.extreme:
        found.append(_arrays(_ways(jax.vmap(program.function()), active)[way](*operands))[0])
    return not any(
        np.all([_bad(program.parts[0], g, w) for w in ws], axis=0).any() for g, *ws in zip(got, *found, strict=True)
    )


def _without_subnormal_numbers(tree: Any) -> Any:
    return jax.tree.map(_without_subnormal, tree)


def _without_subnormal(x: Any) -> Any:
    if not is_inexact(x.dtype):
        return x
    if x.dtype.kind == "c":
        out = x.copy()
        out.real, out.imag = _without_subnormal(x.real), _without_subnormal(x.imag)
        return out
    limits: Any = jnp.finfo(x.dtype)
    return np.where(np.abs(x) < limits.tiny, np.copysign(np.zeros_like(x), x), x)
