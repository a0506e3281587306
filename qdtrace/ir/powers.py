"""Whole powers as products."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def power(x: T, exponent: int, multiply: Callable[[T, T], T]) -> T | None:
    """Returns `x` to a power by the binary method, lowest bit first, or None for the power 0.

    The order of the products is the meaning of `integer_pow`: whoever computes one has the same bits.
    """
    result, square = None, x
    while exponent:
        if exponent & 1:
            result = square if result is None else multiply(result, square)
        exponent >>= 1
        if exponent:
            square = multiply(square, square)
    return result
