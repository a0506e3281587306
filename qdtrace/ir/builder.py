"""Builds blocks equation by equation, applying the typing rules."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from qdtrace.ir.primitives import Primitive, primitive
from qdtrace.ir.program import Atom, Block, Eqn, Var, literal
from qdtrace.ir.type_rules import IrTypeError
from qdtrace.ir.types import SCALARS, DType, RefType, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from qdtrace.errors import Loc


class BlockBuilder:
    """An open block: a list of equations that grows."""

    def __init__(self, params: Sequence[Var] = ()) -> None:
        self.params = tuple(params)
        self.eqns: list[Eqn] = []

    def close(self, results: Sequence[Atom] = ()) -> Block:
        """Returns the finished block."""
        return Block(self.params, tuple(self.eqns), tuple(results))


class Opens(Protocol):
    """Protocol for opening blocks and emitting equations: a `Builder`, or a layer on top that shares equations."""

    def block(self, params: Sequence[Var] = ...) -> AbstractContextManager[BlockBuilder]:
        """Opens a block for the equations that are emitted inside."""
        ...

    def emit(self, name: str, /, *invars: Atom, blocks: Sequence[Block] = ..., **params: Any) -> tuple[Var, ...]:
        """Appends an equation and returns its results."""
        ...


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
        """Appends a finished equation."""
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
        """Emits a pure operation and returns its value; subclasses may return a constant or an existing value."""
        return self(name, *operands, **params)

    def load(self, ref: Var, *indices: Atom, hint: str = "") -> Var:
        """Emits the load of one element and returns its value."""
        return self("load", ref, *indices, hint=hint)

    def store(self, ref: Var, value: Atom, *indices: Atom) -> None:
        """Emits the store of one element."""
        self.emit("store", ref, value, *indices)

    def accum(self, ref: Var, value: Atom, *indices: Atom, op: str = "add") -> None:
        """Emits an accumulation into one element."""
        self.emit("accum", ref, value, *indices, op=op)

    def convert(self, value: Atom, dtype: DType) -> Atom:
        """Returns the value converted to a dtype, or the value itself if it has that dtype."""
        return value if value.dtype is dtype else self.op("convert", value, dtype=dtype)

    def cell(self, dtype: DType, shape: Sequence[int] = (), hint: str = "") -> Var:
        """Emits private memory of the thread, undefined until stored, and returns its reference."""
        return self("cell", dtype=dtype, shape=tuple(shape), hint=hint)


def result_types(
    prim: Primitive, invars: Sequence[Atom], params: Mapping[str, Any], blocks: Sequence[Block] = ()
) -> tuple[Type, ...]:
    """Returns the types of the results by the typing rule; the message of an IrTypeError names the primitive."""
    try:
        return prim.type_rule([v.type for v in invars], params, [b.type for b in blocks])
    except IrTypeError as e:
        raise IrTypeError(f"`{prim.name}` {e}") from None


def scalar_var(dtype: DType, hint: str = "") -> Var:
    """Returns a fresh scalar variable (a loop index or a carry)."""
    return Var(SCALARS[dtype], hint)


def ref_var(dtype: DType, shape: Sequence[int], hint: str = "") -> Var:
    """Returns a fresh buffer variable."""
    return Var(RefType(dtype, tuple(shape)), hint)


def emit_loop(
    builder: Opens,
    bounds: Sequence[Atom],
    carries: Sequence[Atom],
    body: Callable[[Var, list[Var]], Sequence[Atom]],
    *,
    index: str = "",
    carry: str = "",
    **params: Any,
) -> tuple[Var, ...]:
    """Emits a `for` and returns the final values of its carries.

    Args:
        builder: Emits the loop.
        bounds: Start, stop and step.
        carries: Initial values of the carries.
        body: Emits an iteration from the index and the carries, and returns the next values of the carries.
        index: Name of the index in printed graphs.
        carry: Name of the carries in printed graphs.
        params: Parameters of the `for`.
    """
    number, given = scalar_var(bounds[0].dtype, index), [Var(c.type, carry) for c in carries]
    with builder.block((number, *given)) as opened:
        results = body(number, given)
    return builder.emit("for", *bounds, *carries, blocks=(opened.close(results),), **params)


def nest(
    builder: Opens,
    shape: Sequence[int],
    body: Callable[[list[Atom]], None],
    *,
    dtype: DType = DType.i32,
    unroll: int = 1,
    index: str = "k",
) -> None:
    """Emits `body` for every index of an array in nested loops, axes of at most `unroll` elements without one."""

    def along(at: list[Atom]) -> tuple[Atom, ...]:
        axis = len(at)
        if axis == len(shape):
            body(at)
        elif shape[axis] <= unroll:
            for k in range(shape[axis]):
                along([*at, literal(k, dtype)])
        else:
            bounds = [literal(k, dtype) for k in (0, shape[axis], 1)]
            emit_loop(builder, bounds, (), lambda k, _: along([*at, k]), index=index)
        return ()

    along([])


def unravel(builder: Builder, index: Atom, shape: Sequence[int]) -> list[Atom]:
    """Emits the index of each axis from a flat row-major index and returns them."""
    if not shape:
        return []
    out: list[Atom] = []
    rest = index
    for extent in reversed(shape[1:]):
        size = literal(max(extent, 1), index.dtype)
        out.append(builder("rem", rest, size))
        rest = builder("div", rest, size)
    return [rest, *reversed(out)]
