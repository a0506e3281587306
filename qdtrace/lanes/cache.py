"""Compiled functions of bare calls, `qd.vmap(f)(x)`, kept as `jax.jit` keeps those of `jax.jit(f)(x)`: by the function.

`qd.vmap(f)` is another object each time, and what is compiled would be gone with it. So it is kept by the function
object, the axes and the functions among the arguments, by identity; with another object among them nothing is kept. A
global that changes is not seen afterwards; a function or method that is made anew is another one. The function is not
kept alive: with it goes what was compiled.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import jax

from qdtrace.lanes.plan import Bound, Mapped, Mapping

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
    """A compiled function, with the objects that its key names."""

    def __init__(self, key: Hashable, root: Any, jitted: Jitted[..., Any], held: tuple[Any, ...]) -> None:
        self.root = weakref.ref(root, partial(_drop, _entries, key))
        self.jitted = jitted
        self.held = held
        """Objects whose identities are part of the key."""
        self._parts = _parts(root)

    def is_of(self, root: Any) -> bool:
        """Returns whether this is the function that was compiled, with the code that it had."""
        return self.root() is root and all(a is b for a, b in zip(_parts(root), self._parts, strict=True))


def _drop(entries: dict[Hashable, _Entry], key: Hashable, root: Any) -> None:
    entry = entries.get(key)  # given, as at the end of the process this module has no variables
    if entry is not None and entry.root is root:  # and not that of another object in its place
        entries.pop(key, None)


def _parts(f: Any) -> tuple[Any, ...]:
    """Returns the parts of a function that editors replace when they reload its module."""
    return (f.__code__, f.__defaults__, f.__kwdefaults__, f.__closure__) if type(f) is FunctionType else ()


def compiled_for(mapping: Mapping, make: Callable[[Callable[[], Mapping]], Jitted[..., Any]]) -> Jitted[..., Any]:
    """Returns the compiled function of a mapping: one that was kept, or what `make` makes of a function that returns
    the mapping."""
    described = _describe(mapping)
    if described is None:
        return make(lambda: mapping)
    key, root, held = described
    with _lock:
        entry = _entries.get(key)
        if entry is not None and entry.is_of(root):
            _entries.move_to_end(key)
            return entry.jitted
        outer, target = _with_root(mapping, abs), weakref.ref(root)
        made = _entries[key] = _Entry(key, root, make(lambda: _with_root(outer, target())), held)
        if len(_entries) > _MOST:
            _entries.popitem(last=False)
        return made.jitted


def _is_function(one: Any) -> bool:
    """Returns whether an object is a function, of Python or of JAX, which has no state of its own."""
    kind = type(one)
    return kind in (FunctionType, BuiltinFunctionType) or kind.__module__.partition(".")[0] in ("jax", "jaxlib")


def _describe(mapping: Mapping) -> tuple[Hashable, Any, tuple[Any, ...]] | None:
    """Returns a key of the mapping, the function that it maps, and further objects of the key, or None if it has no
    key."""
    # `jax.random.key` makes other keys under another default, which is no part of what JAX keeps traces by
    key: list[Any] = [jax.config.jax_default_prng_impl]  # type: ignore[attr-defined]
    held: list[Any] = []
    f: Any = mapping
    while True:
        if isinstance(f, Mapped):
            f = f.mapping
        if isinstance(f, Mapping):
            named = f.given, f.axis_name, f.axis_size, f.spmd_axis_name, f.pure
            key.append((*map(_axes_key, (f.in_axes, f.out_axes)), *named))
            f = f.f
        elif isinstance(f, Bound):
            key.append((f.tree, tuple(k for k, _ in f.objects)))
            for _, one in f.objects:
                if isinstance(one, _BY_VALUE):
                    key.append((type(one), one))
                elif _is_function(one):
                    key.append(id(one))
                    held.append(one)
                else:  # it may have changed since
                    return None
            f = f.f
        else:
            break
    try:
        weakref.ref(f)
        hash(tuple(key))
    except TypeError:
        return None
    return (id(f), *key), f, tuple(held)


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
