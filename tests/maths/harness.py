"""Applies a maths function to arrays through LLVM's JIT, and measures its error against mpmath."""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mpmath as mp
import numpy as np

from lowering.llvm.maths import definitions, library
from lowering.llvm.target import Target
from lowering.runtime.jit import link
from qdtrace.ir.types import DType
from tests import kept_code

if TYPE_CHECKING:
    from collections.abc import Callable

_names = itertools.count()


def _driver(function: definitions.MathFunction, dtype: DType, lanes: int, arguments: int) -> str:
    """A function that applies `function` to `lanes` elements at a time; the count is a multiple of lanes."""
    element = "float" if dtype is DType.f32 else "double"
    kind = element if lanes == 1 else f"<{lanes} x {element}>"
    loads, operands = [], []
    for k in range(arguments):
        loads.append(f"  %p{k} = getelementptr {element}, ptr %in{k}, i64 %i")
        loads.append(f"  %x{k} = load {kind}, ptr %p{k}, align {dtype.itemsize}")
        operands.append(f"{kind} %x{k}")
    pointers = ", ".join(f"ptr %in{k}" for k in range(arguments))
    return "\n".join(
        [
            f"define void @run({pointers}, ptr noalias %out, i64 %n) {{",
            "entry:",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %j, %loop ]",
            *loads,
            f"  %y = call {kind} @{function.symbol}({', '.join(operands)})",
            f"  %q = getelementptr {element}, ptr %out, i64 %i",
            f"  store {kind} %y, ptr %q, align {dtype.itemsize}",
            f"  %j = add i64 %i, {lanes}",
            "  %more = icmp ult i64 %j, %n",
            "  br i1 %more, label %loop, label %done",
            "done:",
            "  ret void",
            "}",
        ]
    )


@functools.cache
def compiled(
    name: str, dtype: DType, lanes: int, target: str = "host", vectors: int = 1
) -> Callable[..., np.ndarray]:
    """The function, of vectors side by side, as one on NumPy arrays of any length."""
    arguments = 2 if name in ("pow", "atan2", "rem") else 1
    function = library.function_for(name, dtype, lanes, vectors=vectors)
    lanes *= vectors
    machine = Target.named(target)
    code = kept_code.full_code(definitions.collect([function]) + _driver(function, dtype, lanes, arguments), machine)
    address = link(f"maths{next(_names)}", code, ("run",), {}, machine)["run"]
    native = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arguments + 1), ctypes.c_int64)(address)

    def apply(*arrays: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        count = len(arrays[0])
        padded = -(-count // lanes) * lanes
        # The padding repeats the first element.
        inputs = [a if padded == count else np.concatenate([a, np.full(padded - count, a[0], a.dtype)]) for a in arrays]
        inputs = [np.ascontiguousarray(a, dtype.numpy) for a in inputs]
        result = np.empty(padded, dtype.numpy) if out is None else out
        native(*(a.ctypes.data for a in inputs), result.ctypes.data, padded)
        return result[:count]

    return apply


@dataclass(frozen=True)
class Reference:
    """Exact values as (high + low) * 2**exponent, |high| in [1/2, 1); 0, inf and NaN are in high with exponent 0."""

    high: np.ndarray
    low: np.ndarray
    exponent: np.ndarray

    @staticmethod
    def of(values: list[mp.mpf]) -> Reference:
        """Splits mpmath numbers."""
        high, low, exponent = (np.zeros(len(values)) for _ in range(3))
        for k, value in enumerate(values):
            if mp.isnan(value) or mp.isinf(value) or value == 0:
                high[k] = float(value)
                continue
            fraction, power = mp.frexp(value)
            high[k] = float(fraction)
            low[k] = float(fraction - high[k])
            exponent[k] = float(min(max(power, -(10**6)), 10**6))
        return Reference(high, low, exponent)


def ulps(got: np.ndarray, reference: Reference) -> np.ndarray:
    """Error of each result in units in the last place of the exact value; inf where the kind of value is wrong.

    Infinite results count as 2**(largest exponent), exact values beyond that likewise, so that a result that
    overflows a few units too early or too late has an error of a few units.
    """
    info = np.finfo(got.dtype)
    bits, top = info.nmant + 1, float(info.maxexp)
    smallest = info.minexp - info.nmant
    high, low, exponent = reference.high.copy(), reference.low.copy(), reference.exponent.copy()
    over = np.isinf(high) | (exponent > top)
    high[over], low[over], exponent[over] = np.copysign(0.5, high[over]), 0.0, top + 1
    with np.errstate(invalid="ignore"):
        # A signalling NaN that comes back as it was given.
        fraction, power = np.frexp(got.astype(np.float64))
    infinite = np.isinf(got)
    fraction[infinite], power[infinite] = np.copysign(0.5, got[infinite]), int(top) + 1
    unit = np.maximum(exponent - bits, smallest)
    shift = np.clip(exponent - unit, -1000, 1000)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.ldexp(fraction, np.clip(power - exponent, -2000, 2000).astype(int))
        error = np.ldexp(np.abs((moved - high) - low), shift.astype(int))
    both_nan = np.isnan(got) & np.isnan(reference.high)
    one_nan = np.isnan(got) ^ np.isnan(reference.high)
    return np.where(both_nan, 0.0, np.where(one_nan, np.inf, error))
