"""Names outside of itself that a piece of code can reach: globals, attributes of modules, what it imports."""

from __future__ import annotations

import functools
import opcode
import re
import sys
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def _codes(*names: str) -> bytes:
    numbers = [opcode.opmap.get(name, 256) for name in names]
    return bytes(number for number in numbers if number < 256)  # those that do not run have larger ones


_PAIRS = _codes("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST")
"""Instructions of two local variables, four bits each, of which the second is loaded last."""
_LOCALS = _PAIRS + _codes("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLASSDEREF")
_GLOBALS = _codes("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL")
_ATTRIBUTES = _codes("LOAD_ATTR", "LOAD_METHOD")
_STORES = _codes("STORE_ATTR", "DELETE_ATTR")
_IMPORTS = _codes("IMPORT_NAME", "IMPORT_FROM")
_BETWEEN = _codes("CACHE", "EXTENDED_ARG", "COPY", "PUSH_NULL")
"""Instructions that leave a dotted name what it is: `COPY` in `a.b += 1`."""
_SHIFTED = _codes("LOAD_GLOBAL", "LOAD_ATTR" if sys.version_info >= (3, 12) else "")
"""Instructions whose lowest bit says something else than the name."""

_NAMING = re.compile(
    b"(?:[%(roots)b]|[%(locals)b](?=[%(between)b]*[%(ends)b]))(?:[%(between)b]*[%(ends)b])*|[%(stores)b]"
    % {
        b"roots": re.escape(_GLOBALS + _IMPORTS),
        b"locals": re.escape(_LOCALS),
        b"between": re.escape(_BETWEEN),
        b"ends": re.escape(_ATTRIBUTES + _STORES),
        b"stores": re.escape(_STORES),
    }
)
"""Instructions of a dotted name, which is read or set, one byte each."""

Chain = tuple[str, ...]
"""A dotted name in parts: `np.random.normal` as ("np", "random", "normal")."""


class Named(NamedTuple):
    """Names that code reads or sets."""

    variables: tuple[str, ...]
    """Globals."""
    chains: tuple[Chain, ...]
    stored: frozenset[str]
    """Attributes that are set."""
    modules: tuple[str, ...]
    """Modules that are imported."""


@functools.lru_cache(maxsize=8192)
def named_by(code: CodeType) -> Named:
    """Returns the names of the code and of the functions inside of it."""
    variables: dict[str, None] = {}
    modules: dict[str, None] = {}
    stored: set[str] = set()
    chains: dict[Chain, None] = {}
    text = code.co_code
    imported = ""
    for found in _NAMING.finditer(text[::2]):
        chain: Chain = ()
        for place in range(*found.span()):
            op = text[2 * place]
            if op in _BETWEEN:
                continue
            name = _name(code, text, place)
            if op in _STORES:
                stored.add(name)
            elif op in _GLOBALS:
                variables[name] = None
            elif op in _IMPORTS:
                imported, name = (name, "") if op == _IMPORTS[0] else (imported, name)
                modules[imported] = None
                chain = (imported,)
            chain = (*chain, name) if name else chain
        if len(chain) > 1 or text[2 * found.start()] in _IMPORTS:
            chains[chain] = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = named_by(constant)
            stored |= inner.stored
            variables.update(dict.fromkeys(inner.variables))
            chains.update(dict.fromkeys(inner.chains))
            modules.update(dict.fromkeys(inner.modules))
    return Named(tuple(variables), tuple(chains), frozenset(stored), tuple(modules))


def _name(code: CodeType, text: bytes, place: int) -> str:
    """Returns the name that an instruction reads or sets."""
    op, number, shift, prefix = text[2 * place], text[2 * place + 1], 8, place - 1
    while prefix >= 0 and text[2 * prefix] == opcode.EXTENDED_ARG:
        number |= text[2 * prefix + 1] << shift
        prefix, shift = prefix - 1, shift + 8
    if op in _LOCALS:
        number = number & 15 if op in _PAIRS else number
        inner = (name for name in code.co_cellvars if name not in code.co_varnames)
        return (*code.co_varnames, *inner, *code.co_freevars)[number]
    return code.co_names[number >> (op in _SHIFTED)]


def module_attributes(
    chains: tuple[Chain, ...], variables: Mapping[str, object], space: Mapping[str, object]
) -> Iterator[tuple[ModuleType, str, str]]:
    """Yields (module, attribute, dotted path) for every attribute of a module that the code names.

    `variables` are local, `space` the globals.
    """
    for root, *attributes in chains:
        value = variables.get(root, space.get(root))
        if value is None:
            value = sys.modules.get(root)
        path = root
        for attribute in attributes:
            if not isinstance(value, ModuleType):
                break
            path = f"{path}.{attribute}"
            yield value, attribute, path
            value = vars(value).get(attribute)
