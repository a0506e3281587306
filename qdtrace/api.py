"""`qd.jit`: from a Python function to a JAX function whose loops run as native kernels."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

import jax
import numpy as np
from jax.core import Tracer

from qdtrace import failures, tracebacks
from qdtrace.backend import backend
from qdtrace.compose.bounds_from import BoundsFrom
from qdtrace.compose.byte_order import PLAIN
from qdtrace.compose.byte_order import has_foreign as has_foreign_order
from qdtrace.compose.depth import depth_told
from qdtrace.compose.explain import failure_in
from qdtrace.compose.foreign_arrays import convert_foreign, devices_of, to_jax
from qdtrace.compose.garbage import paused_garbage_collection
from qdtrace.compose.request import Request
from qdtrace.compose.shown_records import Told, shown
from qdtrace.compose.staged import Programs, note_called
from qdtrace.config import current, options_from, scope
from qdtrace.errors import BackendError, QdError, TraceTypeError, TraceValueError, boundary
from qdtrace.failures import raise_failures
from qdtrace.trace import compat
from qdtrace.trace.arguments import as_buffer, as_values, run_inlined
from qdtrace.trace.context import get_current
from qdtrace.wrapped import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qdtrace.config import Options
    from qdtrace.lowered import Lowered
    from qdtrace.wrapped import Numbers

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@overload
def jit(
    f: Callable[P, R], *, static_argnums: int | Sequence[int] = ..., static_argnames: str | Iterable[str] = ...,
    donate_argnums: int | Sequence[int] = ..., donate_argnames: str | Iterable[str] = ...,
    bounds_from: str | Iterable[str] = ..., backend: str | None = ..., options: dict[str, Any] | None = ...,
    pure: bool | None = ..., sizes: Literal["any"] | None = ...,
) -> Jitted[P, R]: ...  # fmt: skip
@overload
def jit(
    *, static_argnums: int | Sequence[int] = ..., static_argnames: str | Iterable[str] = ...,
    donate_argnums: int | Sequence[int] = ..., donate_argnames: str | Iterable[str] = ...,
    bounds_from: str | Iterable[str] = ..., backend: str | None = ..., options: dict[str, Any] | None = ...,
    pure: bool | None = ..., sizes: Literal["any"] | None = ...,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...  # fmt: skip
@boundary
def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Iterable[str] = (),
    bounds_from: str | Iterable[str] = (),
    backend: str | None = None,
    options: dict[str, Any] | None = None,
    pure: bool | None = None,
    sizes: Literal["any"] | None = None,
) -> Any:
    """Compiles a function whose `qd.range` loops become native kernels; also a decorator.

    Arguments are pytrees of JAX, NumPy or other DLPack arrays and Python scalars. Arrays of rank 1 and more arrive in
    `f` as buffers local to the call, scalars as JAX values. `f` returns a pytree of buffers, arrays and scalars, given
    back as JAX arrays. The result composes with `jax.jit`, `jax.vmap` and `lax` loops.

    `f` is traced once per structure, shapes, dtypes and static values of its arguments, and per options.

    >>> @qd.jit
    ... def double(x):
    ...     for i in qd.range(x.shape[0]):
    ...         x[i] = 2 * x[i]
    ...     return x
    >>> double(jnp.arange(3))
    Array([0, 2, 4], dtype=int32)

    Args:
        f: the function.
        static_argnums: positions of arguments that are compile-time values (hashable), as in `jax.jit`.
        static_argnames: the same by name.
        donate_argnums: positions of arguments whose memory the results may take over. Only what is donated here is
            known when loops are compiled: a new buffer that is returned is then computed in place where that is right.
            A donation to a `jax.jit` around it holds as well, but such a buffer is copied.
        donate_argnames: the same by name.
        bounds_from: names of arguments whose integers bound loops (`qd.range(row[i], row[i + 1])`). A call with arrays
            finds the largest element and the largest step of each array once, and derivatives reserve memory for so
            many iterations, rounded to a power of two. Arrays that differ in these trace anew. Of what is traced
            already (in a `jax.jit` or `jax.vmap` around the call) nothing is known, and nothing changes. NumPy's arrays
            may change, so each call looks at them.
        backend: JAX platform to compile for; the default device's when None.
        options: values for `qd.options` that hold for this function, and (but for `pure`) for mapped and compiled ones
            that it calls.
        pure: True if `f` depends on nothing but its arguments and what its source, closure and defaults say; a new
            process that finds it on disk does not trace it then (docs/saving.md). None: as the option `pure` says.
        sizes: "any" if calls have many lengths: after three, direct calls on a processor share one program. So do
            direct calls of `jax.vmap` of the function with many sizes of batches, and of its `jax.grad`.

    Raises:
        QdError: of one of its kinds, for every rule the traced function breaks.
    """
    settings: dict[str, Any] = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "bounds_from": bounds_from,
        "backend": backend,
        "options": options if pure is None else {**(options or {}), "pure": pure},
        "sizes": sizes,
    }
    if f is None:
        return functools.partial(jit, **settings)
    if not callable(f):
        raise TraceTypeError(f"needs a function, got {type(f).__name__}")
    return Jitted(f, **settings)


class Jitted(Wrapped[P, R_co]):
    """A compiled function: what `jit` gives. It is called as the function that it was made of.

    >>> isinstance(qd.jit(lambda x: x), qd.Jitted)
    True
    """

    def __init__(
        self,
        f: Callable[P, R_co],
        *,
        static_argnums: int | Sequence[int],
        static_argnames: str | Iterable[str],
        donate_argnums: int | Sequence[int],
        donate_argnames: str | Iterable[str],
        bounds_from: str | Iterable[str] | BoundsFrom,
        backend: str | None,
        options: dict[str, Any] | None,
        sizes: Literal["any"] | None = None,
    ) -> None:
        super().__init__(f)
        self._function = f
        self._overrides = dict(options or {})
        options_from(self._overrides)  # refuses unknown names and wrong types now, not at the first call
        self._jax_settings: dict[str, Any] = {
            "static_argnums": static_argnums,
            "static_argnames": static_argnames,
            "donate_argnums": donate_argnums,
            "donate_argnames": donate_argnames,
        }
        self._donations = donate_argnums, donate_argnames
        if sizes not in (None, "any"):
            raise TraceValueError.here(f"qd.jit: sizes needs to be 'any' or None, got {sizes!r}")
        self._sizes = sizes
        self._calls: dict[Options, Any] = {}
        self._backend = backend
        try:
            jax.jit(f, **self._given_settings)  # likewise: positions and names that the function does not have
        except (TypeError, ValueError) as error:
            raise TraceValueError.here(f"qd.jit: {str(error).splitlines()[0]}", help=_settings_of(f)) from None
        self._bounds = bounds_from if isinstance(bounds_from, BoundsFrom) else BoundsFrom.named(f, bounds_from)
        self._with_limits: dict[object, Jitted[P, R_co]] = {}
        self._functions: dict[Options, tuple[Any, Programs]] = {}
        self._last: tuple[Options | None, Any, Programs] = (None, None, Programs())  # options of a call, and theirs
        named = f.func if isinstance(f, functools.partial) else f
        self._name = getattr(named, "__name__", type(named).__name__)

    @overload
    def __call__(self: Jitted[P, Numbers], *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(self: Jitted[P, R | complex], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._bounds is not None and (made := self._limited(args, kwargs)) is not self:
            return made(*args, **kwargs)
        if get_current() is not None:
            return self._inside(args, kwargs)
        for x in args:
            if type(x) not in PLAIN:  # a call of a function takes time that such a call has little of
                if has_foreign_order(args):
                    args = to_jax(args)
                break
        if kwargs and has_foreign_order(kwargs.values()):
            kwargs = to_jax(kwargs)
        options, function, programs = self._last  # sooner found than in a dictionary
        try:
            if self._backend is not None:
                args, kwargs = _on_backend(self._backend, self._name, (args, kwargs))
            if options is not current():
                function, programs = self._specialised()
            if failures.glance() != failures.fine:
                raise_failures()
            if self._sizes is not None and (found := self._of_any_length(args, kwargs)) is not None:
                return found[0]
            results = function(*args, **kwargs) if kwargs else function(*args)  # each argument more takes time
            if programs.suspects or programs.doubts:
                results = _waited(results, programs, args, kwargs)
        except Exception as error:
            try:
                results = self._again(error, function, programs, args, kwargs)
            except Exception as told:
                if told is not error:
                    tracebacks.forget_handling(told, error)
                tracebacks.shorten(told)
                raise  # bare: this frame is not added to the traceback
        return results if type(results) is not Told else shown(results)

    @property
    def overrides(self) -> dict[str, Any]:
        """Options of this function alone."""
        return self._overrides

    @boundary
    def lower(self, *args: Any, target: str | None = None, **kwargs: Any) -> Lowered:
        """The function at every stage for arguments like these; nothing is compiled.

        `target` is `"cpu"`, `"cuda"` or `"rocm"` (the GPUs of this machine), or a kind of GPU that need not be there:
        `"sm_80"`, `"sm_90"`, `"sm_100"`, `"gfx90a"`, `"gfx942"`, `"gfx950"`, `"gfx1100"`, `"spirv64"` (text alone);
        when None, the platform that it runs on. Raises BackendError for a target without a backend.
        """
        target = target or self._platform()
        if target != "cpu":  # its backend is loaded when it is asked for something
            backend(target)
        args, kwargs = to_jax((args, kwargs))
        if (made := self._limited(args, kwargs)) is not self:
            return made.lower(*args, target=target, **kwargs)
        try:
            with depth_told(self._name):
                traced = self._specialised()[0].trace(*args, **kwargs)
                if type(traced.out_info) is Told:
                    call = cast("Callable[..., Any]", self)
                    whole = functools.wraps(self._function)(lambda *args, **kwargs: call(*args, **kwargs))
                    traced = jax.jit(whole, **self._given_settings).trace(*args, **kwargs)
        except QdError:
            raise
        except Exception as error:
            better = _in_our_terms(error, self._name, (args, kwargs))
            if better is None:
                raise
            raise better from None
        from qdtrace.lowered import Lowered, find_parts  # only here, as `tracing` below

        parts = find_parts(traced.jaxpr, backend(target).machine)
        return Lowered(self._name, parts, target, traced.lower)

    def _platform(self) -> str:
        """Returns the platform that a call compiles for."""
        name = self._backend or jax.default_backend()
        return compat.gpu_platform() if name == "gpu" else name

    def _limited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Jitted[P, R_co]:
        """Returns the function for arguments with these limits; itself if it is that, or nothing is known of them."""
        bounds = self._bounds
        if bounds is None or bounds.limits or not (found := bounds.found(args, kwargs)):
            return self
        made = self._with_limits.get(found)
        if made is None:
            settings: dict[str, Any] = {**self._jax_settings, "backend": self._backend, "options": self._overrides}
            one = Jitted(self._function, bounds_from=replace(bounds, limits=found), **settings)
            made = self._with_limits.setdefault(found, one)
        return made

    @property
    def static_arguments(self) -> tuple[int | Sequence[int], str | Iterable[str]]:
        """Positions and names of arguments that are compile-time values, as `qd.jit` was given them."""
        return self._jax_settings["static_argnums"], self._jax_settings["static_argnames"]

    def looks_at(self) -> object:
        """Returns what calls depend on, for `compose.pure_key`."""
        return self._function, self._jax_settings, self._backend, self._overrides, self._bounds

    def _specialised(self) -> tuple[Any, Programs]:
        """The JAX function for the current options, and its programs; made at their first use."""
        now = current()
        made = self._functions.get(now) or self._functions.setdefault(now, self._compiled())
        self._last = now, *made
        return made

    def _of_any_length(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Returns the result of a call by the program of all lengths, or None if that does not run it."""
        now = current()
        if self._bounds is not None or self._given_settings or self._platform() != "cpu":
            return None
        calls = self._calls.get(now)
        if calls is None:
            from qdtrace.lengths.calls import Calls

            calls = self._calls.setdefault(now, Calls(self._name, self._staged, options_from(self._overrides)))
        return calls.run(args, kwargs)

    def _compiled(self) -> tuple[Any, Programs]:
        programs = Programs()
        return jax.jit(self._staged(programs), **self._given_settings), programs

    def _staged(self, programs: Programs) -> Callable[..., Any]:
        """Returns the function that traces a call and stages it, whose programs are added to a list."""
        options = options_from(self._overrides)
        inside = replace(options, pure=current().pure)  # that a function is pure says nothing of those that it calls

        # Only here: the primitive that calls a program is loaded when one is called.
        with paused_garbage_collection():
            if options.pure:
                from qdtrace.compose.pure import results_of
            else:
                from qdtrace.compose.tracing import results_of

        @functools.wraps(self._function)
        def staged(*args: Any, **kwargs: Any) -> Any:
            if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                with jax.disable_jit(False):  # loops of this package exist only while a function is traced
                    return jax.jit(staged, **self._given_settings)(*args, **kwargs)
            with paused_garbage_collection(), programs.open(jax.tree.leaves((args, kwargs))), scope(inside):
                given = [] if self._bounds is None else self._bounds.traced(args, kwargs)
                tasks = programs.array_tasks and not options.pure  # what is kept on disk has none
                request = Request(self._function, args, kwargs, self._name, options, self._donations, given, tasks)
                return results_of(request)

        return staged

    @functools.cached_property
    def _given_settings(self) -> dict[str, Any]:
        return {k: v for k, v in self._jax_settings.items() if v not in ((), None)}

    def _inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call from another function that is being traced."""
        context = get_current()
        assert context is not None
        if (context.in_thread or context.inlines) and (inlining := context.inlining(self)) is not None:
            with inlining:
                return run_inlined(self._function, args, kwargs, context)
        args, kwargs = as_values((args, kwargs))
        function, programs = self._specialised()
        results = function(*args, **kwargs)
        results = shown(results) if type(results) is Told else results
        note_called(programs)
        makes_buffers = not context.regions and compat.current_trace() is context.jax_trace
        return jax.tree.map(as_buffer, results) if makes_buffers else results

    def _again(
        self, error: Exception, function: Any, programs: Programs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """JAX refused the arguments or the run failed: converts foreign arrays once, words errors in our terms."""
        if isinstance(error, QdError):
            raise error
        if (failure := failure_in(error)) is not None:
            raise failure.with_traceback(None) from None
        with depth_told(self._name):
            if isinstance(error, RecursionError):
                raise error
        if "incompatible devices" in str(error):
            raise BackendError(
                f"{self._name}: needs all arrays on one device, got {devices_of((args, kwargs))}",
                help="move them with jax.device_put",
            ) from tracebacks.cause(error)
        converted, changed = convert_foreign((args, kwargs))
        if not changed:
            better = _in_our_terms(error, self._name, (args, kwargs))
            if better is None:
                raise error
            raise better from None
        args, kwargs = converted
        return _waited(function(*args, **kwargs), programs, args, kwargs)

    def __repr__(self) -> str:
        return f"<qd.jit {self._name}>"


def _settings_of(f: Callable[..., Any]) -> str:
    """Returns advice for a function that JAX refuses with its static or donated arguments."""
    if inspect.isgeneratorfunction(f):
        return "store what it yields, `out[i] = v` of a buffer `out`, and return that"
    with contextlib.suppress(TypeError, ValueError):
        names = ", ".join(f"{k}: {name}" for k, name in enumerate(inspect.signature(f).parameters))
        return f"name its arguments by position or name ({names})"
    return ""


def _waited(results: Any, programs: Programs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Results of a call whose programs may fail, once they are there: the error belongs to this call. On a GPU nobody
    waits: what failed is raised by a later call, or by `qd.block_until_ready`."""
    if programs.doubts:
        programs.settle((args, kwargs))
    arrays = compat.arrays_behind(results) if programs.suspects else ()
    found = [x for x in arrays if programs.interpreted or compat.is_on_host(x)]
    if found and programs.may_fail():  # in this order: the answer takes all passes, of a program that may never run
        jax.block_until_ready(found)
        if failures.glance() != failures.fine:
            raise_failures()  # of a program that several devices have run together
    return results


@boundary
def block_until_ready(x: R) -> R:
    """Waits for the arrays of a pytree, as `jax.block_until_ready`, and raises what failed on the way to them.

    On a GPU nobody waits for a check when a function is called: its error is raised here, or by the next direct call of
    a `qd.jit` function that comes after it happened. Then other functions may be the ones that failed.

    >>> qd.block_until_ready(jnp.arange(3) + 1)
    Array([1, 2, 3], dtype=int32)

    Args:
        x: a pytree of arrays; given back.

    Raises:
        BoundsError: an index was outside of its buffer.
        CheckError: a condition of `qd.check` did not hold.
    """
    try:
        x = jax.block_until_ready(x)
    except Exception as error:
        if (failure := failure_in(error)) is not None:
            raise failure.with_traceback(None) from None
        raise
    raise_failures()
    return x


def _on_backend(backend: str, name: str, tree: Any) -> Any:
    """The arrays on the first device of a platform; what is being traced has its place already."""
    try:
        device = jax.local_devices(backend=backend)[0]
    except RuntimeError as error:
        raise BackendError(
            f"{name}: {str(error).splitlines()[0]}", help="leave `backend` out of qd.jit to run on the default device"
        ) from None

    def one(x: Any) -> Any:
        is_array = isinstance(x, jax.Array | np.ndarray) and not isinstance(x, Tracer)
        return jax.device_put(x, device) if is_array else x

    return jax.tree.map(one, convert_foreign(tree)[0])


def _in_our_terms(error: Exception, name: str, arguments: Any) -> QdError | None:
    """The error for what JAX said about the arguments of a call; None for any other error."""
    text = str(error)
    if text.startswith("Non-hashable static arguments"):
        kind = re.search(r"object of type <class '([^']+)'>, (.*)\. The error was", text)
        got = f"{kind[1]} {kind[2]}" if kind else "one that is not"
        return TraceTypeError.here(
            f"{name}: a static argument needs to be hashable, got {got}",
            help="give a tuple in place of a list, or a frozen dataclass; arrays are not static",
        )
    return _not_an_array(error, name, arguments)


def _not_an_array(error: Exception, name: str, arguments: Any) -> TraceTypeError | None:
    """The error for an argument that is no array, number or pytree of them; None when that is not what went wrong."""
    path = re.search(r"abstract array.* at path ([^\s.]+)", str(error), re.DOTALL)
    if path is None:
        return None
    match = re.search(r"is of type <class '([^']+)'>", str(error))
    kind = match[1].removeprefix("builtins.") if match else "something else"
    if kind == "numpy.ndarray":
        kinds = [x.dtype for x in jax.tree.leaves(arguments) if isinstance(x, np.ndarray) and x.dtype.kind in "OSUMmV"]
        kind = f"an array of {kinds[0]}" if kinds else kind
    argument = re.split(r"[.\[]", path[1])[0]
    return TraceTypeError.here(
        f"{name}: the argument `{path[1].rstrip('.')}` needs to be an array, a number or a pytree of them, got {kind}",
        help=f"make it static: qd.jit(f, static_argnames={argument!r}), or register its class with qd.dataclass",
    )
