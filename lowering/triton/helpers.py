"""Functions, as Triton source, that kernels call if an operator of Triton leaves a case undefined.

They take blocks and scalars of any dtype that they make sense for. `tl.where` of a Python number may return a wider
dtype, so results are converted back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Helper:
    """The text of a function and the helpers that it calls."""

    text: str
    needs: tuple[str, ...] = ()


def jit(header: str, doc: str, *lines: str, needs: tuple[str, ...] = ()) -> Helper:
    """Returns a helper with that header, docstring and lines."""
    body = "\n".join(f"    {line}" for line in lines)
    return Helper(f'@triton.jit\ndef {header}:\n    """{doc}"""\n{body}\n', needs)


HELPERS: dict[str, Helper] = {
    "divide": jit(
        "divide(a, b)",
        "Truncated quotient; by zero all bits are set; the smallest number by -1 is itself.",
        "safe = tl.where((b == 0) | (b == -1), 1, b).to(b.dtype)",
        "quotient = tl.where(b == -1, 0 - a, a // safe)",
        "return tl.where(b == 0, -1, quotient).to(a.dtype)",
    ),
    "divide_unsigned": jit(
        "divide_unsigned(a, b)",
        "Quotient; by zero all bits are set.",
        "quotient = a // tl.where(b == 0, 1, b).to(b.dtype)",
        "return tl.where(b == 0, ~(a ^ a), quotient)",
    ),
    "remainder": jit(
        "remainder(a, b)",
        "Remainder of the truncated quotient; by zero it is the dividend.",
        "safe = tl.where((b == 0) | (b == -1), 1, b).to(b.dtype)",
        "return tl.where(b == 0, a, a % safe)",
    ),
    "remainder_unsigned": jit(
        "remainder_unsigned(a, b)",
        "Remainder; by zero it is the dividend.",
        "safe = tl.where(b == 0, 1, b).to(b.dtype)",
        "return tl.where(b == 0, a, a % safe)",
    ),
    "shift_left": jit(
        "shift_left(a, by, BITS: tl.constexpr)",
        "By the width or more it gives 0; `by` is unsigned.",
        "moved = a << (by & (BITS - 1)).to(a.dtype)",
        "return tl.where(by < BITS, moved, a ^ a)",
    ),
    "shift_right": jit(
        "shift_right(a, by, BITS: tl.constexpr)",
        "Of an unsigned number; by the width or more it gives 0.",
        "moved = a >> (by & (BITS - 1))",
        "return tl.where(by < BITS, moved, a ^ a)",
    ),
    "shift_sign": jit(
        "shift_sign(a, by, BITS: tl.constexpr)",
        "Of a signed number; by the width or more it gives the sign; `by` is unsigned.",
        "return a >> tl.where(by < BITS, by, BITS - 1).to(a.dtype)",
    ),
    "saturate": jit(
        "saturate(x, LOW: tl.constexpr, END: tl.constexpr, first, last)",
        "A float as an integer of first .. last, truncated; LOW is first, END is last + 1; NaN gives 0.",
        "whole = tl.where((x >= LOW) & (x < END), x, 0.0).to(last.dtype)",
        "low = tl.where(x < LOW, first, whole)",
        "return tl.where(x >= END, last, low)",
    ),
    "narrow": jit(
        "narrow(x)",
        "f64 as f32, rounded to odd: rounding that once more to a 16 bit float is right.",
        "near = x.to(tl.float32)",
        "bits = near.to(tl.int32, bitcast=True)",
        "toward_zero = tl.where(tl.abs(near.to(tl.float64)) > tl.abs(x), bits - 1, bits)",
        "odd = (near.to(tl.float64) != x) & (x == x)",
        "return tl.where(odd, toward_zero | 1, bits).to(tl.float32, bitcast=True)",
    ),
    "sign": jit(
        "sign(x)",
        "-1, 1, or a zero or NaN itself.",
        "size = tl.where(x > 0, 1.0, -1.0).to(x.dtype)",
        "return tl.where((x > 0) | (x < 0), size, x)",
    ),
    "logistic": jit(
        "logistic(x)",
        "1 / (1 + exp(-x)); the exponential is never above 1.",
        "small = libdevice.exp(-1.0 * tl.abs(x))",
        "return tl.div_rn(tl.where(x >= 0, 1.0, small), 1.0 + small)",
    ),
    "logistic_double": jit(
        "logistic_double(x)",
        "The same in f64.",
        "small = libdevice.exp(-1.0 * tl.abs(x))",
        "return tl.where(x >= 0, 1.0, small) / (1.0 + small)",
    ),
    "population_count": jit(
        "population_count(x)",
        "Bits that are set in a u64: sums of 2, 4, 8 bits, then of all bytes.",
        "x = x - ((x >> 1) & 0x5555555555555555)",
        "x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)",
        "x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F",
        "return (x * 0x0101010101010101) >> 56",
    ),
    "leading_zeros": jit(
        "leading_zeros(x)",
        "Zeros in front of the first bit of a u64: all bits behind it are set, then those that are left are counted.",
        "x = x | (x >> 1)",
        "x = x | (x >> 2)",
        "x = x | (x >> 4)",
        "x = x | (x >> 8)",
        "x = x | (x >> 16)",
        "x = x | (x >> 32)",
        "return population_count(~x)",
        needs=("population_count",),
    ),
    "report": jit(
        "report(failure, failed, NUMBER: tl.constexpr, value, BITS: tl.constexpr)",
        "Leaves the number of a check and the value, or the nearest that there is room for, in the word of failures.",
        "near = tl.minimum(tl.maximum(value.to(tl.int64), -(1 << (BITS - 1))), (1 << (BITS - 1)) - 1)",
        "word = (near & ((1 << BITS) - 1)) | (NUMBER << BITS)",
        "tl.store(failure + 0 * failed.to(tl.int32), word, mask=failed)",
    ),
    **{
        f"combine_{op}": jit(f"combine_{op}(a, b)", f"For sums of a block: `{op}`.", f"return {expression}")
        for op, expression in {
            "add": "a + b",
            "mul": "a * b",
            "min": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
            "max": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
            "and": "a & b",
            "or": "a | b",
            "xor": "a ^ b",
        }.items()
    },
}
