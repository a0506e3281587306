"""Names that code looks up while it runs, found in its instructions.

Only instructions are allowed of which it is known what they do. Attributes of values are known by a list of names, as
all values are of kinds that `described` knows.
"""

from __future__ import annotations

import inspect
import opcode
import sys
import types
from typing import TYPE_CHECKING, Any

from qdtrace.compose.known_names import ATTRIBUTES, MODULES, STORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE

_INVISIBLE = "CACHE EXTENDED_ARG KW_NAMES NOP PRECALL PUSH_NULL RESUME"
"""Instructions that leave the value on top of the stack."""
_FREE = """
BEFORE_WITH BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SLICE BUILD_STRING
BUILD_TUPLE CALL CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_KW CHECK_EXC_MATCH CLEANUP_THROW COMPARE_OP CONTAINS_OP
CONVERT_VALUE COPY COPY_FREE_VARS DELETE_FAST DELETE_SUBSCR DICT_MERGE DICT_UPDATE END_FOR END_SEND FORMAT_SIMPLE
FORMAT_VALUE FORMAT_WITH_SPEC FOR_ITER GET_ITER GET_LEN GET_YIELD_FROM_ITER JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT
JUMP_FORWARD JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP LIST_APPEND LIST_EXTEND LIST_TO_TUPLE LOAD_ASSERTION_ERROR
LOAD_CLOSURE LOAD_CONST LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST MAKE_CELL MAKE_FUNCTION
MAP_ADD MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE POP_EXCEPT POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE
POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE
POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
POP_JUMP_IF_TRUE POP_TOP PREP_RERAISE_STAR PUSH_EXC_INFO RAISE_VARARGS RERAISE RETURN_CONST RETURN_GENERATOR
RETURN_VALUE SEND SET_FUNCTION_ATTRIBUTE STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_SLICE
STORE_SUBSCR SWAP TO_BOOL UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNARY_POSITIVE UNPACK_EX UNPACK_SEQUENCE
WITH_EXCEPT_START YIELD_VALUE
"""
"""Instructions whose meaning is that of their operands."""
_LOOKED_AT = "DELETE_DEREF IS_OP LOAD_ATTR LOAD_DEREF LOAD_GLOBAL LOAD_METHOD STORE_ATTR STORE_DEREF"
_ALLOWED = frozenset(opcode.opmap.get(n, -1) for n in f"{_INVISIBLE} {_FREE} {_LOOKED_AT}".split())
_SKIPPED = frozenset(opcode.opmap.get(n, -1) for n in _INVISIBLE.split())
_NAMED = f"{_LOOKED_AT} LOAD_CONST CONTAINS_OP EXTENDED_ARG CALL_INTRINSIC_1".split()
_OP = types.SimpleNamespace(**{name.lower(): opcode.opmap.get(name, -1) for name in _NAMED})
_INTRINSICS = (3, 5, 6)
"""A StopIteration that becomes an error, unary plus, a tuple of a list."""
_FORWARD = frozenset(
    number for name, number in opcode.opmap.items() if "JUMP" in name and "BACKWARD" not in name and number < 256
)
_ATTR_SHIFT = int(sys.version_info >= (3, 12))
NOTHING = object()
"""Stands for a name that has no value."""


class UnknownError(Exception):
    """Something has no description; the text says what."""


def looked_up(code: types.CodeType, names: Mapping[str, Any], around: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the globals and attributes of modules that code names, with their values.

    `names` are its globals, `around` the known variables of functions around it. Raises UnknownError for an instruction
    or an attribute of which it is not known what it does.
    """
    if code.co_flags & _ASYNC:
        raise UnknownError("async function")
    text, high = code.co_code, 0
    chain: Any = NOTHING
    """The value on top of the stack, if it was looked up just before."""
    path = ""
    targets: set[int] = set()
    """Places that code jumps to, perhaps with another value on top; jumps have at most one word behind them."""
    constant: Any = NOTHING
    """The constant that was loaded just before."""
    for at in range(0, len(text), 2):
        op, arg = text[at], text[at + 1] | high
        high = arg << 8 if op == _OP.extended_arg else 0
        if op in _SKIPPED:
            continue
        if op not in _ALLOWED or (op == _OP.call_intrinsic_1 and arg not in _INTRINSICS):
            raise UnknownError(f"instruction {opcode.opname[op]}")
        if op in (_OP.load_attr, _OP.load_method):
            name = code.co_names[arg >> _ATTR_SHIFT if op == _OP.load_attr else arg]
            path = f"{path}.{name}"
            if isinstance(chain, types.ModuleType) and at not in targets:
                chain = _attribute(chain, name)
                if not isinstance(chain, types.ModuleType):
                    yield path, chain
            else:
                if name not in ATTRIBUTES:
                    raise UnknownError(f"attribute {name}")
                chain = NOTHING
            constant = NOTHING
            continue
        if isinstance(chain, types.ModuleType):
            raise UnknownError("module as a value")
        if op in _FORWARD:
            targets |= {at + 2 * arg + 2, at + 2 * arg + 4}
        chain = NOTHING
        if isinstance(constant, frozenset) and op != _OP.contains_op:
            raise UnknownError("set")
        if op == _OP.load_global:
            path = code.co_names[arg >> 1]
            chain = _global(names, path)
            if not isinstance(chain, types.ModuleType):
                yield path, chain
        elif op == _OP.load_deref:
            path = code._varname_from_oparg(arg)  # type: ignore[attr-defined]
            value = around.get(path)
            chain = value if isinstance(value, types.ModuleType) else NOTHING
        elif op in (_OP.store_deref, _OP.delete_deref):
            if code._varname_from_oparg(arg) in around:  # type: ignore[attr-defined]
                raise UnknownError("store into a variable around the function")
        elif op == _OP.store_attr:
            if code.co_names[arg] not in STORED:
                raise UnknownError(f"store into attribute {code.co_names[arg]}")
        elif op == _OP.is_op and not (constant is None or constant is ... or type(constant) is bool):
            raise UnknownError("`is`")
        constant = code.co_consts[arg] if op == _OP.load_const else NOTHING


def _global(names: Mapping[str, Any], name: str) -> Any:
    if name in names:
        return names[name]
    module = names.get("__builtins__")
    table = vars(module) if isinstance(module, types.ModuleType) else module
    return table.get(name, NOTHING) if isinstance(table, dict) else NOTHING


def _attribute(module: types.ModuleType, name: str) -> Any:
    """Returns an attribute of a module, if looking it up runs no code of the user."""
    if type(module) is not types.ModuleType and module.__name__ not in MODULES:
        raise UnknownError(f"module {module.__name__}")
    value = vars(module).get(name, NOTHING)
    if value is NOTHING:
        raise UnknownError(f"attribute {module.__name__}.{name}")
    return value
