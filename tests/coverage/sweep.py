"""Runs a function of the table as lanes under `qd.vmap` and under `jax.vmap`, and compares."""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import qdtrace as qd

from .table import Call, Entry


@dataclass(frozen=True)
class Outcome:
    """equal, refused, wrong or crash; with what happened."""

    kind: str
    detail: str = ""


def outcome(entry: Entry, dtype: Any) -> Outcome:
    """The calls of an entry as one program; where that fails, each by itself, and the first that is not equal."""
    with jax.enable_x64(dtype == np.float64):
        arrays = [[op.draw(dtype, k) for k, op in enumerate(call.operands)] for call in entry.calls]
        result = _together(entry.calls, arrays)
        if result.kind == "equal" or len(entry.calls) == 1:
            return result
        for call, operands in zip(entry.calls, arrays, strict=True):
            alone = _together([call], [operands])
            if alone.kind != "equal":
                return alone
        return result


def _together(calls: list[Call], arrays: list[list[np.ndarray]]) -> Outcome:
    def program(groups: Any) -> Any:
        return [_plain(call.fn(*operands)) for call, operands in zip(calls, groups, strict=True)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = jax.jit(jax.vmap(program))(arrays)
        try:
            got = qd.vmap(program)(arrays)
            got = jax.tree.map(np.asarray, got)
        except qd.UnsupportedError as error:
            return Outcome("refused", error.rule)
        except Exception as error:  # whatever it is, it is what the sweep looks for
            return Outcome("crash", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    for call, operands, g, w in zip(calls, arrays, got, wanted, strict=True):
        found = _difference(call, operands, g, w)
        if found:
            return Outcome("wrong", found)
    return Outcome("equal")


def _plain(result: Any) -> Any:
    """Arrays for what a function gives: keys become their data, Python numbers arrays."""
    leaves = jax.tree.leaves(result)
    return [
        jax.random.key_data(x) if jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key) else
        jax.numpy.asarray(x) for x in leaves
    ]  # fmt: skip


def _difference(call: Call, operands: list[np.ndarray], got: list[Any], want: list[Any]) -> str:
    if call.invariant is not None:
        got, want = ([call.invariant(*operands, *map(np.asarray, r))] for r in (got, want))
        got, want = (jax.tree.leaves(r) for r in (got, want))
    for g, w in zip(got, want, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return f"{g.dtype}{g.shape} instead of {w.dtype}{w.shape}"
        bad = _bad(g, w, call)
        if np.any(bad):
            at = tuple(np.argwhere(bad)[0])
            row = [np.asarray(x)[at[0]].tolist() for x in operands]
            return f"{np.count_nonzero(bad)} of {bad.size}, at {row}: {g[at]} instead of {w[at]}"[:400]
    return ""


def _bad(got: np.ndarray, want: np.ndarray, call: Call) -> np.ndarray:
    if want.dtype.kind == "c":
        parts = [_bad(p(got), p(want), Call(None, (), ulps=np.inf)) for p in (np.real, np.imag)]
        size = np.abs(want)
        close = np.abs(got - want) <= _allowed(size, want.real.dtype, call)
        return ~(close | ((parts[0] | parts[1]) == 0) & ~np.isfinite(want)) & ~(np.isnan(got) & np.isnan(want))
    if want.dtype.kind != "f" and want.dtype != "bfloat16":
        return got != want
    with np.errstate(all="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error = np.abs(got - want)
        allowed = _allowed(np.abs(want), want.dtype, call)
        return ~(same | (np.isfinite(want) & (error <= allowed)))


def _allowed(size: np.ndarray, dtype: Any, call: Call) -> np.ndarray:
    info = np.finfo(np.float16 if dtype == "bfloat16" else np.float32 if call.narrow else dtype)
    if call.of_lane and size.ndim > 1 and size.size:
        finite = np.where(np.isfinite(size), size, 0)
        size = np.broadcast_to(finite.reshape(len(size), -1).max(1).reshape(-1, *[1] * (size.ndim - 1)), size.shape)
    return call.ulps * info.eps * np.where(np.isfinite(size), size, 0) + call.absolute * info.eps + 4 * info.tiny
