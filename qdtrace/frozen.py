"""`frozen` and `mutable`: classes as `dataclass` makes them, in a fifth of its time.

A first call loads more than two hundred such classes. The standard decorator compiles up to six functions for each,
which was a fifth of a first call. Here `__init__` is compiled once for all classes whose fields are of the same kinds,
equality and hash once they are asked for, and the others are closures.
"""

from __future__ import annotations

import reprlib
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import cache
from types import CodeType, FunctionType
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
    return _made(kind, eq, slots, True) if kind is not None else lambda kind: _made(kind, eq, slots, True)


@overload
def mutable(kind: type[T], /) -> type[T]: ...
@overload
def mutable(*, eq: bool = True, slots: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(field,))
def mutable(kind: Any = None, /, *, eq: bool = True, slots: bool = False) -> Any:
    """Returns a class as a dataclass whose fields may be assigned; else like `frozen`."""
    return _made(kind, eq, slots, False) if kind is not None else lambda kind: _made(kind, eq, slots, False)


def _made(kind: Any, eq: bool, slots: bool, is_frozen: bool) -> Any:
    made: Any = dataclass(init=False, repr=False, eq=False, slots=slots)(kind)
    every = fields(made)
    methods: dict[str, Any] = {"__init__": _init(made, every, slots, is_frozen)}
    methods["__repr__"] = _repr([f.name for f in every if f.repr])
    if eq:
        compared = [f.name for f in every if f.compare]
        hashed = [f.name for f in every if (f.compare if f.hash is None else f.hash)]
        methods |= _equality(made, compared, hashed if is_frozen else None)
    if is_frozen:
        names = {f.name for f in every}
        methods |= {method: _refusal(made, names, method) for method in ("__setattr__", "__delattr__")}
    if slots and is_frozen:  # pickle would assign fields
        methods |= _states()
    own = vars(made)
    for name, method in methods.items():
        if own.get(name) is None:  # a class with `__eq__` has None as its `__hash__`
            setattr(made, name, method)
    return made


def _init(kind: Any, every: Sequence[Field[Any]], slots: bool, is_frozen: bool) -> Callable[..., None]:
    """Returns the method: the code of all classes with such fields, with the names of these and their defaults."""
    values: list[str] = []
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    called: list[str] = []
    given: list[str] = []
    defaults: list[Any] = []
    for f in every:
        makes, k = f.default_factory is not MISSING, len(called)
        if f.kw_only:
            raise TypeError(f"{kind.__name__}.{f.name} is by keyword")
        if f.init:
            values.append(f"_default{k}() if _{k} is _missing else _{k}" if makes else f"_{k}")
            given.append(f"_{k}")
            if makes or f.default is not MISSING:
                defaults.append(MISSING if makes else f.default)
            elif defaults:
                raise TypeError(f"non-default argument {f.name!r} follows default argument")
        elif makes or (slots and f.default is not MISSING):
            values.append(f"_default{k}()" if makes else f"_default{k}")
        else:
            continue  # the class has its default, or something else sets it
        called.append(f.name)
        names[f"_default{k}"] = f.default_factory if makes else f.default
    if not is_frozen:
        sets = "self._{0}={1}"
    elif slots:  # what a slot itself sets costs half
        sets = "_set{0}(self,{1})"
        names |= {f"_set{k}": getattr(kind, name).__set__ for k, name in enumerate(called)}
    else:
        sets = "_set(self,'_{0}',{1})"
    code = _init_code(tuple(given), tuple(values), sets, hasattr(kind, "__post_init__"))
    own = {f"_{k}": name for k, name in enumerate(called)}

    def named(used: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([own.get(name, name) for name in used])

    code = code.replace(
        co_varnames=named(code.co_varnames), co_consts=named(code.co_consts), co_names=named(code.co_names)
    )
    made = FunctionType(code, names, "__init__", tuple(defaults))
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    return made


@cache
def _init_code(given: tuple[str, ...], values: tuple[str, ...], sets: str, has_post_init: bool) -> CodeType:
    """Returns the code of `__init__` for values of fields `_0`, `_1`, ..., of which some are parameters."""
    body = [f" {sets.format(k, value)}" for k, value in enumerate(values)]
    if has_post_init:
        body.append(" self.__post_init__()")
    return _compiled(f"def __init__(self,{','.join(given)}):\n" + ("\n".join(body) or " pass")).__code__


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    @reprlib.recursive_repr()
    def shown(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return shown


def _equality(kind: Any, compared: Sequence[str], hashed: Sequence[str] | None) -> dict[str, Any]:
    """Returns the methods; without `hashed` objects have no hash."""
    same = f"{_tuple('self', compared)} == {_tuple('other', compared)}"
    equal = f"{same} if other.__class__ is self.__class__ else NotImplemented"
    key = None if hashed is None else _later(kind, "__hash__(self)", f"hash({_tuple('self', hashed)})")
    return {"__eq__": _later(kind, "__eq__(self, other)", equal), "__hash__": key}


def _tuple(of: str, names: Sequence[str]) -> str:
    return f"({''.join(f'{of}.{name},' for name in names)})"


def _later(kind: Any, head: str, value: str) -> Callable[..., Any]:
    """Returns a method that is compiled when it is called first."""

    def first(*args: Any) -> Any:
        method = _compiled(f"def {head}: return {value}")
        method.__qualname__ = f"{kind.__qualname__}.{method.__name__}"
        setattr(kind, method.__name__, method)
        return method(*args)

    return first


def _compiled(text: str) -> FunctionType:
    names: dict[str, Any] = {}
    exec(text, names)
    return names.popitem()[1]


def _refusal(kind: Any, names: set[str], method: str) -> Callable[..., None]:
    """Returns the method that sets or deletes an attribute: of a subclass only those that are no fields."""

    def refuse(self: Any, name: str, *value: object) -> None:
        if type(self) is kind or name in names:
            raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
        getattr(super(kind, self), method)(name, *value)

    return refuse


def _states() -> dict[str, Any]:
    def state(self: Any) -> list[Any]:
        return [getattr(self, f.name) for f in fields(self)]  # those of a subclass, too

    def restore(self: Any, values: Sequence[Any]) -> None:
        for f, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, f.name, value)

    return {"__getstate__": state, "__setstate__": restore}
