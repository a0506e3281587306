"""Names outside of itself that a piece of code can reach: globals, attributes of modules, what it imports."""

from __future__ import annotations

import functools
import sys
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from qdtrace.trace.diagnosis.bytecode import code_map

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}

Chain = tuple[str, ...]
"""A dotted name in parts: `np.random.normal` as ("np", "random", "normal")."""


@functools.lru_cache(maxsize=2048)
def named_by(code: CodeType) -> tuple[tuple[str, ...], tuple[Chain, ...], frozenset[str]]:
    """Returns globals, dotted names, and attributes that are set, of the code and of the functions inside of it."""
    variables: dict[str, None] = {}
    stored: set[str] = set()
    chains: dict[Chain, None] = {}
    chain: Chain = ()
    imported = ""
    for instruction in code_map(code).instructions:
        name, value = instruction.opname, instruction.argval
        if name in _ATTRIBUTES and chain:
            chain = (*chain, value)
            continue
        if name == "COPY" and instruction.arg == 1:  # `a.b += 1`
            continue
        if name in ("STORE_ATTR", "DELETE_ATTR"):
            stored.add(value)
            if chain:
                chains[(*chain, value)] = None
        if len(chain) > 1:
            chains[chain] = None
        chain = (value,) if name in _LOADS else ()
        if name in _GLOBALS:
            variables[value] = None
        elif name == "IMPORT_NAME":
            imported = value
            chains[imported,] = None
        elif name == "IMPORT_FROM":
            chains[(imported, value)] = None
    if len(chain) > 1:
        chains[chain] = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_variables, inner_chains, inner_stored = named_by(constant)
            stored |= inner_stored
            variables.update(dict.fromkeys(inner_variables))
            chains.update(dict.fromkeys(inner_chains))
    return tuple(variables), tuple(chains), frozenset(stored)


def module_attributes(
    chains: tuple[Chain, ...], variables: Mapping[str, Any], space: Mapping[str, Any]
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
