"""The key of a function that its user calls pure, made without running it (docs/design/0039-pure.md).

It is a hash of what `pickle` writes of the function, where functions, classes and modules of the user are written with
their code, the files that it is in, and what they hold and name; those of libraries by name and version. What cannot be
pickled has no key.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import pickle
import re
import sys
import sysconfig
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.trace.diagnosis.names import named_by

if TYPE_CHECKING:
    from types import CellType
    from typing import Any, TypeGuard

    from jax import Array
    from jax.core import ShapedArray

    AnyArray = np.ndarray | np.generic | jax.Array

LARGE = 1 << 20
"""Most bytes of an array that is looked at."""
_MOST = 1000
"""Most functions and classes of the user that are looked at."""
_FOLDERS = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(os.path.dirname(str(m.__file__)) + os.sep for m in (jax, np, sys.modules["qdtrace"])),
    "<frozen ",
)
"""Folders of libraries: their files change with their versions alone."""
_MEMBERS = (FunctionType, classmethod, staticmethod, property)
_OWN_PICKLES = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__")


class NoKeyError(Exception):
    """Something has no description; the text says what."""


class Description(pickle.Pickler):
    """Describes values: `digest` stands for all that was described so far."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        super().__init__(self._out, 5)
        self._files: dict[str, str] = {}
        self._codes: dict[str, None] = {}
        self._names: dict[str, None] = {}
        """Names in code, of attributes as well."""
        self._modules: dict[str, ModuleType] = {}
        """Modules of the user that code names."""
        self._takes_tracers = False

    def add(self, *values: object, tracers: bool = False) -> None:
        """Describes values; `tracers` among them, by their types, are arguments. Raises NoKeyError."""
        self._takes_tracers = tracers
        try:
            self.dump(values)
        except NoKeyError:
            raise
        except Exception as error:  # of `pickle`, of an array that was deleted, of objects nested deeply
            raise NoKeyError(re.sub(" at 0x[0-9a-f]+", "", str(error))) from None

    def digest(self) -> str:
        """Returns a hash of all that was described. Raises NoKeyError."""
        done: set[tuple[str, str]] = set()
        while new := [p for p in itertools.product(self._modules, self._names) if p not in done]:
            for name, attribute in new:
                if attribute in (held := vars(self._modules[name])):
                    self.add(name, attribute, held[attribute])
            done.update(new)
        return hashlib.sha256(self._out.getvalue()).hexdigest()

    def reducer_override(self, obj: Any, /) -> Any:
        """Returns what is written of an object that is no container or constant of Python."""
        kind: Any = type(obj)
        if obj is _of:
            return NotImplemented
        if isinstance(obj, Tracer):
            return self._tracer(obj)
        if _version(kind.__module__) is not None and (named := _named(obj)):
            return _of, named
        if _is_array(obj):
            return _array(obj)
        if kind is ModuleType:
            return self._module(obj)
        if kind is FunctionType:
            return self._function(obj)
        if isinstance(obj, type):
            return self._class(obj)
        if kind.__module__.startswith("qdtrace.") and hasattr(obj, "looks_at"):
            return _of, (kind.__name__,), obj.looks_at()
        if (parts := _parts(obj, kind)) is not None:
            return _of, (kind.__name__,), parts
        own = [v for c in kind.__mro__ for name in _OWN_PICKLES if (v := vars(c).get(name)) is not None]
        if any(_version(getattr(v, "__module__", None)) is None for v in own if isinstance(v, FunctionType)):
            raise NoKeyError(f"object of {kind.__name__}, which says how it is pickled")
        return NotImplemented

    def _tracer(self, value: Array) -> object:
        if not self._takes_tracers:
            raise NoKeyError("traced value")
        aval: ShapedArray = value.aval
        facts = [getattr(aval, name, None) for name in ("weak_type", "sharding", "vma", "memory_space")]
        return _of, (type(aval).__name__, str(aval), repr(facts))

    def _module(self, module: ModuleType) -> object:
        name, version = module.__name__, _version(module.__name__)
        if version is None:
            self._modules[name] = module
            version = self._file(getattr(module, "__file__", None))
        return _of, (name, version)

    def _function(self, f: FunctionType) -> object:
        code = f.__code__
        if code.co_filename.startswith(_FOLDERS):
            if f.__module__.startswith("qdtrace.") and hasattr(f, "looks_at"):
                return _of, (f.__name__,), f.looks_at()  # pyright: ignore[reportFunctionMemberAccess]
            text, named = f"{code.co_filename}:{code.co_firstlineno} {_stamp(code.co_filename)}", {}
        else:
            named = dict[str, object]()
            text = self._code(code, f.__globals__, named)
        held = f.__defaults__, f.__kwdefaults__, vars(f), list(map(_content, f.__closure__ or ()))
        return _of, (f.__module__, f.__qualname__, text), (held, named)

    def _code(self, code: CodeType, space: dict[str, object], named: dict[str, object]) -> str:
        """Returns a text of code and its constants, and adds what it names to `named`."""
        self._names.update(dict.fromkeys(code.co_names))
        found, package = named_by(code), str(space.get("__package__") or "")
        named |= {f"import {name}": _imported(name, package) for name in found.modules}
        named |= {name: space[name] for name in found.variables if name in space}
        constants = [self._code(c, space, named) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
        arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        variables = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        place = (code.co_filename, code.co_firstlineno, code.co_qualname, code.co_linetable)
        file = self._file(code.co_filename)
        text = repr((code.co_code, code.co_exceptiontable, constants, arguments, variables, place, file))
        return self._counted(text)

    def _class(self, kind: type) -> object:
        name, version = (kind.__module__, kind.__qualname__), _version(kind.__module__)
        if version is not None:  # made by a function of a library
            return _of, (*name, version)
        file = self._counted(self._file(getattr(sys.modules.get(kind.__module__), "__file__", None)))
        members = [
            (k, v)
            for k, v in vars(kind).items()
            if (isinstance(v, _MEMBERS) and k != "__annotate_func__")  # annotations are looked at in no version
            or not (k.startswith("__") or k == "_abc_impl" or isinstance(v, MemberDescriptorType))
        ]
        return _of, (*name, file), (type(kind), kind.__bases__, members)

    def _counted(self, text: str) -> str:
        self._codes[text] = None
        if len(self._codes) > _MOST:
            raise NoKeyError("many functions")
        return text

    def _file(self, path: str | None) -> str:
        """Returns a hash of a file of the user; nothing if it is none, as a cell of a notebook."""
        path = path or ""
        if path not in self._files:
            try:
                with open(path, "rb") as file:
                    self._files[path] = hashlib.sha256(file.read()).hexdigest()
            except OSError:
                self._files[path] = ""
        return self._files[path]


def _of(*parts: object) -> None:
    """Stands for what would make the object."""


def _is_array(value: object) -> TypeGuard[AnyArray]:  # and not one of random keys, whose dtype is JAX's own
    is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
    return is_array and isinstance(getattr(value, "dtype", None), np.dtype)


def _array(value: AnyArray) -> object:
    if value.nbytes > LARGE:
        raise NoKeyError("large array")
    of_jax = (value.weak_type, str(value.sharding), value.committed) if isinstance(value, jax.Array) else ()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise NoKeyError("array of objects")
    layout = type(value).__name__, repr(array.dtype), array.shape, array.strides, repr(array.flags)
    return _of, (*layout, of_jax, array.tobytes())


def _parts(value: Any, kind: type) -> object:
    """Returns what an object of C code is made of that `pickle` does not know, or None."""
    if kind is MethodType:
        return value.__func__, value.__self__
    if kind is classmethod or kind is staticmethod:
        return value.__func__
    if kind is property:
        return value.fget, value.fset, value.fdel
    if kind.__name__ == "_lru_cache_wrapper":
        return value.__wrapped__, value.cache_parameters()
    if kind.__name__ == "PjitFunction":
        state = value.__getstate__()
        return value.__wrapped__, state["static_argnums"], state["static_argnames"]
    return None


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return "no value"


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _imported(name: str, package: str) -> list[ModuleType]:
    """Returns the modules that an import may mean: of an absolute name, or of one in a package around the code."""
    parts = package.split(".")
    names = [".".join((*parts[:k], name)).strip(".") for k in range(len(parts) + 1)]
    found = [sys.modules[n] for n in names if n in sys.modules]
    if not found:
        raise NoKeyError(f"import of {name}")
    return found


def _named(value: object) -> tuple[str, ...]:
    """Returns module, name and version of what a library has under its name; nothing for anything else."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or (version := _version(module)) is None:
        return ()
    found = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), sys.modules.get(module))
    return (module, name, version) if found is value else ()


def _version(module: str | None) -> str | None:
    """Returns what tells versions of a library's module apart, or None if the module is the user's."""
    found = sys.modules.get(module or "builtins")
    file = getattr(found, "__file__", None)
    if file is None:
        origin = getattr(getattr(found, "__spec__", None), "origin", None)
        return "" if origin in ("built-in", "frozen") else None
    if not file.startswith(_FOLDERS):
        return None
    package = sys.modules.get((module or "").partition(".")[0])
    return f"{getattr(package, '__version__', '')} {_stamp(file)}"


def _stamp(file: str) -> str:
    """Returns size and time of a file of a library."""
    found = os.stat(file) if os.path.exists(file) else None
    return f"{found.st_size} {found.st_mtime_ns}" if found else ""
