"""Words and literals of the text form, which printer and parser share."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, cast

import numpy as np

from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Literal
from qdtrace.ir.types import SCALARS, DType

if TYPE_CHECKING:
    from collections.abc import Sequence

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEYWORDS = frozenset({
    "program", "buffer", "range_for", "serial", "head", "return", "in", "carry", "test", "yield", "else",
    "true", "false", "none", "nan", "inf", "ref", "cell",
})  # fmt: skip
RESERVED = KEYWORDS | PRIMITIVES.keys() | {d.value for d in DType}
"""Words that cannot be names of variables."""
DTYPES = {d.value: d for d in DType}
_QUIET_NAN = {d: np.array(np.nan).astype(d.numpy).tobytes() for d in DType if d.is_float}


def literal_text(literal: Literal) -> str:
    """Returns a literal's text, exact to the bit: `1:i32`, `-0.0:f32`, `nan:f64`, `nan(0xffc00000):f32`, `true`."""
    dtype = literal.type.dtype
    value = literal.value
    if dtype is DType.bool:
        return "true" if value else "false"
    if not dtype.is_float:
        return f"{value}:{dtype.value}"
    if value != value:
        bits = value.tobytes()
        if bits == _QUIET_NAN[dtype]:
            return f"nan:{dtype.value}"
        return f"nan(0x{int.from_bytes(bits, 'little'):x}):{dtype.value}"
    text = str(value)  # the shortest decimal of the type; read back as a double, which then rounds a second time
    if dtype.numpy.type(float(text)) != value:
        text = repr(float(value))
    return f"{text}:{dtype.value}"


def literal_value(number: str, dtype: DType) -> Literal:
    """Returns the literal of `number:dtype`; raises ValueError if the dtype has no such value."""
    make = dtype.numpy.type
    if dtype.is_float:
        if number.startswith("nan("):
            bits = int(number[4:-1], 16)
            try:
                value = np.frombuffer(bits.to_bytes(dtype.itemsize, "little"), dtype.numpy)[0]
            except OverflowError:
                value = make(0)
            if value == value:
                raise ValueError(f"{number} is no NaN of {dtype.value}")
            return Literal(value, SCALARS[dtype])
        with np.errstate(over="ignore"):
            value = np.array(float(number)).astype(dtype.numpy)[()]
        if np.isinf(value) and "inf" not in number:
            raise ValueError(f"{number} is out of range for {dtype.value}")
        return Literal(value, SCALARS[dtype])
    if dtype is DType.bool:
        raise ValueError("a bool is written true or false")
    integer = int(number)
    info = np.iinfo(make)
    if not info.min <= integer <= info.max:
        raise ValueError(f"{number} is out of range for {dtype.value}")
    return Literal(make(integer), SCALARS[dtype])


def word_text(word: str) -> str:
    """Returns a name of a program or task as text: bare if it is a word, else quoted."""
    return word if WORD.fullmatch(word) and word not in KEYWORDS else json.dumps(word)


def value_text(value: object) -> str:
    """Returns a parameter or hint as text."""
    match value:
        case DType():
            return value.value
        case bool() | np.bool_():
            return "true" if value else "false"
        case None:
            return "none"
        case int() | np.integer():
            return str(int(value))
        case float() | np.floating():
            return repr(float(value))
        case str():
            return word_text(value)
        case tuple() | list():
            return "(" + ",".join(map(value_text, cast("Sequence[object]", value))) + ")"
        case _:
            return json.dumps(str(value))


@cache
def clean_hint(hint: str) -> str:
    """Returns the hint as a word that is not reserved; empty if no character of it remains."""
    word = re.sub(r"[^A-Za-z0-9_]", "_", hint).strip("_") if not WORD.fullmatch(hint) else hint
    if word and word[0].isdigit():
        word = "_" + word
    return word + "_" if word in RESERVED else word
