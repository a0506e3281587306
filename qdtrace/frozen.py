"""`frozen`: classes as `dataclass(frozen=True)` makes them, in a fifth of its time.

A first call loads a hundred such classes. The standard decorator compiles six functions for each, which was a fifth of
a first call. Here `__init__` is compiled, equality and hash once they are asked for, and the others are closures.
"""

from __future__ import annotations

import reprlib
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from dataclasses import Field

T = TypeVar("T")


@overload
def frozen(kind: type[T], /) -> type[T]: ...
@overload
def frozen(*, eq: bool = True, slots: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: Any = None, /, *, eq: bool = True, slots: bool = False) -> Any:
    """Returns a class as a dataclass whose fields are not assigned after `__init__`.

    `dataclasses.fields`, `replace` and `asdict` take it. `eq` and `slots` are those of `dataclass`; fields are by
    position. Raises TypeError where a field is by keyword.
    """
    return _made(kind, eq, slots) if kind is not None else lambda kind: _made(kind, eq, slots)


def _made(kind: Any, eq: bool, slots: bool) -> Any:
    made: Any = dataclass(init=False, repr=False, eq=False, slots=slots)(kind)
    every = fields(made)
    methods = {"__init__": _init(made, every, slots), "__repr__": _repr([f.name for f in every if f.repr])}
    if eq:
        compared = [f.name for f in every if f.compare]
        methods |= _equality(made, compared, [f.name for f in every if (f.compare if f.hash is None else f.hash)])
    names = {f.name for f in every}
    methods |= {method: _refusal(made, names, method) for method in ("__setattr__", "__delattr__")}
    if slots:  # pickle would assign fields
        methods |= _states([f.name for f in every])
    own = vars(made)
    for name, method in methods.items():
        if own.get(name) is None:  # a class with `__eq__` has None as its `__hash__`
            setattr(made, name, method)
    return made


def _init(kind: Any, every: Sequence[Field[Any]], slots: bool) -> Callable[..., None]:
    """Returns the method that is compiled as the class is made."""
    given: list[str] = []
    body: list[str] = []
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    for f in every:
        name, default, makes = f.name, f"_default_{f.name}", f.default_factory is not MISSING
        if f.kw_only:
            raise TypeError(f"{kind.__name__}.{name} is by keyword")
        names[default] = f.default_factory if makes else f.default
        if f.init:
            given.append(name if f.default is MISSING and not makes else f"{name}={'_missing' if makes else default}")
            value = f"{default}() if {name} is _missing else {name}" if makes else name
        elif makes or (slots and f.default is not MISSING):
            value = f"{default}()" if makes else default
        else:
            continue  # the class has its default, or something else sets it
        body.append(f" _set(self,{name!r},{value})")
    if hasattr(kind, "__post_init__"):
        body.append(" self.__post_init__()")
    return _compiled(kind, f"def __init__(self,{','.join(given)}):\n" + ("\n".join(body) or " pass"), names)


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    @reprlib.recursive_repr()
    def shown(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return shown


def _equality(kind: Any, compared: Sequence[str], hashed: Sequence[str]) -> dict[str, Any]:
    same = f"{_tuple('self', compared)} == {_tuple('other', compared)}"
    equal = f"{same} if other.__class__ is self.__class__ else NotImplemented"
    key = f"hash({_tuple('self', hashed)})"
    return {
        "__eq__": _later(kind, "__eq__(self, other)", equal),
        "__hash__": _later(kind, "__hash__(self)", key),
    }


def _tuple(of: str, names: Sequence[str]) -> str:
    return f"({''.join(f'{of}.{name},' for name in names)})"


def _later(kind: Any, head: str, value: str) -> Callable[..., Any]:
    """Returns a method that is compiled when it is called first."""

    def first(*args: Any) -> Any:
        method = _compiled(kind, f"def {head}: return {value}", {})
        setattr(kind, method.__name__, method)
        return method(*args)

    return first


def _compiled(kind: Any, text: str, names: dict[str, Any]) -> Any:
    known = {*names}
    exec(text, names)
    (name,) = names.keys() - known - {"__builtins__"}
    names[name].__qualname__ = f"{kind.__qualname__}.{name}"
    return names[name]


def _refusal(kind: Any, names: set[str], method: str) -> Callable[..., None]:
    """Returns the method that sets or deletes an attribute: of a subclass only those that are no fields."""

    def refuse(self: Any, name: str, *value: object) -> None:
        if type(self) is kind or name in names:
            raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
        getattr(super(kind, self), method)(name, *value)

    return refuse


def _states(names: Sequence[str]) -> dict[str, Any]:
    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def restore(self: Any, values: Sequence[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": state, "__setstate__": restore}
