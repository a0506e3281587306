"""Types of jaxprs for type checkers: what JAX's own classes have that this package uses.

JAX declares abstract values without shape and dtype, and contents of constants not at all. `compat` names these classes
where types are checked, and those of JAX where programs run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from jax._src.core import ClosedJaxpr, DebugInfo, JaxprEqnContext, Primitive
    from jax._src.source_info_util import SourceInfo
    from jax.core import ShapedArray


Params: TypeAlias = "Mapping[str, Any]"
"""Parameters of an equation by name: what each holds is the primitive's own."""


class Var:
    """A variable of a jaxpr, compared by identity."""

    aval: ShapedArray
    """Its type; of a reference, that of the array that it refers to."""

    def __init__(self, aval: ShapedArray) -> None: ...


class Literal:
    """A scalar constant among the operands of an equation."""

    val: Any
    """A number of Python or NumPy, or a scalar array."""
    aval: ShapedArray

    def __init__(self, val: object, aval: ShapedArray) -> None: ...


Atom: TypeAlias = Var | Literal


class JaxprEqn:
    """An equation of a jaxpr."""

    invars: list[Atom]
    outvars: list[Var]
    primitive: Primitive
    params: dict[str, Any]
    effects: AbstractSet[object]
    source_info: SourceInfo
    ctx: JaxprEqnContext

    def replace(
        self,
        *,
        invars: Sequence[Atom] = ...,
        outvars: Sequence[Var] = ...,
        primitive: Primitive = ...,
        params: Params = ...,
        effects: AbstractSet[object] = ...,
        source_info: SourceInfo = ...,
        ctx: JaxprEqnContext = ...,
    ) -> JaxprEqn:
        """Returns the equation with other parts."""
        ...


class Jaxpr:
    """An open jaxpr; from jax 0.12 on its constants, too."""

    constvars: list[Var]
    invars: list[Var]
    outvars: list[Atom]
    eqns: list[JaxprEqn]
    effects: AbstractSet[object]
    debug_info: DebugInfo

    def __init__(
        self,
        constvars: Sequence[Var],
        invars: Sequence[Var],
        outvars: Sequence[Atom],
        eqns: Sequence[JaxprEqn],
        effects: AbstractSet[object] = ...,
        debug_info: DebugInfo = ...,
    ) -> None: ...

    def replace(
        self,
        *,
        constvars: Sequence[Var] = ...,
        invars: Sequence[Var] = ...,
        outvars: Sequence[Atom] = ...,
        eqns: Sequence[JaxprEqn] = ...,
        effects: AbstractSet[object] = ...,
        debug_info: DebugInfo = ...,
    ) -> Jaxpr:
        """Returns the jaxpr with other parts."""
        ...


class Shaped(Protocol):
    """A shape and a dtype, of NumPy or an extended one of JAX: arrays have both, and abstract values of arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        ...

    @property
    def dtype(self) -> Any:
        """Type of an element."""
        ...


AnyJaxpr: TypeAlias = "Jaxpr | ClosedJaxpr"
"""A jaxpr that holds its constants, as `jax.make_jaxpr` gives it, or that does not."""
