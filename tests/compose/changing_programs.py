"""Programs of a user in which one thing changes from process to process, drawn by seed, and a process that runs them.

Each is a package of two modules. A place is a way in which a value reaches the traced function: text of a module of the
user's own, of the program, and the expression that the function has. `$` stands for the value. What the promise of
`pure` leaves out (libraries that are replaced, the environment, files) is drawn with default options alone.
"""

import itertools
import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A way in which a value reaches a function."""

    own: str = ""
    """Text of the user's other module, `conf`."""
    program: str = ""
    """Text in front of the function."""
    value: str = "2.0"
    """Expression of the function."""
    values: tuple[str, str] = ("2.0", "3.0")
    argument: str = "None"
    """A static argument of the function."""
    undo: str = ""
    """Text behind the calls."""
    promised: bool = True
    """Whether `pure` promises that it stays, or describes it."""


CLASS = "class C:\n    rate = $\n    def __init__(self): self.own = 5.0\n    def m(self): return self.rate + self.own\n"
METHODS = "class M:\n    def m(self): return $\n    @property\n    def p(self): return $\n    @classmethod\n"
METHODS += "    def c(cls): return $\n    @staticmethod\n    def s(): return $\n"
RULE = "@jax.custom_jvp\ndef ruled(v):\n    return v\nruled.defjvp(lambda p, t: (p[0], $ * t[0]))\n"
PULL = "@jax.custom_vjp\ndef pulled(v):\n    return v\npulled.defvjp(lambda v: (v, None), lambda _, t: ($ * t,))\n"
DECORATED = "def deco(by):\n    def wrap(g):\n        @functools.wraps(g)\n        def w(*a): return g(*a) * by\n"
DECORATED += "        return w\n    return wrap\n@deco($)\ndef decorated(v): return v + 1\n"
GETS = "def outer(k):\n    def inner(v): return v * k\n    return inner\n"
ORDERS = ("np.asfortranarray", "np.ascontiguousarray")
TYPES = "(2.0 if type($) is int else 3.0 if type($) is bool else 4.0)"

PLACES = {
    "global": Place(program="RATE = $\n", value="RATE"),
    "global of the other module": Place("step = $\n", value="conf.step"),
    "attribute behind `or`": Place("step = $\n", value="(NONE or conf).step"),
    "attribute behind a conditional": Place("step = $\n", value="(NONE if NONE else conf).step"),
    "method behind `and`": Place("def scale(v): return v * $\n", value="(TRUE and conf).scale(1.0)"),
    "getattr": Place("step = $\n", value="getattr(conf, 'st' + 'ep')"),
    "set by the program": Place("step = 1.0\n", "conf.step = $\n", "conf.step"),
    "read from another's": Place("import math\ntau = $\nclass inner:\n    k = tau\n", value="conf.inner.k"),
    "helper": Place("def h(v): return v * $\n", value="conf.h(1.0)"),
    "helper by name": Place("def h(v): return v * $\n", "from conf import h\n", "h(1.0)"),
    "helper of a helper": Place("def g(v): return v * $\ndef h(v): return g(v) + 1\n", value="conf.h(1.0)"),
    "helper in a table": Place("def h(v): return v * $\nTABLE = {'a': [h]}\n", value="conf.TABLE['a'][0](1.0)"),
    "helper among constants": Place(value="(lambda v: v * $)(1.0)"),
    "compiled helper": Place("@jax.jit\ndef h(v): return v * $\n", value="conf.h(1.0)"),
    "kept helper": Place("@functools.cache\ndef h(v): return v * $\n", value="conf.h(1.0)"),
    "static of a compiled helper": Place(
        program="g = functools.partial(jax.jit, static_argnums=$)(lambda v, n: 2.0 if type(v) is float else 3.0)\n",
        value="g(1.0, 1)",
        values=("0", "1"),
    ),
    "decorator": Place(DECORATED, value="conf.decorated(1.0)"),
    "default": Place(program="def h(v, k=$): return v * k\n", value="h(1.0)"),
    "default by name": Place(program="def h(v, *, k=$): return v * k\n", value="h(1.0)"),
    "attribute of a function": Place(program="def h(v): return v * h.rate\nh.rate = $\n", value="h(1.0)"),
    "variable around": Place(program=GETS + "g = outer($)\n", value="g(1.0)"),
    "bound argument": Place(program="g = functools.partial(operator.mul, $)\n", value="g(1.0)"),
    "class attribute": Place(CLASS, "c = conf.C()\n", "c.m()"),
    "attribute of an object": Place(CLASS.replace("$", "1.0"), "c = conf.C()\nc.own = $\n", "c.m()"),
    "inherited": Place(CLASS, "class D(conf.C): pass\nd = D()\n", "d.m()"),
    "bound method": Place(CLASS, "h = conf.C().m\n", "h()"),
    **{f"member {k}": Place(METHODS, "o = conf.M()\n", f"o.{k}") for k in ("m()", "p", "c()", "s()")},
    "enumeration": Place("import enum\nclass E(enum.Enum):\n    A = $\n", value="conf.E.A.value"),
    "frozen dataclass": Place(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: float = $\n", "d = conf.D()\n", "d.a"
    ),
    "slots": Place(program="class S:\n    __slots__ = ('a',)\ns = S()\ns.a = $\n", value="s.a"),
    "named tuple": Place(program="N = collections.namedtuple('N', 'a')\nn = N($)\n", value="n.a"),
    "type of a value": Place(program="n = $\n", value=TYPES.replace("$", "n"), values=("1", "True")),
    "whole number": Place(program="n = $\n", value=TYPES.replace("$", "n"), values=("1", "1.0")),
    "sign of zero": Place(program="z = $\n", value="math.copysign(2.0, z)", values=("0.0", "-0.0")),
    "complex": Place(program="z = $\n", value="z.imag", values=("2j", "3j")),
    "element of a list": Place(program="n = [1.0, $]\n", value="n[1]"),
    "order of a dict": Place(
        program="n = $\n", value="[*n.values()][0]", values=("dict(a=2., b=3.)", "dict(b=3., a=2.)")
    ),
    "array": Place(program="a = np.array([1.0, $])\n", value="float(a[1])"),
    "array of JAX": Place(program="a = jnp.array([1.0, $])\n", value="a[1]"),
    "memory order": Place(
        program="a = $(np.arange(4.0).reshape(2, 2))\n", value="float(a.ravel(order='K')[1])", values=ORDERS
    ),
    "strides": Place(
        program="a = $\n", value="float(a.strides[0])", values=("np.arange(8.0)[::2]", "np.arange(8.0)[::2].copy()")
    ),
    "dtype": Place(program="a = np.ones(2, $)\n", value="float(a.itemsize)", values=("'f4'", "'f8'")),
    "byte order": Place(
        program="a = np.ones(2, $)\n", value="2.0 * (a.dtype.byteorder == '>') + 1", values=("'>f4'", "'<f4'")
    ),
    "import in the function": Place("step = $\n", "def g():\n    import conf\n    return conf.step\n", "g()"),
    "name in the function": Place("step = $\n", "def g():\n    from conf import step\n    return step\n", "g()"),
    "static number": Place(value=TYPES.replace("$", "static"), values=("1", "True"), argument="$"),
    "static float": Place(value=TYPES.replace("$", "static"), values=("1", "1.0"), argument="$"),
    "static zero": Place(value="math.copysign(2.0, static)", values=("0.0", "-0.0"), argument="$"),
    "static text": Place(value="float(len(static))", values=("'ab'", "'abc'"), argument="$"),
    "static object": Place(CLASS.replace("$", "1.0"), "c = conf.C()\nc.own = $\n", "static.m()", argument="c"),
    "static function": Place("def h(v): return v * $\n", value="static(1.0)", argument="conf.h"),
    "static tuple": Place(value=TYPES.replace("$", "static[0]"), values=("1", "True"), argument="($,)"),
    "rule": Place(RULE, value="2.0 * conf.ruled(x0)"),
    "rule of a pull": Place(PULL, value="2.0 * conf.pulled(x0)"),
    "operation": Place(value="jnp.$(0.5)", values=("sin", "cos")),
    "operation of another module": Place("op = $\n", value="conf.op(0.5)", values=("jnp.sin", "jnp.cos")),
    "errors of NumPy": Place(
        program="np.seterr(divide=$)\n",
        value="tried(lambda: np.divide(1.0, np.zeros(1)[0]))",
        values=("'ignore'", "'raise'"),
        undo="np.seterr(divide='warn')\n",
    ),
    "setting of JAX": Place(
        program="jax.config.update('jax_numpy_dtype_promotion', $)\n",
        value="tried(lambda: jnp.int32(1) + jnp.float32(1))",
        values=("'standard'", "'strict'"),
        undo="jax.config.update('jax_numpy_dtype_promotion', 'standard')\n",
    ),
    "random bits": Place(
        program="jax.config.update('jax_default_prng_impl', $)\n",
        value="jax.random.key(0).size * len(jax.random.key_data(jax.random.key(0)))",
        values=("'threefry2x32'", "'rbg'"),
        undo="jax.config.update('jax_default_prng_impl', 'threefry2x32')\n",
    ),
    "function of a library": Place(
        program="TAKE = np.take\nnp.take = np.array([$]).take\n",
        value="float(np.take(0))",
        undo="np.take = TAKE\n",
        promised=False,
    ),
    "attribute of a library's function": Place(
        program="jnp.where.step = $\n", value="jnp.where.step", undo="del jnp.where.step\n", promised=False
    ),
    "rule of a library's function": Place(
        program="SIN = jnp.sin\njnp.sin = jax.custom_jvp(SIN)\njnp.sin.defjvp(lambda p, t: (SIN(p[0]), $ * t[0]))\n",
        value="jnp.sin(x0)",
        undo="jnp.sin = SIN\n",
        promised=False,
    ),
    "rule of a primitive": Place(
        program="TANH = ad.primitive_jvps[jax.lax.tanh_p]\n"
        "ad.primitive_jvps[jax.lax.tanh_p] = lambda p, t, **k: (jax.lax.tanh_p.bind(*p, **k), $ * t[0])\n",
        value="jnp.tanh(x0)",
        undo="ad.primitive_jvps[jax.lax.tanh_p] = TANH\n",
        promised=False,
    ),
    "shadowed builtin": Place(
        program="import builtins\nABS = abs\nbuiltins.abs = lambda v: $\n",
        value="abs(1.0)",
        undo="builtins.abs = ABS\n",
        promised=False,
    ),
    "environment": Place(
        program="os.environ['QD_TEST_RATE'] = '$'\n", value="float(os.environ['QD_TEST_RATE'])", promised=False
    ),
    "file": Place(program="open('rate.txt', 'w').write('$')\n", value="float(open('rate.txt').read())", promised=False),
}

ALONE = {"getattr"}
"""Places that have their names in texts."""
HEAD = """
import collections, functools, math, operator, os
import jax, jax.numpy as jnp, numpy as np
from jax.interpreters import ad
import qdtrace as qd
NONE, TRUE = None, True
def tried(g):
    try:
        return g() * 0 + 2.0
    except Exception:
        return 3.0
"""
JIT = """
def f(x, static):
    for i in qd.range(x.shape[0]):
        x0 = x[i]
        x[i] = x0 * x0 * ({value})
    return x
g_of_f = qd.jit(f, static_argnums=1)
run = {how}(lambda x: g_of_f(x, {argument}))
"""
VMAP = """
def f(x0):
    return x0 * x0 * ({value})
run = qd.vmap(f)
"""
CALLS = """
X = jnp.linspace(0.5, 2.0, 4)
FOUND = [run(X).tolist(), jax.grad(lambda x: run(x).sum())(X).tolist()]
"""
RUN = """
import importlib, json, sys, warnings
import jax, jax.numpy as jnp
import qdtrace as qd
warnings.simplefilter("ignore")
sys.dont_write_bytecode = True
told = []
for name in json.loads(sys.argv[1]):
    sys.path.insert(0, name)
    before = qd.stats()
    made = importlib.import_module("program_" + name)
    work = qd.stats() - before
    told.append([made.FOUND, work.hits.get("pure", 0), work.traces])
    sys.path.remove(name)
    sys.modules.pop("conf")
    jax.clear_caches()
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Drawn:
    """A program with the place that changes."""

    name: str
    change: str
    before: tuple[str, str]
    """Texts of `conf` and of the program."""
    after: tuple[str, str]


def drawn(count: int, seed: int, *, promised: bool) -> list[Drawn]:
    """Returns programs, each place changing in turn beside others that stay."""
    rng = random.Random(seed)
    names = [name for name, place in PLACES.items() if place.promised or not promised]
    rng.shuffle(names)
    changes = itertools.islice(itertools.cycle(names), count)
    return [_drawn(f"p{k}", change, rng) for k, change in enumerate(changes)]


def _drawn(name: str, change: str, rng: random.Random) -> Drawn:
    place = PLACES[change]
    plain = [n for n, p in PLACES.items() if p.promised and not p.undo and p.argument == "None"]
    plain = [n for n in plain if n not in ALONE | {change}]
    beside = rng.sample(plain, rng.randrange(3))
    shape = JIT if place.argument != "None" else rng.choice((JIT, VMAP))
    how = rng.choice(("", "jax.jit"))

    def texts(value: str) -> tuple[str, str]:
        parts = [(place, value), *((PLACES[n], PLACES[n].values[0]) for n in beside)]
        own, program, values, undo = "import functools, jax, jax.numpy as jnp\n", HEAD + "import conf\n", [], ""
        for number, (one, given) in enumerate(parts):
            filled = (text.replace("$", given) for text in (one.own, one.program, one.value))
            mine, head, value_of = (_apart(one, text, number) for text in filled)
            own, program = own + mine, program + head
            values.append(f"({value_of})")
            undo += one.undo
        argument = place.argument.replace("$", value)
        body = shape.format(value=" + ".join(values), how=how, argument=argument)
        return own, program + body + CALLS + undo

    return Drawn(name, change, texts(place.values[0]), texts(place.values[1]))


def _apart(place: Place, text: str, number: int) -> str:
    """Returns a text of a place with a number at its names, so that places of one program do not meet."""
    names = set(re.findall(r"^(?:def |class )?(\w+)(?:\(|:| = )", f"{place.own}{place.program}", re.MULTILINE))
    return re.sub(rf"\b({'|'.join(sorted(names) or ['$'])})\b", rf"\g<1>{number}", text) if number else text


def write(folder: Path, programs: list[Drawn], *, after: bool) -> None:
    """Writes the files of programs as they are before or after the change."""
    for program in programs:
        own, text = program.after if after else program.before
        (folder / program.name).mkdir(exist_ok=True)
        (folder / program.name / "conf.py").write_text(own)
        (folder / program.name / f"program_{program.name}.py").write_text(text)


def command(programs: list[Drawn]) -> list[str]:
    """Returns the command of a process that runs programs, in their folder."""
    return [sys.executable, "-c", RUN, json.dumps([p.name for p in programs])]
