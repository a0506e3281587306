"""Types of the graph: scalars and references to memory.

A graph value is always a *scalar* (`ScalarType`) or a *reference* (`RefType`) to a dense, row-major array.
Shapes are static: a function is traced once per set of shapes, as under `jax.jit`.
"""

from __future__ import annotations

import enum
from math import prod

import ml_dtypes
import numpy as np

from qdtrace.frozen import frozen


class Kind(enum.Enum):
    """Family of a dtype; rules are usually written per family."""

    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"

    __hash__ = object.__hash__  # of the member itself: that of `enum` is a function of Python


class DType(enum.Enum):
    """Element types. The value is the short name used in printed graphs."""

    bool = "bool"
    i8 = "i8"
    i16 = "i16"
    i32 = "i32"
    i64 = "i64"
    u8 = "u8"
    u16 = "u16"
    u32 = "u32"
    u64 = "u64"
    f16 = "f16"
    bf16 = "bf16"
    f32 = "f32"
    f64 = "f64"

    __hash__ = object.__hash__

    @property
    def kind(self) -> Kind:
        """Family of this dtype."""
        return _KINDS[self]

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype (bf16 comes from ml_dtypes)."""
        return _NUMPY[self]

    @property
    def bits(self) -> int:
        """Width of the value in bits; 1 for bool."""
        return 1 if self is DType.bool else self.itemsize * 8

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return _NUMPY[self].itemsize

    @property
    def is_float(self) -> bool:
        """True for f16, bf16, f32, f64."""
        return _KINDS[self] is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return _KINDS[self] in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_signed(self) -> bool:
        """True for signed integers."""
        return _KINDS[self] is Kind.SIGNED

    @staticmethod
    def of(dtype: object) -> DType:
        """Returns the graph dtype of a NumPy or JAX dtype; raises KeyError if there is none."""
        return _FROM_NUMPY[np.dtype(dtype)]  # type: ignore[call-overload]


def _kind_of(dtype: DType) -> Kind:
    match dtype.value[0], dtype.value:
        case _, "bool":
            return Kind.BOOL
        case "i", _:
            return Kind.SIGNED
        case "u", _:
            return Kind.UNSIGNED
        case _:
            return Kind.FLOAT


_NAMES = {
    "bool": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_KINDS = {d: _kind_of(d) for d in DType}
_NUMPY = {d: np.dtype(_NAMES[d.value]) for d in DType}
_FROM_NUMPY = {n: d for d, n in _NUMPY.items()}


class Space(enum.Enum):
    """The memory space that a reference points into."""

    GLOBAL = "global"
    """A buffer shared by all iterations of all tasks."""
    LOCAL = "local"
    """Memory private to one iteration (thread): a cell (rank 0) or a private array."""


@frozen(slots=True)
class ScalarType:
    """A scalar value."""

    dtype: DType

    def __str__(self) -> str:
        return self.dtype.value


@frozen(slots=True)
class RefType:
    """A reference to a dense row-major array of a static shape."""

    dtype: DType
    shape: tuple[int, ...]
    space: Space = Space.GLOBAL

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        head = "ref" if self.space is Space.GLOBAL else "cell"
        dims = "," + "x".join(map(str, self.shape)) if self.shape else ""
        return f"{head}[{self.dtype.value}{dims}]"


Type = ScalarType | RefType


@frozen(slots=True)
class BlockType:
    """Types of the parameters and the results of a block."""

    params: tuple[Type, ...]
    results: tuple[Type, ...]


SCALARS = {d: ScalarType(d) for d in DType}
"""The scalar type of each dtype: types that are one object compare sooner."""
BOOL = SCALARS[DType.bool]
I32 = SCALARS[DType.i32]
