"""Emission of scalar equations by the exact rules of `qdtrace/rules`, with source lines and blocks that share."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from qdtrace.ir.builder import BlockBuilder
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.program import Atom, Literal, literal, number
from qdtrace.ir.types import DType
from qdtrace.rules.emitter import Emitter
from qdtrace.rules.families import AT_ONCE
from qdtrace.rules.folding import fold_exact
from qdtrace.rules.match import FALSE, TRUE

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from qdtrace.errors import Loc
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.primitives import Primitive
    from qdtrace.ir.program import Block, Var
    from qdtrace.trace.compat import JaxprEqn

__all__ = ["FALSE", "TRUE", "ScalarOps", "constant", "integer"]


@lru_cache(maxsize=1 << 12)
def integer(value: int, dtype: DType = DType.i32) -> Literal:
    """Returns an integer constant; the same object for equal values."""
    return literal(value, dtype)


def constant(value: Any) -> Literal:
    """Returns a constant; the same object for equal bits."""
    return number(value, DType.of(value.dtype))


class ScalarOps(Emitter):
    """Emits scalar equations into the innermost open block of a builder."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(AT_ONCE, fold_exact, share=True)
        self.stack = builder.stack
        self.loc = builder.loc
        self._scopes = 1
        self.loaded: dict[Atom, tuple[Var, tuple[int, ...]]] = {}
        """Elements at constant places of memory that nothing writes, and these places."""
        self.unlocated: JaxprEqn | None = None
        """The equation whose source line `loc` is to be, while that is not looked up."""

    def here(self) -> Loc | None:
        """Returns the source line of what is imported."""
        self.locate()
        return self.loc

    def choose(self, condition: Atom, on_true: Any, on_false: Any) -> Any:
        """Applies `select` to elements, which may be pairs."""
        if type(on_true) is tuple:
            return tuple(self.choose(condition, a, b) for a, b in zip(on_true, on_false, strict=True))
        return self.op("select", condition, on_true, on_false)

    # ------------------------------------------------------------------ effects and blocks
    def emit(
        self, prim: Primitive | str, *invars: Atom, blocks: Sequence[Block] = (), hint: str = "", **params: Any
    ) -> tuple[Var, ...]:
        """Appends an equation that is not shared."""
        self.locate()
        return super().emit(prim, *invars, blocks=blocks, hint=hint, **params)

    @contextmanager
    def block(self, params: Sequence[Var] = ()) -> Generator[BlockBuilder]:
        """Opens a block; equal equations of the enclosing blocks are shared inside."""
        with self.continued(BlockBuilder(params)) as opened:
            yield opened

    @contextmanager
    def continued(self, opened: BlockBuilder) -> Generator[BlockBuilder]:
        """Appends to a block that was left."""
        self.stack.append(opened)
        self._scopes += 1
        try:
            with self.scope():
                yield opened
        finally:
            self._scopes -= 1
            self.stack.pop()

    def load_shared(self, ref: Var, indices: Sequence[Atom]) -> Atom:
        """Loads from memory that nothing writes; the load is shared like a pure equation."""
        key = self.key(LOAD, (ref, *indices), {})
        found = self.shared(key)
        if found is None:
            (found,) = self.emit("load", ref, *indices)
            self.share(key, found)
            if all(type(k) is Literal for k in indices):
                self.loaded[found] = ref, tuple(int(k.value) for k in indices)  # type: ignore[union-attr]
        return found
