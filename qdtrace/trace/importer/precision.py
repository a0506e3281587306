"""`reduce_precision`: rounding to another format of floats and back, on the bits as XLA does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType
from qdtrace.trace.importer.elements import length_of, per_element
from qdtrace.trace.importer.registry import rule, traced_rule
from qdtrace.trace.importer.transposed_rules import TransposedRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value


@rule("reduce_precision")
def reduce_precision(imp: Importer, eqn: JaxprEqn, x: Value, *, exponent_bits: int, mantissa_bits: int) -> Value:
    """Rounds to a format of floats and back; its adjoints are rounded alike, as JAX's are."""
    aval = eqn.outvars[0].aval
    dtype, info = imp.dtype_of(aval), jnp.finfo(aval.dtype)
    if exponent_bits >= info.nexp and mantissa_bits >= info.nmant:
        return x
    if dtype is DType.f32 and (exponent_bits, mantissa_bits) == (8, 7):
        return per_element(imp, lambda a: imp.convert(imp.convert(a, DType.bf16), dtype), aval, x)
    scalar = jax.ShapeDtypeStruct((), aval.dtype)
    closed = traced_rule(_on_bits, [scalar], {"exponent_bits": exponent_bits, "mantissa_bits": mantissa_bits})

    def adjoint(_: Sequence[int], operands: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> list[jax.Array]:
        return [lax.reduce_precision(cotangents[0], exponent_bits, mantissa_bits)]

    tie = TransposedRule("reduce_precision", [scalar], [scalar], adjoint, imp)

    def one(a: Atom) -> Atom:
        value = imp.call_on_scalars(closed, [a])[0]
        return value if isinstance(a, Literal) else imp("custom", value, a, rule=tie, result=0)

    return per_element(imp, one, aval, x, length=length_of(closed))


def _on_bits(x: jax.Array, exponent_bits: int, mantissa_bits: int) -> jax.Array:
    """Returns x rounded to even; what the format's exponents do not reach becomes infinite, or zero of the same sign.

    So do numbers below the smallest normal one.
    """
    info = jnp.finfo(x.dtype)
    unsigned = np.dtype(f"u{info.bits // 8}").type
    bits = lax.bitcast_convert_type(x, unsigned)
    fewer = info.nmant - mantissa_bits
    if fewer > 0:
        last = (bits >> unsigned(fewer)) & unsigned(1)
        bits = (bits + (last + unsigned((1 << fewer - 1) - 1))) & unsigned((1 << info.bits) - (1 << fewer))
    if exponent_bits < info.nexp:
        all_ones = ((1 << info.nexp) - 1) << info.nmant
        bias, largest = (1 << info.nexp - 1) - 1, (1 << exponent_bits - 1) - 1
        exponent, sign = bits & unsigned(all_ones), bits & unsigned(1 << info.bits - 1)
        bits = jnp.where(exponent > unsigned(bias + largest << info.nmant), sign | unsigned(all_ones), bits)
        bits = jnp.where(exponent <= unsigned(bias - largest << info.nmant), sign, bits)
    rounded = lax.bitcast_convert_type(bits, x.dtype)
    return jnp.where(x == x, rounded, x)
