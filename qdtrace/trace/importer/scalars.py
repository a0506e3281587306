"""Emission of scalar equations, with constants folded, exact identities applied and equal equations shared.

Only what is exact is done here: `x + 0.0` stays (it changes -0.0), `x * 0.0` stays (NaN, inf).
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.analysis.index.ranges import Ranges
from qdtrace.interpret.numpy_rules import apply_scalar
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Atom, Eqn, Literal, Var
from qdtrace.ir.types import BOOL, DType, ScalarType

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from qdtrace.ir.builder import BlockBuilder, Builder
    from qdtrace.ir.program import Block

TYPES = {d: ScalarType(d) for d in DType}


@lru_cache(maxsize=1 << 14)
def _interned(dtype: DType, data: bytes) -> Literal:
    return Literal(np.frombuffer(data, dtype.numpy)[0], TYPES[dtype])


@lru_cache(maxsize=1 << 12)
def integer(value: int, dtype: DType = DType.i32) -> Literal:
    """Returns an integer constant; the same object for equal values."""
    return constant(np.asarray(value).astype(dtype.numpy)[()])


TRUE = _interned(DType.bool, b"\x01")
FALSE = _interned(DType.bool, b"\x00")


def constant(value: Any) -> Literal:
    """Returns a constant; the same object for equal bits."""
    return _interned(DType.of(value.dtype), value.tobytes())


def _is(atom: Atom, number: int) -> bool:
    return type(atom) is Literal and atom.value == number and (number != 0 or not _is_float(atom))


def _is_float(atom: Atom) -> bool:
    return atom.type.dtype.is_float


def _is_negative_zero(atom: Atom) -> bool:
    return type(atom) is Literal and atom.value == 0 and bool(np.signbit(atom.value))


def _same(name: str, a: Atom, b: Atom) -> Atom | None:
    """Returns the result of a binary operation that is one of its operands (or an integer constant), or None."""
    match name:
        case "add":
            if _is(b, 0) or (_is_float(b) and _is_negative_zero(b)):
                return a
            if _is(a, 0) or (_is_float(a) and _is_negative_zero(a)):
                return b
        case "sub":
            if _is(b, 0) or (_is_float(b) and type(b) is Literal and b.value == 0 and not _is_negative_zero(b)):
                return a
        case "mul":
            if _is(b, 1) or (_is(a, 0) and not _is_float(a)):
                return a
            if _is(a, 1) or (_is(b, 0) and not _is_float(b)):
                return b
        case "div":
            if _is(b, 1):
                return a
        case "and" | "or":
            if a is b:
                return a
            if a.type is BOOL or a.type == BOOL:
                keep = TRUE if name == "and" else FALSE
                for x, y in ((a, b), (b, a)):
                    if type(x) is Literal:
                        return y if x == keep else x
        case "min" | "max":
            if a is b:
                return a
        case _:
            pass
    return None


class ScalarOps:
    """Emits scalar equations into the innermost open block of a builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._scopes: list[dict[tuple[Any, ...], Any]] = [{}]
        self._made: dict[Var, Eqn] = {}
        self.ranges = Ranges(self._made.get)  # type: ignore[arg-type]
        """Ranges of the integers made here."""
        self.unlocated: Any = None
        """The equation whose source line the builder is to have, while that is not looked up."""

    def locate(self) -> None:
        """Sets the source line of what is emitted next; the importer overrides it to look lines up late."""

    def op(self, name: str, *args: Atom, **params: Any) -> Atom:
        """Returns the result of a pure scalar primitive."""
        first = args[0]
        if type(first) is Literal and all(type(a) is Literal for a in args):
            if not PRIMITIVES[name].is_function:  # libraries round these differently
                return constant(apply_scalar(name, [a.value for a in args], params))  # type: ignore[union-attr]
        elif len(args) == 2 and not params and (first is args[1] or type(first) is Literal or type(args[1]) is Literal):
            same = _same(name, *args)
            if same is not None:
                return same
        key: tuple[Any, ...] = (name, *map(id, args), *params.values())
        for scope in reversed(self._scopes):
            found = scope.get(key)
            if found is not None:
                return found
        prim = PRIMITIVES[name]
        if prim.is_predicate:
            result = BOOL
        elif "dtype" in params:
            result = TYPES[params["dtype"]]
        else:
            result = (args[1] if name == "select" else first).type
        if self.unlocated is not None:
            self.locate()
        out = Var(result)
        builder = self.builder
        eqn = self._made[out] = Eqn(prim, args, (out,), params, (), builder.loc)
        builder.stack[-1].eqns.append(eqn)
        self._scopes[-1][key] = out
        return out

    def convert(self, value: Atom, dtype: DType) -> Atom:
        """Returns the value in another dtype; itself when it has it."""
        return value if value.type.dtype is dtype else self.op("convert", value, dtype=dtype)

    def select(self, condition: Atom, on_true: Atom, on_false: Atom) -> Atom:
        """Returns `on_true` where the condition holds, else `on_false`."""
        if type(condition) is Literal:
            return on_true if condition.value else on_false
        if on_true is on_false:
            return on_true
        if on_true.type.dtype is DType.bool:
            if on_true is TRUE and on_false is FALSE:
                return condition
            if on_true is FALSE and on_false is TRUE:
                return self.op("not", condition)
        return self.op("select", condition, on_true, on_false)

    def choose(self, condition: Atom, on_true: Any, on_false: Any) -> Any:
        """Applies `select` to elements, which may be pairs."""
        if type(on_true) is tuple:
            return tuple(self.select(condition, a, b) for a, b in zip(on_true, on_false, strict=True))
        return self.select(condition, on_true, on_false)

    # ------------------------------------------------------------------ effects and blocks
    def emit(self, name: str, *args: Atom, blocks: Sequence[Block] = (), **params: Any) -> tuple[Var, ...]:
        """Appends an equation that is not shared."""
        if self.unlocated is not None:
            self.locate()
        return self.builder.emit(name, *args, blocks=blocks, **params)

    @contextmanager
    def block(self, params: Sequence[Var] = ()) -> Generator[BlockBuilder]:
        """Opens a block; equal equations of the enclosing blocks are shared inside."""
        self._scopes.append({})
        try:
            with self.builder.block(params) as opened:
                yield opened
        finally:
            self._scopes.pop()

    @contextmanager
    def continued(self, opened: BlockBuilder) -> Generator[None]:
        """Appends to a block that was left."""
        self.builder.stack.append(opened)
        self._scopes.append({})
        try:
            yield
        finally:
            self.builder.stack.pop()
            self._scopes.pop()

    def shared(self, key: tuple[Any, ...]) -> Any:
        """Returns the value kept under a key in an enclosing block; None if there is none."""
        for scope in reversed(self._scopes):
            found = scope.get(key)
            if found is not None:
                return found
        return None

    def share(self, key: tuple[Any, ...], value: Any) -> None:
        """Keeps a value for the block that is open and those inside of it."""
        self._scopes[-1][key] = value

    def load_shared(self, ref: Var, indices: Sequence[Atom]) -> Atom:
        """Loads from memory that nothing writes; the load is shared like a pure equation."""
        key = ("load", id(ref), *map(id, indices))
        found = self.shared(key)
        if found is not None:
            return found
        (out,) = self.emit("load", ref, *indices)
        self.share(key, out)
        return out
