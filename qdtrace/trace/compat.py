"""The only place that knows differences between JAX versions, and the only private import of JAX.

JAX changes the layout of jaxprs and of parameters between releases; all else asks here. Runs on jax 0.10.2 to 0.12.
"""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import ReferenceType, WeakKeyDictionary

import jax
import numpy as np

# Their public home is `jax.extend`, which loads all of Pallas with them: a fifth of the time to import this package.
from jax._src import source_info_util
from jax._src.ad_util import stop_gradient_p
from jax._src.api_util import InternalFloatingPointError
from jax._src.core import Primitive, extend_axis_env_nd, set_current_trace, trace_ctx
from jax._src.effects import Effect
from jax._src.interpreters.ad import custom_lin_p, jvp_jaxpr
from jax._src.pjit import jit_p
from jax._src.random.threefry2x32 import threefry_prng_impl
from jax.core import ShapedArray, Tracer, eval_jaxpr
from jax.custom_derivatives import custom_vjp_call_p
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.sharding import NamedSharding, PartitionSpec

from qdtrace.tracebacks import hide_from_jax

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from jax.typing import ArrayLike, DTypeLike

    from qdtrace.trace.jaxprs import AnyJaxpr, Atom, Jaxpr, JaxprEqn, Literal, Var
else:
    from jax._src.core import Jaxpr, JaxprEqn, Literal, Var


def private(module: str, name: str) -> Any:
    """An object of a module of JAX; None where a release has none."""
    try:
        return getattr(importlib.import_module(f"jax._src.{module}"), name, None)
    except ImportError:
        return None


settings = private("config", "trace_context")  # a function: all settings that traces depend on
dtype_of = private("dtypes", "dtype")  # of a value, as `lax` asks numbers for it
source_lines = private("source_info_util", "_source_info_context")  # of this thread: whose lines new equations get
discharge_refs = private("state.discharge", "discharge_state")  # of a closed jaxpr: the same without references
AbstractRef = private("state.types", "AbstractRef")
GSPMDSharding = private("sharding_impls", "GSPMDSharding")  # an array's sharding as XLA writes it, without a mesh
batched_device_put = getattr(private("lib", "_jax"), "batched_device_put", None)  # of arrays of NumPy as they are
eval_trace = private("core", "eval_trace")  # the trace that runs what it is given
folding = private("config", "eager_constant_folding")  # whether operations on constants run while JAX traces
_LOWERING = getattr(private("interpreters.mlir", "lower_jaxpr_to_module"), "__code__", None)
_DONATED: dict[str, Callable[[object], bool]] = {  # variables of that function: what they say of each argument
    "input_output_aliases": lambda result: result is not None, "xla_donated_args": bool,
}  # fmt: skip
weak_types = private("util", "weakref_cache_key_types")  # of parameters that caches of traces do not keep alive
ClosedJaxpr = private("core", "ClosedJaxpr")  # jax 0.12 has none: a jaxpr has its constants

__all__ = ["Jaxpr", "JaxprEqn", "Literal", "Primitive", "Tracer", "Var", "custom_lin_p", "jit_p",
           "source_info_util", "stop_gradient_p", "threefry_prng_impl"]  # fmt: skip


class Maker(Primitive):
    """A primitive whose rule of forward mode runs though no operand has a tangent, while `takes_tangents`."""

    takes_tangents: Callable[..., bool] = staticmethod(lambda **_: False)

    def bind_with_trace(self, trace: Any, args: Any, *rest: Any) -> Any:
        """Binds as any primitive does, but for the shortcut of JAX where all tangents are zero."""
        if not isinstance(trace, ad.JVPTrace) or not self.takes_tangents(**rest[-1]):
            return super().bind_with_trace(trace, args, *rest)
        pairs = [trace.to_primal_tangent_pair(x) for x in args]
        primals, tangents = [p for p, _ in pairs], [t for _, t in pairs]
        with set_current_trace(trace.parent_trace):
            out, tangent = ad.primitive_jvps[self](primals, tangents, **rest[-1])
        return out if type(tangent) is ad.Zero else ad.JVPTracer(trace, out, tangent)


class QdEffect(Effect):
    """Effect of every marker, which keeps JAX from dropping, moving or duplicating it. All instances are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(QdEffect)

    def __lt__(self, other: object) -> bool:
        return repr(self) < repr(other)

    def __repr__(self) -> str:
        return "Qd"

    __str__ = __repr__


QD = QdEffect()
# JAX leaves frames of this package out of tracebacks, as its own.
if (_exclude := private("traceback_util", "register_exclusion")) is not None:
    hide_from_jax(_exclude)

# Markers may appear inside `lax` control flow, `jax.checkpoint` and custom derivatives.
for _name in ("control_flow_allowed", "remat_allowed", "custom_derivatives_allowed", "partial_eval_kept"):
    if (_allowed := private("effects", f"{_name}_effects")) is not None:
        _allowed.add_type(QdEffect)


def has_markers(effects: object) -> bool:
    """Returns whether a jaxpr or an equation with these effects holds a marker."""
    return any(isinstance(e, QdEffect) for e in effects)  # type: ignore[attr-defined]


def open_jaxpr(jaxpr: AnyJaxpr) -> Jaxpr:
    """Returns the jaxpr without its constants (0.10: inside a ClosedJaxpr; 0.12: the same object)."""
    return getattr(jaxpr, "jaxpr", jaxpr)  # type: ignore[return-value]


def constants_of(jaxpr: AnyJaxpr) -> Sequence[Any]:
    """Returns the values of the constant variables of a jaxpr."""
    return tuple(map(_known, getattr(jaxpr, "consts", ())))


def _known(value: object) -> object:
    """Returns a value; the number where it is a tracer of a number, which a rule may have closed over."""
    found: Any = getattr(value, "val", None) if isinstance(value, Tracer) else None
    return np.asarray(found.val, found.aval.dtype) if isinstance(found, Literal) else value


def variable_of(tracer: object) -> Any:
    """Returns the variable that a traced value stands for in its jaxpr; None if its trace records no equations."""
    return getattr(tracer, "val", None)


def number_of(value: object) -> int | None:
    """Returns the integer that a value is, also one that its trace knows; None for any other value."""
    found = variable_of(value)
    if isinstance(value, Tracer) and not isinstance(found, Literal):
        return None
    number = np.asarray(found.val if isinstance(value, Tracer) else value)
    return int(number) if number.ndim == 0 and number.dtype.kind in "iu" else None


def made_of(tracer: object) -> tuple[str, tuple[object, ...], Mapping[str, object]]:
    """Returns the name of the operation that made a traced value, its operands and parameters.

    ("", (), {}) where nobody knows, for an operation with effects, and for one of several results of one.
    """
    made = getattr(tracer, "parent", None)
    if made is None or made.effects or len(made.outvars) != 1:
        return "", (), {}
    return made.primitive.name, tuple(made.in_tracers), made.params


def without_dead_code(jaxpr: AnyJaxpr) -> Jaxpr:
    """Returns the open jaxpr without equations that no result depends on, as `jax.jit` compiles it."""
    opened: Any = open_jaxpr(jaxpr)
    return partial_eval.dce_jaxpr(opened, [True] * len(opened.outvars), instantiate=True)[0]  # type: ignore[return-value]


def with_eqns(jaxpr: AnyJaxpr, eqns: Sequence[JaxprEqn]) -> AnyJaxpr:
    """Returns the jaxpr, open or closed, with other equations."""
    opened = open_jaxpr(jaxpr)
    made = opened.replace(eqns=list(eqns))
    return made if opened is jaxpr else jaxpr.replace(jaxpr=made)  # type: ignore[call-arg, arg-type]


def is_jaxpr(value: object) -> TypeGuard[AnyJaxpr]:
    """Returns whether a value is an open or closed jaxpr."""
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def inner_jaxprs(eqn: JaxprEqn) -> list[AnyJaxpr]:
    """Returns every jaxpr among the parameters of an equation."""
    found: list[AnyJaxpr] = []
    for value in eqn.params.values():
        if value.__class__ in _PLAIN:
            continue  # most parameters are told from jaxprs quickly
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if one.__class__ not in _PLAIN and is_jaxpr(one):
                found.append(one)
    return found


_PLAIN = frozenset((bool, int, float, str, type(None), np.dtype, *{np.dtype(c).__class__ for c in "?bhilBHILefdFD"}))


def holds_jaxpr(eqn: JaxprEqn) -> bool:
    """Returns whether an equation has a jaxpr among its parameters."""
    return bool(inner_jaxprs(eqn))


def settings_of(eqn: JaxprEqn) -> AbstractContextManager[object]:
    """Returns a context with JAX's settings of where an equation was traced: bits of a random key depend on one."""
    return eqn.ctx.manager


def splits_by_position() -> bool:
    """Returns whether a key split from another is the hash of its position, by JAX's present setting."""
    config: Any = jax.config
    return bool(config.jax_threefry_partitionable)


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns (constants, carries) of a `scan` equation; the rest of its operands are slices of `xs`."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = (len(part) for part in params["ft_in"].unpack())
    return constants, carry


_CALLS = {"jit": "jaxpr", "remat2": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
          "custom_vjp_call": "call_jaxpr"}  # fmt: skip
_WHOLE = {*_CALLS, "scan", "while", "cond", "custom_linear_solve"}
"""Primitives whose jaxprs are all of what they compute."""


def called_jaxpr(eqn: JaxprEqn) -> AnyJaxpr | None:
    """Returns the jaxpr that an equation like `jit` runs exactly once on its operands; None for any other equation."""
    name = _CALLS.get(eqn.primitive.name)
    return None if name is None else eqn.params[name]


def lower_hijax(eqn: JaxprEqn) -> AnyJaxpr:
    """Returns a closed jaxpr of ordinary primitives for a `call_hi_primitive` equation (jax >= 0.12)."""
    operands = [v.aval for v in eqn.invars]
    closed = jax.make_jaxpr(lambda *xs: eqn.primitive.bind(*xs, **eqn.params))(*operands)
    return partial_eval.lower_jaxpr2(closed)  # type: ignore[attr-defined]


def hijax_function_of_elements(eqn: JaxprEqn) -> Callable[..., Any] | None:
    """Returns the function of elements that a `call_hi_primitive` equation on arrays of one shape is, if it is one."""
    shapes = {v.aval.shape for v in (*eqn.invars, *eqn.outvars)}
    is_one = type(eqn.params["_prim"]).__name__ == "Ldexp" and len(shapes) == 1
    return jax.numpy.ldexp if is_one and shapes != {()} else None


_FORMULAS = {
    "random_gamma": ("jax._src.random.core", "_gamma_impl"),
    "threefry2x32": ("jax._src.random.threefry2x32", "_threefry2x32_lowering"),
}


def formula_of(name: str) -> Callable[..., Any] | None:
    """Returns the function of arrays that JAX itself computes a primitive by; None where this version has none."""
    module, attribute = _FORMULAS.get(name, ("jax._src.lax.special", f"{name}_impl"))
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return None


def function_of(jaxpr: AnyJaxpr) -> Callable[..., Sequence[Any]]:
    """Returns a jaxpr that is a parameter as a function of arrays."""
    return lambda *xs: eval_jaxpr(open_jaxpr(jaxpr), constants_of(jaxpr), *xs)  # type: ignore[arg-type]


def new_var(like: Atom) -> Var:
    """Returns a fresh variable of the same abstract value."""
    return Var(like.aval)


def new_scalar(dtype: DTypeLike) -> Var:
    """Returns a fresh variable for a scalar."""
    return Var(ShapedArray((), np.dtype(dtype)))


def new_var_of(shape: tuple[int, ...], like: ShapedArray) -> Var:
    """Returns a fresh variable of another shape."""
    return Var(ShapedArray(shape, like.dtype, like.weak_type))


def named_axis(name: object, size: int) -> AbstractContextManager[object]:
    """Returns a context in which JAX knows an axis of this name; None: no axis."""
    return nullcontext() if name is None else extend_axis_env_nd([(name, size)])


def outside_of_traces() -> AbstractContextManager[object]:
    """Returns a block in which operations on values run, whatever traces are around."""
    return jax.ensure_compile_time_eval() if eval_trace is None else set_current_trace(eval_trace)


def lowered_function() -> tuple[Jaxpr, tuple[bool, ...]] | None:
    """Returns the function that JAX is lowering, and which of its arguments are donated; None: that is not found."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not _LOWERING:
        frame = frame.f_back
    kept = {} if frame is None else frame.f_locals
    if "jaxpr" not in kept or not all(name in kept for name in _DONATED):
        return None
    jaxpr = open_jaxpr(kept["jaxpr"])
    donated = [False] * len(jaxpr.invars)
    for name, given in _DONATED.items():  # from the last one on: those of constants may be in front of its arguments
        for k, value in zip(range(len(donated))[::-1], reversed(kept[name] or ()), strict=False):
            donated[k] |= given(value)
    return jaxpr, tuple(donated)


def axes_of(eqn: JaxprEqn) -> tuple[Hashable, ...]:
    """Returns the named axes that an equation is a collective of."""
    found = eqn.params.get("axis_name", eqn.params.get("axes", ()))
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def current_trace() -> object:
    """Returns the JAX trace that is running."""
    return trace_ctx.trace


def arrays_behind(values: object) -> list[jax.Array]:
    """Returns the arrays behind tracers of `jax.vmap` and of derivatives; none for those of a trace for later."""
    found: list[jax.Array] = []
    waiting = list(jax.tree.leaves(values))
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tracer):
            waiting += [v for name in ("primal", "tangent", "val") if (v := getattr(value, name, None)) is not None]
        elif isinstance(value, jax.Array):
            found.append(value)
    return found


def is_on_host(array: jax.Array) -> bool:
    """Returns whether an array is in memory of processors, not of a device whose driver works through a queue."""
    return all(device.platform == "cpu" for device in array.devices())


def device_count(context: Any) -> int:
    """Returns how many devices share the program that is lowered; `context` is what a lowering rule gets from JAX."""
    axes = context.module_context.axis_context
    return int(getattr(axes, "num_devices", 0) or getattr(getattr(axes, "mesh", None), "size", 1))


def is_export(context: Any) -> bool:
    """Returns whether `jax.export` lowers; `context` is what a lowering rule gets from JAX."""
    return bool(getattr(context.module_context.lowering_parameters, "for_export", False))


def gpu_platform() -> str:
    """Returns the name of JAX's platform behind `"gpu"`: `"cuda"` or `"rocm"`."""
    try:
        jax.devices("rocm")
    except RuntimeError:
        return "cuda"
    return "rocm"


def batch_axis(value: object) -> int | None:
    """Returns the axis of the array behind a value (`variable_of`) along which the innermost `jax.vmap` maps it; None
    if it does not."""
    axis = getattr(value, "batch_dim", None)
    return axis if isinstance(axis, int) else None


def is_batched(value: object) -> bool:
    """Returns whether a value differs along the axis of the innermost `jax.vmap` being traced."""
    return getattr(value, "batch_dim", None) is not None


def arguments_of(tracer: object) -> Sequence[Var]:
    """Returns the variables of the arguments of the function whose trace a tracer is of; none if that has none."""
    return getattr(getattr(trace_of(tracer), "frame", None), "invars", ())


def trace_of(tracer: object) -> object | None:
    """Returns the JAX trace that a tracer belongs to."""
    return getattr(tracer, "_trace", None)


def recorded(trace: object) -> Sequence[Any]:
    """Returns what a trace has recorded: equations with `primitive` and `in_tracers`, or weak references to them."""
    return getattr(getattr(trace, "frame", None), "tracing_eqns", ())


def last_equation(trace: object) -> tuple[JaxprEqn, Sequence[object]] | None:
    """Returns the equation that a trace has recorded last, with its traced operands; None if there is none."""
    eqn = next(equations_since(trace, len(recorded(trace)) - 1), None)
    if eqn is None:
        return None
    make: Any = JaxprEqn
    invars = [t.val for t in eqn.in_tracers]
    made = make(invars, eqn.outvars, eqn.primitive, eqn.params, eqn.effects, eqn.source_info, eqn.ctx)
    return made, eqn.in_tracers


def equations_since(trace: object, first: int) -> Iterator[Any]:
    """Yields the equations that a trace has recorded from one number on, 0 at least."""
    for eqn in recorded(trace)[max(first, 0) :]:
        if (found := eqn() if isinstance(eqn, ReferenceType) else eqn) is not None:
            yield found


def define(
    primitive: Primitive,
    types: Callable[..., Any],
    batch: Callable[..., Any] | None,
    run: Callable[..., Any],
    **on: Callable[..., Any],
) -> None:
    """Defines a primitive of arrays: types of its results, a rule of batches, and the JAX function that runs it.

    `on` are functions for platforms of their own. Outside of a trace it runs as a program of its own. Without a rule of
    batches here, it is registered elsewhere.
    """
    primitive.def_impl(lambda *operands, **params: jax.jit(functools.partial(primitive.bind, **params))(*operands))
    primitive.def_abstract_eval(types)
    if batch is not None:
        batching.primitive_batchers[primitive] = batch
    for platform, function in ((None, run), *on.items()):
        lowering = mlir.lower_fun(function, multiple_results=primitive.multiple_results)
        mlir.register_lowering(primitive, lowering, platform=platform)


def bind_eqn(eqn: JaxprEqn, values: Sequence[object]) -> list[Any]:
    """Evaluates an equation on JAX values; always a list of results.

    Raises FloatingPointError where JAX looks for NaN and finds one. Of a `jit` that is no call of Python, JAX itself
    raises an error that only its own `jax.jit` catches.
    """
    bound = eqn.primitive.get_bind_params(eqn.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    try:
        out = eqn.primitive.bind(*functions, *values, **params)
    except InternalFloatingPointError as error:
        raise FloatingPointError(f"invalid value ({error.ty}) encountered in {error.name}") from None
    return list(out) if eqn.primitive.multiple_results else [out]


def jvp_of(jaxpr: Jaxpr, given: Sequence[bool]) -> tuple[Jaxpr, Sequence[Any], Sequence[bool]]:
    """Returns an open jaxpr with tangents by JAX's rules of forward mode, for those of its inputs that have one.

    Its inputs are followed by their tangents, its results by those tangents that are not zero. Returns also the values
    of its constants, and which results have a tangent. Raises NotImplementedError for a primitive without such a rule.
    """
    _note_names(jaxpr.eqns)
    closed: Any = jaxpr if ClosedJaxpr is None else ClosedJaxpr(jaxpr, ())
    made, nonzero = jvp_jaxpr(closed, list(given), False)
    return without_dead_code(made), constants_of(made), nonzero


def jaxpr_of(eqns: Sequence[JaxprEqn], invars: Sequence[Var] = (), outvars: Sequence[Atom] = ()) -> Jaxpr:
    """Returns an open jaxpr of equations."""
    effects = frozenset[object]().union(*(e.effects for e in eqns))
    info = _debug_info(len(invars), len(outvars))
    return Jaxpr((), list(invars), list(outvars), list(eqns), effects, debug_info=info)


def all_eqns(eqns: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    """Yields equations, and those of the jaxprs inside of them."""
    for eqn in eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from all_eqns(open_jaxpr(inner).eqns)


def map_eqns(jaxpr: AnyJaxpr, change: Callable[[Sequence[JaxprEqn]], Sequence[JaxprEqn]]) -> AnyJaxpr:
    """Returns a jaxpr, open or closed, with its equations changed, and those of its loops, branches and calls."""
    inside = [
        map_jaxprs(eqn, functools.partial(map_eqns, change=change)) if eqn.primitive.name in _WHOLE else eqn
        for eqn in open_jaxpr(jaxpr).eqns
    ]
    return with_eqns(jaxpr, change(inside))


def map_jaxprs(eqn: JaxprEqn, change: Callable[[AnyJaxpr], AnyJaxpr]) -> JaxprEqn:
    """Returns an equation with each of its jaxprs changed, itself if none is another one then."""

    def changed(value: Any) -> Any:
        if is_jaxpr(value):
            return change(value)
        if not isinstance(value, tuple) or not any(map(is_jaxpr, value)):
            return value
        return getattr(value, "_make", tuple)(map(changed, value))  # a `custom_linear_solve` may lack some

    params = {name: changed(value) for name, value in eqn.params.items()}
    return eqn if all(params[k] is v for k, v in eqn.params.items()) else eqn.replace(params=params)


def inlined(f: Callable[..., Any], eqn: JaxprEqn) -> list[JaxprEqn]:
    """Returns the equations of a function of the operands of an equation, with its results."""
    jaxpr = open_jaxpr(jax.make_jaxpr(f)(*(v.aval for v in eqn.invars)))
    known = dict(zip((*jaxpr.invars, *jaxpr.outvars), (*eqn.invars, *eqn.outvars), strict=True))
    return [e.replace(invars=named(e.invars, known), outvars=named(e.outvars, known)) for e in jaxpr.eqns]


def named(atoms: Iterable[Atom | None], names: Mapping[Any, Any]) -> list[Any]:
    """Returns the atoms, with what `names` gives in the place of a variable."""
    return [v if isinstance(v, Literal) else names.get(v, v) for v in atoms]


@functools.cache
def _debug_info(inputs: int, outputs: int) -> Any:
    """Returns debug info, with empty names, for a jaxpr that was not traced from a function."""
    info = jax.make_jaxpr(lambda: None)().jaxpr.debug_info
    return info._replace(arg_names=("",) * inputs, result_paths=("",) * outputs)


def tangent_type(value: object) -> ShapedArray:
    """Returns the abstract value of tangents of a value."""
    return jax.typeof(value).to_tangent_aval()


def is_linear(primitive: Primitive) -> bool:
    """Returns whether a primitive has a transpose of its own."""
    return primitive in ad.primitive_transposes


def transposed(params: Mapping[str, Any], residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[jax.Array]:
    """Returns cotangents of the tangents that a `custom_lin` equation takes, by its backward function."""
    found = params["bwd"].call_wrapped(*residuals, *cotangents)
    if isinstance(found, tuple):  # from jax 0.11 on: cotangents, and what the backward pass logs
        found = found[0]
    wanted = [x for x, is_zero in zip(found, params["in_zeros"], strict=True) if not is_zero]
    return [ad.instantiate_zeros(ad.Zero(x.aval) if type(x).__name__ == "SymbolicZero" else x) for x in wanted]


_ruled: WeakKeyDictionary[Callable[..., object], str] = WeakKeyDictionary()
"""Backward function -> name of the function that it is the rule of."""


def _note_names(eqns: Iterable[JaxprEqn]) -> None:
    """Remembers which functions have rules for reverse mode: JAX keeps nothing but the backward function of them."""
    for eqn in all_eqns(eqns):
        if eqn.primitive is custom_vjp_call_p:
            _ruled[eqn.params["bwd"].f] = described(eqn.params["call_jaxpr"])[0]


def name_of_rule(params: Mapping[str, Any]) -> str:
    """Returns the name of the function that a `custom_lin` equation is for, or that of its backward function."""
    backward = params["bwd"]
    return _ruled.get(backward.f) or str(backward.debug_info.func_name)


def _origin(closed: AnyJaxpr) -> tuple[str, str]:
    """Returns name and place of the function that a jaxpr was traced from; empty texts if they are not known."""
    info = getattr(open_jaxpr(closed), "debug_info", None)
    name, _, place = str(getattr(info, "func_src_info", None) or "").partition(" at ")
    return name, place


def described(closed: AnyJaxpr) -> tuple[str, bool]:
    """Returns the name of the function that a jaxpr was traced from, and whether it is one of JAX's own."""
    name, place = _origin(closed)
    own = str(Path(jax.__file__).parent)
    return name or "a function with a rule", place.startswith(own)


def function_of_elements(eqn: JaxprEqn) -> Callable[..., Any] | None:
    """Returns the function with a derivative rule that an equation on arrays calls, if it is one of jax.scipy.special.

    What such a function does to an element depends on no other.
    """
    (out, *more), operands = eqn.outvars, [v.aval for v in eqn.invars]
    if more or not out.aval.shape or any(a.shape not in ((), out.aval.shape) or a.weak_type for a in operands):
        return None
    name, place = _origin(eqn.params["call_jaxpr"])
    module = sys.modules.get("jax._src.scipy.special")
    found = getattr(module, name, None) if place.startswith(str(getattr(module, "__file__", None))) else None
    return found if isinstance(found, jax.custom_jvp) and not found.nondiff_argnums else None


def varying(aval: object) -> frozenset[str]:
    """Returns the axes of a `shard_map` along which a value differs."""
    kind = getattr(aval, "mat", None)
    return frozenset[str]() if kind is None else kind.varying


def array_type(shape: Sequence[int], dtype: DTypeLike, likes: Sequence[ShapedArray]) -> ShapedArray:
    """Returns the type of an array that differs along the axes of a `shard_map` along which one of `likes` does."""
    plain = ShapedArray(tuple(shape), dtype)
    axes: frozenset[str] = frozenset().union(*map(varying, likes))
    if not axes:
        return plain
    like = next(a for a in likes if varying(a) == axes)
    replicated = NamedSharding(like.sharding.mesh, PartitionSpec(*[None] * plain.ndim))
    return plain.update(manual_axis_type=like.mat, sharding=replicated)


def with_common_axes(values: Sequence[ArrayLike]) -> list[ArrayLike]:
    """Returns values that differ along all axes of a `shard_map` along which one does: sums the adjoints of others."""
    types = list(map(jax.typeof, values))
    axes: frozenset[str] = frozenset().union(*map(varying, types))
    if not axes:
        return list(values)
    lacks = [tuple(sorted(axes - varying(t))) for t in types]
    return [jax.lax.pcast(x, more, to="varying") if more else x for x, more in zip(values, lacks, strict=True)]
