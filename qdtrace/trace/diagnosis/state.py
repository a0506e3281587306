"""Finds objects that a body changed: lists all that its code can name and compares them with what they held before.

One `State` a trace. Objects are found once; comparing is by identity. Bodies nest, so a change is kept in a log with
the time when it was seen: what a body changed are the entries of the log since it began, of objects that were there
already.
"""

from __future__ import annotations

import builtins
import collections
from operator import is_
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.trace.diagnosis.changes import StateChange, kind_of
from qdtrace.trace.diagnosis.empty import SEEING, sees_more
from qdtrace.trace.diagnosis.holders import (
    CELL,
    CLASS,
    FUNCTION,
    JITTED,
    MISSING,
    NAMESPACE,
    OPAQUE,
    PLAIN,
    Content,
    Holder,
    Namespace,
    holder_of,
    is_jitted,
    is_own,
)
from qdtrace.trace.diagnosis.names import module_attributes, named_by
from qdtrace.trace.own_files import is_own_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType
    from typing import Any

_LIMIT = 20_000
"""Most items that are looked at; the state of a program that holds more cannot be seen."""
_MOST_CODES = 750
"""Most functions whose names are looked up; the state of a program that can reach more cannot be seen."""


_FUNCTIONS = {FunctionType, ModuleType, JITTED, type}
"""Types of what a library's module holds that no body changes."""


_COLLECTIONS: set[type] = {list, tuple, dict, set}
"""Types of the variables of a library's own frame that are left alone: what it is given may carry state."""


class _Entry:
    """An object that is watched."""

    __slots__ = ("born", "content", "holder", "path", "value")

    def __init__(self, value: Any, holder: Holder, path: str, born: int) -> None:
        self.value = value
        self.holder = holder
        self.path = path
        self.born = born
        self.content: Content = ((), []) if holder is OPAQUE else holder.read(value)

    def name(self, key: object) -> str:
        return self.holder.label(self.path, key)


class State:
    """The objects that bodies of one trace may change."""

    def __init__(self) -> None:
        self._known: dict[int, object] = {}
        """Objects that were looked into, by identity; they are kept alive, so that the identity stays theirs."""
        self._entries: list[_Entry] = []
        self._waiting: collections.deque[tuple[Any, str]] = collections.deque()
        """Values that are still to be looked into, with how the user writes them."""
        self._spaces: dict[int, _Entry] = {}
        """Entries of namespaces, by the identity of the module's variables."""
        self._helpers: list[Any] = []
        self._codes: dict[tuple[int, CodeType], int] = {}
        """Code whose names were looked up, with the time when."""
        self._log: list[tuple[int, _Entry, StateChange]] = []
        self._time = 0
        self._open = 0
        self._items = 0
        self._after_rebuild = 0

    def begin(self, frames: Iterable[tuple[FrameType, dict[str, object]]], roots: dict[str, object]) -> int:
        """Begins to watch a body that runs in these frames, with their variables, or on `roots`; returns its mark."""
        if not self._open and not self._is_full() and len(self._entries) > 64 + 2 * self._after_rebuild:
            self._forget()
        self._compare()
        known = self._known
        for name, value in roots.items():
            self._add(value, name)
        for frame, local in frames:
            skipped = PLAIN if is_own_file(frame.f_code.co_filename) else PLAIN | _COLLECTIONS
            for name, value in local.items():
                if type(value) not in skipped and id(value) not in known:
                    self._add(value, name)
            self._add_code(frame.f_code, local, frame.f_globals)
        self._search()
        if not self._open and not self._after_rebuild:
            self._after_rebuild = len(self._entries)
        self._open += 1
        self._time += 1
        return self._time

    def end(self, mark: int) -> tuple[list[StateChange], str | None]:
        """Returns the changes since the mark, and the path of an object that cannot be looked into, or None."""
        self._open -= 1
        self._compare()
        changes = [change for time, entry, change in self._log if time >= mark and entry.born < mark]
        blind = next((e.path for e in self._entries if e.holder is OPAQUE and e.born < mark), None)
        if not changes and len(self._entries) and self._entries[-1].born >= mark:
            # What was made in the body is gone with it, or will be found anew.
            for entry in self._entries:
                if entry.born >= mark:
                    self._known.pop(id(entry.value), None)
            self._entries = [e for e in self._entries if e.born < mark]
            self._spaces = {k: e for k, e in self._spaces.items() if e.born < mark}
            self._codes = {k: time for k, time in self._codes.items() if time < mark}
        self._time += 1
        if self._is_full():
            blind = blind or ""
        if not self._open:
            self._log.clear()
        return list(dict.fromkeys(changes)), blind

    def forget_helpers(self) -> None:
        """Lets `jax.jit` run the user's functions again, of which it keeps the first trace."""
        for helper in self._helpers:
            helper.clear_cache()

    def identities(self) -> set[int]:
        """Returns the identities of all that the watched objects hold."""
        return {id(v) for e in self._entries for v in e.content[1]}

    def settle(self) -> None:
        """Makes the present content what `restore` puts back, at the end of the trace, and drops traced values."""
        self._compare()
        kept, helpers = self._entries.copy(), self._helpers.copy()
        self._forget()
        self._helpers += helpers
        for entry in kept:
            keys, values = entry.content
            entry.content = keys, [v if kind_of(v) == "static" else _LEFT for v in values]
        self._entries += kept

    def restore(self) -> bool:
        """Restores what the objects held at the last look; returns True if one had collected more traced values."""
        grown = False
        for entry in self._entries:
            if entry.holder is OPAQUE or entry.holder.fixed:
                continue
            now, before = entry.holder.read(entry.value), entry.content
            if _same(now, before):
                continue
            if entry.holder.grows and len(now[1]) > len(before[1]) and "traced" in map(kind_of, now[1][-1:]):
                grown = True
            if entry.holder.write is not None:
                entry.holder.write(entry.value, _filled(before, now))
        return grown

    # -- finding objects -------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        for held in (self._known, self._entries, self._spaces, self._codes, self._helpers, self._log):
            held.clear()
        self._items = self._after_rebuild = 0

    def _is_full(self) -> bool:
        """Returns whether there is more than can be looked into."""
        return self._items > _LIMIT or len(self._codes) > _MOST_CODES

    def _add(self, value: object, path: str) -> None:
        """Watches a value and what it holds, from the next search on."""
        if type(value) not in PLAIN and id(value) not in self._known:
            self._waiting.append((value, path))

    def _search(self) -> None:
        """Watches all that waits, and what it holds; what is near comes first, as the search may become full."""
        work = self._waiting
        while work:
            value, path = work.popleft()
            if self._is_full():
                work.clear()
                return
            holder = None if type(value) in PLAIN or id(value) in self._known else holder_of(value)
            if holder is None:
                continue
            self._known[id(value)] = value
            entry = _Entry(value, holder, path, self._time)
            if not holder.fixed:
                self._entries.append(entry)
            if holder is not OPAQUE:
                work.extend(self._parts(entry))
            if is_jitted(value):
                self._helpers.append(value)
            if holder is FUNCTION:
                self._add_function(value)
            elif is_own(type(value)):
                work.append((type(value), type(value).__name__))
            if holder is CLASS:
                work.extend((base, base.__name__) for base in value.__bases__)

    def _parts(self, entry: _Entry) -> list[tuple[object, str]]:
        keys, values = entry.content
        if not values:
            if not isinstance(keys, (set, list, tuple)):
                return []
            self._items += len(keys)
            return [(key, entry.path) for key in keys if type(key) not in PLAIN]
        self._items += len(values)
        if not set(map(type, values)) - PLAIN:
            return []
        pairs = zip(_keys(entry.content), values, strict=True)
        return [(v, entry.name(k)) for k, v in pairs if type(v) not in PLAIN]

    def _add_function(self, function: FunctionType) -> None:
        code = function.__code__
        local: dict[str, object] = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._known:
                self._known[id(cell)] = cell
                entry = _Entry(cell, CELL, name, self._time)
                self._entries.append(entry)
                self._waiting.extend((v, name) for v in entry.content[1])
                local.update((name, v) for v in entry.content[1])
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._waiting.extend((value, function.__name__) for value in defaults)
        self._add_code(code, local, function.__globals__)

    def _add_code(self, code: CodeType, local: dict[str, object], space: dict[str, object]) -> None:
        """Watches the globals and the attributes of modules that the code names."""
        key = (id(space), code)
        if key in self._codes:
            return
        self._codes[key] = self._time
        variables, chains, stored, _ = named_by(code)
        self._name(space, variables, "")
        for name in SEEING.keys() & variables:
            if name not in space and vars(builtins).get(name) is SEEING[name]:
                self._add(SEEING[name], f"{name}()")
        for module, attribute, path in module_attributes(chains, local, space):
            if is_own(module) or attribute in stored:
                self._name(vars(module), (attribute,), path.rpartition(".")[0])
            else:
                value = vars(module).get(attribute)
                if type(value) in PLAIN:
                    continue
                if type(value) not in _FUNCTIONS or (type(value) in (FunctionType, type) and sees_more(value)):
                    self._add(value, path)

    def _name(self, space: dict[str, object], names: Iterable[str], path: str) -> None:
        entry = self._spaces.get(id(space))
        if entry is None:
            entry = self._spaces[id(space)] = _Entry(Namespace(space), NAMESPACE, path, self._time)
            self._entries.append(entry)
        held, (keys, values) = entry.value.names, entry.content
        for name in names:
            value = space.get(name, MISSING)
            if name not in held:
                held[name] = None
                keys.append(name)
                values.append(value)
            if value is not MISSING and type(value) not in PLAIN and id(value) not in self._known:
                self._waiting.append((value, entry.name(name)))

    # -- comparing ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Puts what changed since the last look into the log."""
        for entry in self._entries:
            holder = entry.holder
            if holder is OPAQUE:
                continue
            now, before = holder.read(entry.value), entry.content
            if now[0] == before[0] and len(now[1]) == len(before[1]) and all(map(is_, now[1], before[1])):
                continue
            if not _same(now, before):
                key, value = _first_difference(before, now)
                kind = "drawn" if holder.draws else kind_of(value)
                self._log.append((self._time, entry, StateChange(entry.name(key), kind)))
            entry.content = now
            self._waiting.extend(self._parts(entry))
        self._search()


_LEFT = object()
"""Stands for a traced value of a trace that has ended: it is not put back."""


def _filled(content: Content, now: Content) -> Content:
    """Returns the content with what is held now where a value is not put back."""
    if not any(v is _LEFT for v in content[1]):
        return content
    held = dict(zip(_keys(now), now[1], strict=True))
    pairs = [(k, held.get(k, _LEFT) if v is _LEFT else v) for k, v in zip(_keys(content), content[1], strict=True)]
    pairs = [(k, v) for k, v in pairs if v is not _LEFT]
    return ([k for k, _ in pairs] if isinstance(content[0], list) else content[0], [v for _, v in pairs])


def _same(a: Content, b: Content) -> bool:
    if a[0] != b[0] or len(a[1]) != len(b[1]):
        return False
    return all(x is y or _same_number(x, y) for x, y in zip(a[1], b[1], strict=True))


_NUMBERS = (bool, int, float, complex, str, bytes, np.generic)


def _same_number(a: object, b: object) -> bool:
    return type(a) is type(b) and isinstance(a, _NUMBERS) and bool(a == b or (a != a and b != b))


def _first_difference(before: Content, now: Content) -> tuple[object, object]:
    """Returns the first key that has another value, came new or is gone, with its value now."""
    old = dict(zip(_keys(before), before[1], strict=True))
    new = dict(zip(_keys(now), now[1], strict=True))
    for key, value in new.items():
        if key not in old or not (old[key] is value or _same_number(old[key], value)):
            return key, value
    return next((key for key in old if key not in new), None), None


def _keys(content: Content) -> list[object]:
    keys, values = content
    return keys if isinstance(keys, list) and len(keys) == len(values) else list(range(len(values)))
