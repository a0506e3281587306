"""Builds blocks equation by equation, applying the typing rules."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qdtrace.ir.primitives import Primitive, primitive
from qdtrace.ir.program import Atom, Block, Eqn, Var, literal
from qdtrace.ir.type_rules import IrTypeError
from qdtrace.ir.types import DType, RefType, ScalarType, Type

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from qdtrace.errors import Loc


class BlockBuilder:
    """An open block: a list of equations that grows."""

    def __init__(self, params: Sequence[Var] = ()) -> None:
        self.params = tuple(params)
        self.eqns: list[Eqn] = []

    def close(self, results: Sequence[Atom] = ()) -> Block:
        """The finished block."""
        return Block(self.params, tuple(self.eqns), tuple(results))


class Builder:
    """Appends equations to the innermost open block.

    `loc` is attached to every equation emitted while it is set.
    """

    def __init__(self) -> None:
        self.stack: list[BlockBuilder] = [BlockBuilder()]
        self.loc: Loc | None = None

    @property
    def current(self) -> BlockBuilder:
        """The innermost open block."""
        return self.stack[-1]

    def append(self, eqn: Eqn) -> None:
        """Appends an equation that is made already."""
        self.stack[-1].eqns.append(eqn)

    @contextmanager
    def block(self, params: Sequence[Var] = ()) -> Generator[BlockBuilder]:
        """Opens a block; equations emitted inside go to it. Close it with `.close(results)`."""
        opened = BlockBuilder(params)
        self.stack.append(opened)
        try:
            yield opened
        finally:
            self.stack.pop()

    def emit(
        self, prim: Primitive | str, *invars: Atom, blocks: Sequence[Block] = (), hint: str = "", **params: Any
    ) -> tuple[Var, ...]:
        """Appends one equation and returns its results. Raises IrTypeError when the typing rule is broken."""
        prim = primitive(prim) if isinstance(prim, str) else prim
        outvars = tuple(Var(t, hint) for t in result_types(prim, invars, params, blocks))
        self.append(Eqn(prim, tuple(invars), outvars, params, tuple(blocks), self.loc))
        return outvars

    def __call__(self, prim: Primitive | str, *invars: Atom, hint: str = "", **params: Any) -> Var:
        """Appends an equation of one result and returns it."""
        (out,) = self.emit(prim, *invars, hint=hint, **params)
        return out

    def op(self, name: str, *operands: Atom, **params: Any) -> Atom:
        """The value of a pure operation. A builder that knows more gives a constant, or a value that is there."""
        return self(name, *operands, **params)

    def load(self, ref: Var, *indices: Atom, hint: str = "") -> Var:
        """Reads one element."""
        return self("load", ref, *indices, hint=hint)

    def store(self, ref: Var, value: Atom, *indices: Atom) -> None:
        """Writes one element."""
        self.emit("store", ref, value, *indices)

    def accum(self, ref: Var, value: Atom, *indices: Atom, op: str = "add") -> None:
        """Accumulates into one element."""
        self.emit("accum", ref, value, *indices, op=op)

    def convert(self, value: Atom, dtype: DType) -> Atom:
        """The value in another dtype; itself when it has it already."""
        return value if value.dtype is dtype else self("convert", value, dtype=dtype)

    def cell(self, dtype: DType, shape: Sequence[int] = (), hint: str = "") -> Var:
        """Private memory of the thread, undefined until stored."""
        return self("cell", dtype=dtype, shape=tuple(shape), hint=hint)

    def constant(self, value: object, dtype: DType) -> Atom:
        """A literal."""
        return literal(value, dtype)


def result_types(
    prim: Primitive, invars: Sequence[Atom], params: dict[str, Any], blocks: Sequence[Block] = ()
) -> tuple[Type, ...]:
    """Types of the results by the typing rule; the message of an IrTypeError names the primitive."""
    try:
        return prim.type_rule([v.type for v in invars], params, [b.type for b in blocks])
    except IrTypeError as e:
        raise IrTypeError(f"`{prim.name}` {e}") from None


def scalar_var(dtype: DType, hint: str = "") -> Var:
    """A fresh scalar variable (a loop index or a carry)."""
    return Var(ScalarType(dtype), hint)


def ref_var(dtype: DType, shape: Sequence[int], hint: str = "") -> Var:
    """A fresh buffer variable."""
    return Var(RefType(dtype, tuple(shape)), hint)


def unravel(builder: Builder, index: Atom, shape: Sequence[int]) -> list[Atom]:
    """Indices of each axis from a flat row-major index."""
    if not shape:
        return []
    out: list[Atom] = []
    rest = index
    for extent in reversed(shape[1:]):
        size = literal(max(extent, 1), index.dtype)
        out.append(builder("rem", rest, size))
        rest = builder("div", rest, size)
    return [rest, *reversed(out)]
