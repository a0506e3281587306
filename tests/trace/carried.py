"""Random programs that keep state in a Python object, for `test_carried`.

A program is put together from a *holder* (where the state is: how it is made, read and written), a *way* (what the
program does with it, and what the answer must be), a *path* (how its body is reached) and a kind of value.
"""

import itertools
import linecache
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from textwrap import indent
from typing import Any

import numpy as np

N = 8
X = np.arange(1, N + 1, dtype=np.float32)

PRELUDE = """
import array, collections, contextlib, contextvars, dataclasses, functools
import io, itertools, random, threading, types, weakref
import jax
import jax.numpy as jnp
import numpy as np
import qdtrace as qd

@dataclasses.dataclass
class Plain:
    v: object
    w: object = 1.0

@dataclasses.dataclass(frozen=True)
class Frozen:
    v: object
    w: object = 1.0

@qd.dataclass
class Tree:
    v: object
    w: object

class Slotted:
    __slots__ = ("v",)

class SlottedChild(Slotted):
    __slots__ = ()

class Hidden:
    def __init__(self):
        self._v = 0.0
    @property
    def v(self):
        return self._v
    @v.setter
    def v(self, value):
        self._v = value

class Proxy:
    def __init__(self):
        object.__setattr__(self, "_held", {})
    def __getattr__(self, name):
        return self._held[name]
    def __setattr__(self, name, value):
        self._held[name] = value

class Items(list):
    pass

class Bag(dict):
    pass

class Shared:
    v = 0.0

class Counter:
    v = 0.0
    def add(self, value):
        self.v = self.v + value
        return self.v

class Kept:
    def __init__(self):
        self.held = 0.0
    def __get__(self, one, kind=None):
        return self.held
    def __set__(self, one, value):
        self.held = value

class Described:
    v = Kept()

class Meta(type):
    v = 0.0

class Made(metaclass=Meta):
    pass

class Key:
    pass

class Once:
    def __new__(cls):
        cls.one = getattr(cls, "one", None) or object.__new__(cls)
        return cls.one

Pair = collections.namedtuple("Pair", "v w")
MODULE = types.ModuleType("carried_module")
VARIABLE = contextvars.ContextVar("v")
LOCAL = threading.local()
G = {}
GLOBAL = 0.0
REGISTRY = {}
WORKS = {}

def with_default(value=None, box=[0.0]):
    if value is not None:
        box[0] = value
    return box[0]

def with_attribute():
    return with_attribute.v

def put_global(value):
    global GLOBAL
    GLOBAL = value

def make_closure(start):
    v = start
    def get():
        return v
    def put(value):
        nonlocal v
        v = value
    return get, put

def make_generator(start):
    v = start
    while True:
        sent = yield v
        if sent is not None:
            v = sent

def rows(n):
    for i in qd.range(n):
        yield i

def inner_rows(n):
    for i in rows(n):
        yield i

def foreach(n, body):
    for i in qd.range(n):
        body(i)

class Grid:
    def rows(self, n):
        for i in qd.range(n):
            yield i

@contextlib.contextmanager
def inside(c):
    with qd.when(c):
        yield

@contextlib.contextmanager
def outside(c):
    with qd.when(~c):
        pass
    with qd.otherwise():
        yield

class Inside:
    def __init__(self, c):
        self._when = qd.when(c)
    def __enter__(self):
        return self._when.__enter__()
    def __exit__(self, *what):
        return self._when.__exit__(*what)
"""


@dataclass(frozen=True)
class Holder:
    """Where the state is. `{v}` stands for a value."""

    make: str
    read: str
    write: str
    grows: bool = False
    """Each write adds an item."""
    constants: bool = False
    """Holds no traced values."""
    local: bool = False
    """A variable of the program: a function inside must declare it."""


HOLDERS: dict[str, Holder] = {
    "variable": Holder("s = {v}", "s", "s = {v}", local=True),
    "tuple": Holder("s = ({v}, 1)", "s[0]", "s = ({v}, 1)", local=True),
    "namedtuple": Holder("s = Pair({v}, 1)", "s.v", "s = s._replace(v={v})", local=True),
    "list": Holder("s = [{v}]", "s[0]", "s[0] = {v}"),
    "list end": Holder("s = [{v}]", "s[-1]", "s.append({v})", grows=True),
    "list slice": Holder("s = [{v}, 1.0]", "s[0]", "s[:1] = [{v}]"),
    "list in a tuple": Holder("s = (1, [{v}])", "s[1][0]", "s[1][0] = {v}"),
    "list pushed": Holder("s = [{v}]", "s[0]", "s.insert(0, {v}); s.pop()"),
    "rotated": Holder("s = collections.deque([{v}])", "s[0]", "s.rotate(1); s[0] = {v}"),
    "bound append": Holder("s = [{v}]; push = s.append", "s[-1]", "push({v})", grows=True),
    "setitem": Holder("s = [{v}]; put = functools.partial(s.__setitem__, 0)", "s[0]", "put({v})"),
    "dict": Holder("s = {{'a': {v}}}", "s['a']", "s['a'] = {v}"),
    "dict update": Holder("s = {{'a': {v}}}", "s['a']", "s.update(a={v})"),
    "dict of lists": Holder("s = {{'a': [{v}]}}", "s['a'][0]", "s['a'][0] = {v}"),
    "defaultdict": Holder("s = collections.defaultdict(float, a={v})", "s['a']", "s['a'] = {v}"),
    "ordered": Holder("s = collections.OrderedDict(a={v})", "s['a']", "s['a'] = {v}"),
    "user dict": Holder("s = collections.UserDict(a={v})", "s['a']", "s['a'] = {v}"),
    "chain map": Holder("s = collections.ChainMap({{'a': {v}}})", "s['a']", "s['a'] = {v}"),
    "deque": Holder("s = collections.deque([{v}], maxlen=1)", "s[0]", "s.append({v})"),
    "derived list": Holder("s = Items([{v}])", "s[0]", "s[0] = {v}"),
    "derived dict": Holder("s = Bag(a={v})", "s['a']", "s['a'] = {v}"),
    "attribute of a dict": Holder("s = Bag(); s.v = {v}", "s.v", "s.v = {v}"),
    "namespace": Holder("s = types.SimpleNamespace(v={v})", "s.v", "s.v = {v}"),
    "nested": Holder("s = types.SimpleNamespace(b=types.SimpleNamespace(c={v}))", "s.b.c", "s.b.c = {v}"),
    "object in a list": Holder("s = [Plain({v})]", "s[0].v", "s[0].v = {v}"),
    "dataclass": Holder("s = Plain({v})", "s.v", "s.v = {v}"),
    "dataclass made anew": Holder("s = Plain({v})", "s.v", "s = Plain({v}, s.w)", local=True),
    "frozen made anew": Holder("s = Frozen({v})", "s.v", "s = dataclasses.replace(s, v={v})", local=True),
    "frozen forced": Holder("s = Frozen({v})", "s.v", "object.__setattr__(s, 'v', {v})"),
    "pytree made anew": Holder("s = Tree({v}, 1.0)", "s.v", "s = Tree({v}, s.w)", local=True),
    "pytree": Holder("s = Tree({v}, 1.0)", "s.v", "s.v = {v}"),
    "slots": Holder("s = Slotted(); s.v = {v}", "s.v", "s.v = {v}"),
    "inherited slots": Holder("s = SlottedChild(); s.v = {v}", "s.v", "setattr(s, 'v', {v})"),
    "property": Holder("s = Hidden(); s.v = {v}", "s.v", "s.v = {v}"),
    "proxy": Holder("s = Proxy(); s.v = {v}", "s.v", "s.v = {v}"),
    "descriptor": Holder("s = Described(); s.v = {v}", "s.v", "s.v = {v}"),
    "metaclass": Holder("Meta.v = {v}", "Made.v", "Meta.v = {v}"),
    "weak keys": Holder("k = Key(); s = weakref.WeakKeyDictionary({{k: {v}}})", "s[k]", "s[k] = {v}"),
    "object in a closure": Holder("s = Plain({v}); get = lambda: s.v", "get()", "s.v = {v}"),
    "alias": Holder("s = [{v}]; t = [s]", "t[0][0]", "s[0] = {v}"),
    "vars": Holder("s = Plain({v})", "s.v", "vars(s)['v'] = {v}"),
    "class attribute": Holder("Shared.v = {v}", "Shared.v", "Shared.v = {v}"),
    "attribute of the class": Holder("s = Shared(); Shared.v = {v}", "s.v", "type(s).v = {v}"),
    "singleton": Holder("Once().v = {v}", "Once().v", "Once().v = {v}"),
    "module": Holder("MODULE.v = {v}", "MODULE.v", "MODULE.v = {v}"),
    "global dict": Holder("G['v'] = {v}", "G['v']", "G['v'] = {v}"),
    "global": Holder("put_global({v})", "GLOBAL", "put_global({v})"),
    "globals": Holder("globals()['GLOBAL'] = {v}", "GLOBAL", "globals()['GLOBAL'] = {v}"),
    "closure": Holder("get, put = make_closure({v})", "get()", "put({v})"),
    "closure in a dict": Holder("s = dict(zip('gp', make_closure({v})))", "s['g']()", "s['p']({v})"),
    "partial": Holder("s = [{v}]; get = functools.partial(s.__getitem__, 0)", "get()", "s[0] = {v}"),
    "lambda": Holder("s = [{v}]; get = lambda: s[0]", "get()", "s[0] = {v}"),
    "default": Holder("with_default({v})", "with_default()", "with_default({v})"),
    "function attribute": Holder("with_attribute.v = {v}", "with_attribute()", "with_attribute.v = {v}"),
    "method": Holder("s = Hidden(); s.v = {v}; get, put = type(s).v.fget, type(s).v.fset", "get(s)", "put(s, {v})"),
    "generator": Holder("s = make_generator({v}); box = [next(s)]", "next(s)", "s.send({v})"),
    "context variable": Holder("VARIABLE.set({v})", "VARIABLE.get()", "VARIABLE.set({v})"),
    "thread local": Holder("LOCAL.v = {v}", "LOCAL.v", "LOCAL.v = {v}"),
    "array": Holder("s = np.full(1, {v})", "float(s[0])", "s[0] = {v}", constants=True),
    "array view": Holder("t = np.full((2, 2), {v}); s = t[0]", "float(t[0, 0])", "s[:] = {v}", constants=True),
    "array in place": Holder("s = np.full(1, {v})", "float(s[0])", "np.copyto(s, np.full(1, {v}))", constants=True),
    "large array": Holder("s = np.full(20000, {v})", "float(s[777])", "s[777] = {v}", constants=True),
    "typed array": Holder("s = array.array('d', [{v}])", "s[0]", "s[0] = {v}", constants=True),
    "bytes": Holder("s = bytearray([int({v})])", "float(s[0])", "s[0] = int({v})", constants=True),
    "set": Holder("s = {{float({v})}}", "max(s)", "t = float({v}); s.clear(); s.add(t)", constants=True),
    "text": Holder(
        "s = io.StringIO(); s.write(str({v}))",
        "float(s.getvalue())",
        "t = str({v}); s.seek(0); s.truncate(); s.write(t)",
        constants=True,
    ),
    "memo": Holder("WORKS['v'] = {v}", "WORKS['v']", "WORKS['v'] = {v}", constants=True),
}

DRAWS: dict[str, tuple[str, str]] = {
    "count": ("s = itertools.count(1)", "float(next(s))"),
    "iterator": ("s = iter([1.0, 2.0, 3.0, 4.0])", "next(s)"),
    "short iterator": ("s = iter([1.0])", "next(s)"),
    "cycle": ("s = itertools.cycle([1.0, 2.0])", "next(s)"),
    "zip": ("s = zip([1.0, 2.0, 3.0, 4.0], 'abcd')", "next(s)[0]"),
    "map": ("s = map(float, range(9))", "next(s)"),
    "enumerate": ("s = enumerate('abcdefgh')", "float(next(s)[0])"),
    "reversed": ("s = reversed([1.0, 2.0, 3.0])", "next(s)"),
    "dict iterator": ("s = iter({1.0: 1, 2.0: 2, 3.0: 3})", "next(s)"),
    "generator expression": ("s = (float(k) for k in range(9))", "next(s)"),
    "pop": ("s = [1.0, 2.0, 3.0, 4.0]", "s.pop()"),
    "popped item": ("s = {1.0: 1, 2.0: 2, 3.0: 3}", "s.popitem()[0]"),
    "length": ("s = []", "float([s.append(1), len(s)][1])"),
    "dict length": ("s = {}", "float([s.setdefault(len(s), 1), len(s)][1])"),
    "set size": ("s = set()", "float([s.add(len(s)), len(s)][1])"),
    "random": ("s = random.Random(0)", "s.random()"),
    "module random": ("", "random.random()"),
    "numpy random": ("", "float(np.random.random())"),
    "numpy generator": ("s = np.random.default_rng(0)", "float(s.normal())"),
    "numpy state": ("s = np.random.RandomState(0)", "float(s.normal())"),
    "drawn by a helper": ("s = itertools.count(1); draw = lambda: float(next(s))", "draw()"),
    "counter": ("s = Counter()", "s.add(1.0)"),
    "key of an object": ("s = Plain(jax.random.key(0))", "draw_from(s)"),
    "random key": ("G['k'] = jax.random.key(0)", "split_off()"),
}
SPLIT = """
def split_off():
    G['k'], sub = jax.random.split(G['k'])
    return jax.random.uniform(sub)

def draw_from(s):
    s.v, sub = jax.random.split(s.v)
    return jax.random.uniform(sub)
"""

LOOPS = {
    "for": "for i in qd.range(N):",
    "generator": "for i in rows(N):",
    "generators": "for i in inner_rows(N):",
    "method": "for i in Grid().rows(N):",
    "ndrange": "for (i,) in qd.ndrange(N):",
    "callback": "",
    "serial": "for i in qd.range(N, serial=True):",
    "except": "for i in qd.range(N):\n  try:\n    raise KeyError\n  except KeyError:",
    "finally": "for i in qd.range(N):\n  try:\n    pass\n  finally:",
    "suppress": "for i in qd.range(N):\n  with contextlib.suppress(KeyError):",
    "while": "for i in qd.range(N):\n  c = qd.local(0)\n  for _ in qd.while_(lambda: c < 1):\n    c += 1",
}
CONDITIONS = {
    "when": "with qd.when({c}):",
    "otherwise": "with qd.when(~({c})):\n    pass\nwith qd.otherwise():",
    "manager": "with inside({c}):",
    "manager of otherwise": "with outside({c}):",
    "class": "with Inside({c}):",
    "stack": "with contextlib.ExitStack() as stack:\n    stack.enter_context(qd.when({c}))",
    "two": "with qd.when({c}), qd.when(x[i] > -1):",
}
WAYS = ("carried", "inner", "fresh", "inside", "scratch", "condition", "within", "after", "again")


@dataclass(frozen=True, eq=False)
class Program:
    """A program and what must become of it."""

    name: str
    source: str
    expected: Any
    """The answer; None when it must be refused."""

    def function(self) -> Callable[..., Any]:
        file = f"<carried {self.name}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        module = sys.modules["carried_program"] = types.ModuleType("carried_program")
        module.__file__ = "<carried prelude>"
        space: dict[str, Any] = vars(module)
        space["N"] = N
        exec(compile(PRELUDE + SPLIT, "<carried prelude>", "exec"), space)
        exec(compile(self.source, file, "exec"), space)
        return space["program"]


def _loop(path: str, body: str, holder: Holder | None, name: str = "i") -> str:
    """The loop with this body."""
    if path == "callback":
        declared = "    nonlocal s\n" if holder is not None and holder.local else ""
        return f"def body({name}):\n{declared}{indent(body, '    ')}\nforeach(N, body)"
    return f"{LOOPS[path]}\n{indent(body, '    ')}"  # nested ones have two spaces a level, and the body at four


def _program(name: str, lines: str, expected: Any) -> Program:
    return Program(name, f"def program(x):\n{indent(lines, '    ')}\n    return x\n", expected)


def holder_program(name: str, way: str, path: str, condition: str, traced: bool) -> Program | None:
    """The program for a holder; None where the parts do not go together."""
    holder = HOLDERS[name]
    if traced and holder.constants:
        return None
    start = "0.0" if traced or not holder.constants else "1.0"
    first = float(start)
    read = holder.read
    step = "x[i]" if traced else "1.0"

    def make(value: str) -> str:
        return holder.make.format(v=value)

    def write(value: str) -> str:
        return holder.write.format(v=value)

    title = f"{name}, {way}, {path}, {condition}, {'traced' if traced else 'constant'}"
    local_callback = path == "callback" and holder.local
    match way:
        case "carried":
            body = f"{write(f'{read} + {step}')}\nx[i] = {read}"
            return _program(title, f"{make(start)}\n{_loop(path, body, holder)}", None)
        case "inner":
            if path in ("ndrange", "serial"):
                return None
            inner = f"for j in qd.range(3):\n    {write(f'{read} + {step}')}\n    x[i] = {read}"
            return _program(title, _loop(path, f"{make(start)}\n{inner}", None), None)
        case "fresh":  # written before it is read
            if traced and holder.grows:
                return None
            value = "x[i] * 2" if traced else "3.0"
            body = f"{write(value)}\nx[i] = x[i] + {read}"
            expected = X + (X * 2 if traced else 3)
            return _program(title, f"{make(start)}\n{_loop(path, body, holder)}", expected)
        case "inside":  # made anew by each iteration
            if local_callback:
                body = f"{make(start)}\n{write(f'{read} + {step}')}\nx[i] = {read}"
                return _program(title, _loop(path, body, None), first + (X if traced else np.ones_like(X)))
            body = f"{make(start)}\n{write(f'{read} + {step}')}\nx[i] = {read}"
            return _program(title, _loop(path, body, None), first + (X if traced else np.ones_like(X)))
        case "scratch":  # used by one statement only, and put back
            body = f"x[i] = x[i] + {read}\n{write('5.0')}\nx[i] = x[i] * {read}\n{write(start)}"
            if holder.grows:
                return None
            return _program(title, f"{make(start)}\n{_loop(path, body, holder)}", (X + first) * 5)
        case "condition":
            if condition in ("stack", "class") and holder.local and path == "callback":
                return None
            block = CONDITIONS[condition].format(c="x[i] > 3") + f"\n    {write('7.0')}"
            body = f"{make(start)}\n{block}\nx[i] = x[i] + {read}"
            return _program(title, _loop(path, body, None), None)
        case "within":  # all inside of the condition
            value = "x[i] * 2" if traced else "7.0"
            block = CONDITIONS[condition].format(c="x[i] > 3")
            block += f"\n    {make(start)}\n    {write(value)}\n    x[i] = x[i] + {read}"
            expected = np.where(X > 3, X + (X * 2 if traced else 7), X)
            return _program(title, _loop(path, block, None), expected)
        case "after":
            if traced:
                return None
            body = f"{write(f'{read} + 1.0')}\nx[i] = x[i] + 1.0"
            loop = _loop(path, body, holder)
            return _program(title, f"{make(start)}\n{loop}\nx[0] = {read}", None)
        case _:  # "again": set anew after the loop
            if traced:
                return None
            body = f"{write('4.0')}\nx[i] = x[i] + {read}"
            expected = X + 4
            expected[0] = 9
            return _program(
                title, f"{make(start)}\n{_loop(path, body, holder)}\n{write('9.0')}\nx[0] = {read}", expected
            )


def draw_program(name: str, way: str, path: str, condition: str) -> Program | None:
    """The program for something that gives another value each time."""
    make, draw = DRAWS[name]
    make = make or "pass"
    title = f"{name}, {way}, {path}, {condition}"
    if way == "carried":
        return _program(title, f"{make}\n{_loop(path, f'x[i] = x[i] + {draw}', None)}", None)
    if way == "inner":
        if path in ("ndrange", "serial"):
            return None
        inner = f"for j in qd.range(3):\n    x[i] = x[i] + {draw}"
        return _program(title, _loop(path, f"{make}\n{inner}", None), None)
    if way == "condition" and "random" not in name and "numpy" not in name and name != "short iterator":
        block = CONDITIONS[condition].format(c="x[i] > 3") + f"\n    x[i] = {draw}"
        return _program(title, _loop(path, f"{make}\n{block}\nx[i] = x[i] + {draw}", None), None)
    if way == "fresh":  # drawn before the loop
        return _program(title, f"{make}\nk = {draw}\n{_loop(path, 'x[i] = x[i] + 0 * k', None)}", X)
    return None


def _makers() -> Iterator[Callable[[], Program | None]]:
    """What makes each of them, or None where the parts do not go together."""
    kinds = itertools.product(WAYS, LOOPS, CONDITIONS)
    for way, path, condition in kinds:
        if way not in ("condition", "within") and condition != "when":
            continue
        for name in HOLDERS:
            for traced in (True, False):
                yield partial(holder_program, name, way, path, condition, traced)
        for name in DRAWS:
            yield partial(draw_program, name, way, path, condition)


def programs() -> Iterator[Program]:
    """All of them."""
    return (program for make in _makers() if (program := make()) is not None)


def sample(count: int, seed: int) -> list[Program]:
    """Some of them, with every holder and every way, loop and condition among them. Few others are made."""
    makers = [*_makers()]
    random.Random(seed).shuffle(makers)
    wanted = {(k, part) for k, parts in enumerate(([*HOLDERS, *DRAWS], WAYS, LOOPS, CONDITIONS)) for part in parts}
    chosen: list[Program] = []
    for program in filter(None, (make() for make in makers)):
        parts = {*enumerate(program.name.split(", ")[:4])}
        if len(chosen) < count or parts & wanted:
            chosen.append(program)
            wanted -= parts
        elif not wanted:
            break
    return chosen
