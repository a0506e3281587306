"""JAX's errors about traced values, told with the user's line and the fix."""

from __future__ import annotations

import ast
import contextlib
import re
from traceback import walk_tb
from typing import TYPE_CHECKING

import jax

from qdtrace import tracebacks
from qdtrace.errors import (
    GradientError,
    QdError,
    TraceAttributeError,
    TraceIndexError,
    TraceTypeError,
    TraceValueError,
    UnsupportedError,
)
from qdtrace.trace.diagnosis.advice import ndrange_in, told
from qdtrace.trace.diagnosis.foreign_names import of_value
from qdtrace.trace.diagnosis.precedence import of_floats
from qdtrace.trace.diagnosis.statement import nodes_of, raised_in
from qdtrace.trace.diagnosis.stores import stored_in
from qdtrace.trace.source import is_jax_file, traceback_loc

if TYPE_CHECKING:
    from collections.abc import Generator

    from qdtrace.errors import Loc

    _Words = tuple[type[QdError], str, str]
    """The error, the rule that was broken, and the fix."""


def explain(error: Exception) -> QdError | None:
    """Returns the error to raise in place of one of JAX's; None when it should be left as it is."""
    if isinstance(error, QdError):
        return None
    loc = traceback_loc(error.__traceback__)
    words = next((words for kind, words in _OF_KIND.items() if isinstance(error, kind)), None)
    return _by_statement(error, loc) or (_worded(words, loc) if words else _by_text(error, loc))


@contextlib.contextmanager
def explained() -> Generator[None]:
    """Raises errors of JAX that a block raises in the words of this package, where the block's loops are open."""
    try:
        yield
    except Exception as error:
        better = explain(error)
        if better is None:
            raise
        raise better.with_traceback(error.__traceback__) from tracebacks.cause(error)


def _by_statement(error: Exception, loc: Loc | None) -> QdError | None:
    """Returns the error for Python that needs a value: the fix is made from the user's statement."""
    needs_value = isinstance(error, _NEEDS_VALUE) or _STATIC.search(str(error))
    statement = raised_in(error.__traceback__) if needs_value else None
    found = statement and told(statement, truth=isinstance(error, jax.errors.TracerBoolConversionError))
    if found is None:
        return None
    return TraceTypeError(f"{found[0]} needs a static value, got one that is being traced", loc=loc, help=found[1])


def _worded(words: _Words, loc: Loc | None) -> QdError:
    kind, rule, fix = words
    return kind(rule, loc=loc, help=fix, wants="array" if words is _BUFFER else "")


def _by_text(error: Exception, loc: Loc | None) -> QdError | None:
    text = str(error)
    if (words := next((words for pattern, words in _OF_TEXT.items() if re.search(pattern, text)), None)) is not None:
        return _worded(words, loc)
    if "values to unpack" in text and (loops := ndrange_in(raised_in(error.__traceback__))):
        return TraceValueError(
            f"a qd.ndrange gives an index for each length that it is given, {text.split('(')[-1].rstrip(')')}",
            loc=loc,
            help=f"give a length for each index, as in `{loops}`",
        )
    if isinstance(error, TypeError) and _OPERANDS.search(text):
        return TraceTypeError(
            _OPERANDS.sub("a traced value", text), loc=loc, help="make the other operand a number or an array"
        )
    if isinstance(error, NotImplementedError) and "Effects not supported" in text:
        return UnsupportedError(
            "this JAX transformation cannot hold loops or stores of this package",
            loc=loc,
            notes=(text.splitlines()[0],),
            help="use lax.cond, lax.while_loop, lax.fori_loop or lax.scan, or qd.range and qd.when",
        )
    if "Reverse-mode differentiation does not work for lax.while_loop" in text:
        cause = error.__cause__  # its traceback is that of the loop, where JAX took the derivative later
        return GradientError(
            "jax.grad inside of a function under qd.jit or qd.vmap is JAX's own, which has no reverse mode of a loop "
            "of unknown length",
            loc=loc or (cause and traceback_loc(cause.__traceback__)),
            help="take it outside, where loops of any length have one: `jax.grad(lambda x: qd.vmap(f)(x).sum())(x)` "
            "gives the gradient of each element; or use jax.jacfwd inside",
        )
    if isinstance(error, TypeError) and (bitwise := _BITWISE.match(text)):
        statement = raised_in(error.__traceback__)
        return TraceTypeError(
            f"&, |, ^ and ~ need bools or integers, got {bitwise[1]}", loc=loc, help=of_floats(statement)
        )
    if "JAX arrays are immutable" in text or "does not support item assignment" in text:
        return TraceTypeError(
            "a store needs a buffer or a cell, got a value",
            loc=loc,
            help=stored_in(raised_in(error.__traceback__)),
            wants="buffer",
        )
    if isinstance(error, TypeError) and (call := _CALL.match(text)) and call[1] in _CALLS and _calls_us(error):
        return TraceTypeError(f"qd.{text}", loc=loc, help=_CALLS[call[1]])
    if "Indexer must have integer or boolean type" in text:
        return TraceTypeError(_TRACER.sub("a traced value", text), loc=loc, help="convert it: `.astype(jnp.int32)`")
    if isinstance(error, TypeError) and re.match("Cannot interpret '.*' as a data type", text):
        return TraceTypeError(text, loc=loc, help="a shape of two lengths is a tuple: `qd.zeros((n, m), dtype)`")
    if isinstance(error, OverflowError) and (large := _TOO_LARGE.match(text)):
        number = int(large[1])
        return TraceTypeError(
            f"{number} does not fit into int32, the type that a Python number has beside other types of 32 bits",
            loc=loc,
            help=f"write `jnp.uint32({number:#x})`, beside a uint32"
            if 0 <= number < 2**32
            else 'numbers of 64 bits need `jax.config.update("jax_enable_x64", True)`',
        )
    kind = _KINDS.get(type(error))
    if kind is None or not _is_from_jax(error):
        return None
    first, *rest = (line.strip() for line in _TRACER.sub("a traced value", text).splitlines() if line.strip())
    fix = next((fix for pattern, fix in _FIXES.items() if re.search(pattern, text)), "")
    if attribute := _ATTRIBUTE.search(first):
        fix = of_value(attribute[1])
    return kind(first, loc=loc, notes=[line for line in rest if not _OF_JAX.search(line)][:_NOTES], help=fix)


_NUMPY: _Words = (
    TraceTypeError,
    "NumPy needs a concrete array, got one that is being traced",
    "use the function of the same name in jax.numpy; index a constant table as `jnp.array(table)[i]`",
)
_OF_KIND: dict[type[Exception], _Words] = {
    jax.errors.TracerBoolConversionError: (
        TraceTypeError,
        "`if`, `and`, `or`, `not` and `while` of Python need a static value, got one that is being traced",
        "use `with qd.when(condition):`, jnp.where(condition, a, b), lax.cond, or & | ~ for and, or, not",
    ),
    jax.errors.TracerArrayConversionError: _NUMPY,
    jax.errors.TracerIntegerConversionError: (
        TraceTypeError,
        "an index of a list or NumPy array, or a length, needs a static integer, got one that is being traced",
        "put values into an array, `jnp.array(values)[i]`; write a loop as `for i in qd.range(n):`",
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        TraceTypeError,
        "an index of bools needs a static mask, got one that is being traced",
        "use `with qd.when(mask[i]):` in a loop, or jnp.where(mask, a, b)",
    ),
    jax.errors.ConcretizationTypeError: (
        TraceTypeError,
        "int(), float() and static arguments need a static value, got one that is being traced",
        "use `.astype(jnp.int32)`; for a value known at trace time use static_argnames",
    ),
    jax.errors.UnexpectedTracerError: (
        TraceValueError,
        "a value of another trace is used, it was kept in a variable outside of the function",
        "return it from the function, and pass it to the next one as an argument",
    ),
}
"""Errors of JAX with the error, the rule and the fix that are told; the first class that fits counts."""
_BUFFER: _Words = (
    TraceTypeError,
    "jax.lax functions and transformations need values, got a buffer or a cell",
    "load from it: `x[i]`, `x[...]` or `c.value`",
)
_OF_TEXT: dict[str, _Words] = {
    r"__jax_array__\(\) during abstractification|qdtrace\.trace\.buffers\.Buffer|CustomNode\(Buffer": _BUFFER,
    r"does not support ufuncs": _NUMPY,
    r"(?:\A|\()unhashable type: '\w*Tracer'": (
        TraceTypeError,
        "a traced value cannot be a key of a dict or an element of a set: it stands for many values",
        "use a Python number or a name as the key; to store at a traced place, `b[i] = v` of a buffer",
    ),
    r"(?s)\A(?=.*Error interpreting argument).*numpy\.ndarray": (
        TraceTypeError,
        "JAX needs arrays of numbers in the byte order of this machine, got one of another kind",
        "convert it: `x.astype(x.dtype.newbyteorder('='))`",
    ),
    r"Shapes must be 1D sequences of concrete values": (
        TraceTypeError,
        "a shape needs static integers, got a value that is being traced",
        "take it from `x.shape` or an argument of static_argnames; walk a length that is traced by qd.range",
    ),
    r"must be (?:a )?numpy\.ndarray, not|first argument must be an array\Z": (
        TraceTypeError,
        "a function of NumPy that changes its argument needs an array of NumPy, got a buffer or a traced value",
        "store into the buffer: `b[...] = v`, or `b[...] = jnp.where(mask, v, b[...])`",
    ),
    r"(?:sub|neg) does not accept dtype bool": (
        TraceTypeError,
        "- needs numbers, got bool",
        "convert it: `mask.astype(jnp.int32)`; `a ^ b` says whether two differ, `~a` whether one is false",
    ),
    r"iteration over a 0-d array|len\(\) of unsized object": (
        TraceTypeError,
        "a number has no length and no items, got one that is being traced",
        "walk the buffer that it is an element of: `for i in qd.range(x.shape[0]):`",
    ),
}
"""Patterns of messages with the error, the rule and the fix that are told; the first that is found counts."""
_FIXES = {
    "Gradient only defined for scalar-output functions": "give it a number, as the element `x[i]`, or make one of the "
    "result: `.sum()`",
    "Incompatible shapes for broadcasting|got incompatible shapes": "give both one shape, or an axis of length 1 where "
    "one is to be repeated: `a[:, None]`",
    "contracting dimensions": "the last axis of the left one needs the length of the right one's axis: slice or "
    "transpose one",
    "so the manual axis types do not match": "cast the one that has no axis behind its type: "
    "`lax.pcast(a, ('name of the axis',), to='varying')`",
    "carry input and carry output must have equal types": "begin with the dtype and shape that the body gives, as in "
    "`1.0 * a` of an integer, or convert what it gives: `.astype(a.dtype)`",
    "Integers cannot be raised to negative powers": "convert the base: `k.astype(float) ** -1`",
    "out argument of": "store the result: `b[...] = v` of a buffer, `y = v` of an array",
    "where argument of": "write `jnp.where(mask, f(x), x)`",
}
"""Patterns of JAX's messages that say what is wrong, with the fix, which they do not say."""
_NOTES = 6
_OLD_VALUES = "add", "min", "max", "and", "or", "xor", "exchange"
_CALL = re.compile(r"(\w+)\(\) (?:missing|takes)\b")
_CALLS = {
    "local": "give what it holds at first: `qd.local(0.0)`, or `qd.local(jnp.zeros(n))` of an array",
    "full": "give the number too: `qd.full(shape, v)`",
    "scan": "give a function of two elements, `qd.scan(f, x)`; steps with a state are `lax.scan(step, state, x)`",
    "otherwise": "write a qd.when in it: `with qd.otherwise():` and, indented, `with qd.when(c):`",
    **{f"atomic_{op}": f"give buffer, index and value: `qd.atomic_{op}(b, k, v)`" for op in _OLD_VALUES},
}
"""Functions of this package that are called with too few or too many arguments: how they are called."""
_NEEDS_VALUE = (
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)
_TRACER = re.compile(r"\b(?:\w*Jaxpr|Jit)Tracer(?:\([^()]*\))?")
_BITWISE = re.compile(r"(?:and|or|xor|not) does not accept dtype (\w+)")
_STATIC = re.compile(
    r"format string passed to \w*(?:Tracer|Cell|Buffer)\b|does not support ufuncs|"
    r"setting an array element with a sequence|unhashable type: '\w*Tracer'|"
    r"(?:_operator_pow|method)\(\) takes 2 positional arguments but 3|for \*\* or pow\(\)"
)
"""Errors of Python and NumPy that a traced value is the reason for."""
_OPERANDS = re.compile(r"(?<=[:,( ])'(?:\w*Tracer|Buffer|Cell)'")
_ATTRIBUTE = re.compile(r"^a traced value has no attribute '?(\w+)")
_TOO_LARGE = re.compile(r"An overflow was encountered .* value (-?\d+)")
"""Pattern of the message of JAX for a Python number that its default type of integers does not hold."""
_OF_JAX = re.compile("http|The error occurred while tracing the function|try using `static_arg")
"""Pattern of lines in JAX's messages that say nothing to a user of this package."""
_KINDS: dict[type, type[QdError]] = {
    TypeError: TraceTypeError,
    ValueError: TraceValueError,
    IndexError: TraceIndexError,
    AttributeError: TraceAttributeError,
    NotImplementedError: UnsupportedError,
}


def _calls_us(error: Exception) -> bool:
    """Returns whether the statement that raised calls a function of this package, not one of that name."""
    statement = raised_in(error.__traceback__)
    calls = nodes_of(ast.Call, statement)
    function = statement.value(calls[0].func) if statement and calls else None
    return str(getattr(function, "__module__", "")).partition(".")[0] == "qdtrace"


def _is_from_jax(error: Exception) -> bool:
    """Returns whether JAX raised it: its last frame is JAX's, or JAX says that it removed some."""
    if any("JAX has removed its internal frames" in note for note in getattr(error, "__notes__", ())):
        return True
    if isinstance(error, AttributeError) and str(error).startswith("module 'jax"):  # Python says it of newer releases
        return True
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return bool(files) and is_jax_file(files[-1])
