"""Compiled functions of bare calls, `qd.vmap(f)(x)`, kept by the called function while nothing that it names changes.

`qd.vmap(f)` is another object each time, and what is compiled would be gone with it. So it is kept by the function
itself (by identity), the axes and the objects among the arguments. It is found again only while all that the code of
the function can name is as it was before it was traced: variables around it, globals, attributes, what these hold, and
the code itself (`trace.diagnosis.state` lists and compares them). Where something cannot be looked into, nothing is
kept. The function is not kept alive: with it goes what was compiled.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import jax

from qdtrace.trace.diagnosis.state import State
from qdtrace.trace.own_files import is_own_file
from qdtrace.vmap_plan import Bound, Mapped, Mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from qdtrace.api import Jitted

_MOST = 256
"""The most compiled functions that are kept; the least recently used one is removed first."""
_BY_VALUE = (str, bytes, type)
"""Types of objects that are identified by value."""
_entries: OrderedDict[Hashable, _Entry] = OrderedDict()
_lock = threading.RLock()


class _Entry:
    """A compiled function, with the state that it depends on."""

    def __init__(self, key: Hashable, root: Any, jitted: Jitted[..., Any], state: State, held: tuple[Any, ...]) -> None:
        self.root = weakref.ref(root, partial(_drop, _entries, key))
        self.jitted = jitted
        self.held = held
        """Objects whose identities are part of the key."""
        self._state = state
        functions = (f for f in (root, *held, *state.functions()) if type(f) is FunctionType)
        self._codes = [(weakref.ref(f), _parts(f)) for f in functions]

    def is_fresh(self) -> bool:
        """Returns whether everything that the function names is as it was before it was traced."""
        same = all(_same_parts(ref(), parts) for ref, parts in self._codes)
        return same and not self._state.has_changed()


def _drop(entries: dict[Hashable, _Entry], key: Hashable, root: Any) -> None:
    entry = entries.get(key)  # given, as at the end of the process this module has no variables
    if entry is not None and entry.root is root:  # and not that of another object in its place
        entries.pop(key, None)


def _parts(f: FunctionType) -> tuple[Any, ...]:
    """Returns the parts of a function that editors replace when they reload its module."""
    return f.__code__, f.__defaults__, f.__kwdefaults__, f.__closure__


def _same_parts(f: FunctionType | None, parts: tuple[Any, ...]) -> bool:
    return f is not None and all(a is b for a, b in zip(_parts(f), parts, strict=True))


def compiled_for(
    mapping: Mapping, make: Callable[[Callable[[], Mapping], Callable[[], None]], Jitted[..., Any]]
) -> Jitted[..., Any]:
    """Returns the compiled function of a mapping: one that was kept, or the result of `make`.

    `make` takes a function that returns the mapping, and one to be called before each trace.
    """
    described = _describe(mapping)
    if described is None:
        return make(lambda: mapping, lambda: None)
    key, root, held, is_method = described
    with _lock:
        entry = _entries.get(key)
        if entry is not None and entry.root() is root and entry.is_fresh():
            _entries.move_to_end(key)
            return entry.jitted
        state = State(every_attribute=True)
        state.add_root(root)
        for one in held:
            state.add_root(one)
        if not state.is_seen() or (state.keeps(root) and not _is_global(root)):
            return make(lambda: mapping, lambda: None)
        outer, target = _with_root(mapping, abs), weakref.ref(root)

        def again() -> Mapping:
            f = target()
            return _with_root(outer, MethodType(held[-1], f) if is_method else f)

        def begins() -> None:
            with _lock:
                if _entries.get(key) is made and not made.is_fresh():
                    del _entries[key]  # its holders go on using it, as with any function of `jax.jit`

        made = _Entry(key, root, make(again, begins), state, held)
        _entries[key] = made
        if len(_entries) > _MOST:
            _entries.popitem(last=False)
        return made.jitted


def _describe(mapping: Mapping) -> tuple[Hashable, Any, tuple[Any, ...], bool] | None:
    """Returns a key of the mapping, the object that it maps, further objects of the key, and whether it maps a method
    of that object, which is then the last of the others. Returns None if it must not be kept."""
    key: list[Any] = []
    held: list[Any] = []
    f: Any = mapping
    while True:
        if isinstance(f, Mapped):
            f = f.mapping
        if isinstance(f, Mapping):
            key.append((*map(_axes_key, (f.in_axes, f.out_axes)), f.given, f.axis_name, f.axis_size, f.spmd_axis_name))
            f = f.f
        elif isinstance(f, Bound):
            key.append((f.tree, tuple(k for k, _ in f.objects)))
            for _, one in f.objects:
                if isinstance(one, _BY_VALUE):
                    key.append((type(one), one))
                else:
                    key.append(id(one))
                    held.append(one)
            f = f.f
        else:
            break
    is_method = type(f) is MethodType
    if is_method:
        key.append(id(f.__func__))
        held.append(f.__func__)
        f = f.__self__
    if type(f) is FunctionType and not is_own_file(f.__code__.co_filename) and not _is_of_jax(f):
        return None  # of a library, which may keep what it is set to in variables of its own
    try:
        hash(tuple(key))
        for one in (f, *held):
            weakref.ref(one)
    except TypeError:
        return None
    # `jax.random.key` makes other keys under another default, which is no part of what JAX keeps traces by
    keys: Hashable = jax.config.jax_default_prng_impl  # type: ignore[attr-defined]
    return (id(f), keys, *key), f, tuple(held), is_method


def _is_global(f: Any) -> bool:
    """Returns whether a function is a global of its module, which keeps it alive."""
    module, name = getattr(f, "__module__", None), getattr(f, "__name__", "")
    return module is not None and getattr(sys.modules.get(module), name, None) is f


def _is_of_jax(f: FunctionType) -> bool:
    return (f.__module__ or "").partition(".")[0] in ("jax", "numpy", "scipy", "math")


def _axes_key(axes: Any) -> Hashable:
    leaves, tree = jax.tree.flatten(axes, is_leaf=lambda a: a is None)
    return (*leaves, tree)


def _with_root(f: Any, root: Any) -> Any:
    """Returns a mapping with its function of one element replaced."""
    if isinstance(f, Mapped):
        return type(f)(_with_root(f.mapping, root))
    if isinstance(f, (Mapping, Bound)):
        return replace(f, f=_with_root(f.f, root))
    return root
