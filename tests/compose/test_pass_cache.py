"""The pass cache: what is read is what was written, and whatever changes a program is another key."""

import errno
import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.runtime import cache
from qdtrace.analysis.machine import CPU, GPU
from qdtrace.autodiff import rows
from qdtrace.backend import backend
from qdtrace.compose import pass_cache, source_key, stack_budget
from qdtrace.compose.derivative import derived_for
from qdtrace.compose.pass_cache import _Reader, graph_key, kept, optimised, written
from qdtrace.config import current
from qdtrace.errors import Loc
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Literal, Stage
from qdtrace.ir.types import DType, ScalarType
from qdtrace.passes.pipelines import optimise
from qdtrace.sources import version_of
from qdtrace.tools.info import prune_cache
from qdtrace.trace import compat
from tests import fresh
from tests.autodiff.test_bodies import CASES
from tests.compose.traces import forget
from tests.selection import drawn

ROOT = Path(__file__).parents[2]

TEXT = """program p(x: ref[f32,8], n: ref[i32])
  buffer out: ref[f32,8] = -0.0:f32
  range_for i in 0:i32 : 8:i32 @"a task \\"named\\" é"
    v0: f32 = load x i
    v1: f32 = mul v0 1.5:f32
    v2: bool = lt v1 2.0:f32
    check[message="needs \\"less\\" é\\nthan 2"] v2
    store out v1 i
  return out
"""


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(source_key, "TAUGHT", {})  # other tests of this process leave import rules
    kept = {"offline_cache_passes": True, "offline_cache_dir": tmp_path}
    with qd.options(offline_cache=True, **kept):
        yield tmp_path


def _program(text: str = TEXT, lines: int = 0):
    locs = {k: Loc("/f.py", k + lines, "f") for k in range(1, 10)}
    return parse_program(text, locs=locs)


def _read(data, key):
    import io

    return _Reader(io.BytesIO(data), key.locs).load()


def test_a_second_look_runs_no_pass_and_gives_the_same(on_disk):
    program = _program()
    before = qd.stats()
    made = optimised(program, current())
    again = optimised(_program(), current())
    work = qd.stats() - before
    assert (work.pipelines, work.hits, work.misses) == (1, {"passes": 1}, {"passes: not there": 1})
    assert again is not made
    assert print_program(again, locs=True) == print_program(made, locs=True)
    assert print_program(made, locs=True) == print_program(optimise(program, current()), locs=True)
    assert again.stage is Stage.FINAL


def test_pruning_keeps_graphs_of_this_version(on_disk, capsys):
    optimised(_program(), current())
    (file,) = on_disk.iterdir()
    assert prune_cache() == 0
    assert capsys.readouterr().out == f"{on_disk}: 0 files removed\n"
    assert file.exists()


def test_lines_that_moved_are_the_new_ones(on_disk):
    optimised(_program(), current())
    before = qd.stats()
    moved = optimised(_program(lines=100), current())
    assert (qd.stats() - before).hits == {"passes": 1}
    lines = {e.loc.line for e in moved.all_eqns if e.loc} | {t.loc.line for t in moved.tasks if t.loc}
    assert lines
    assert min(lines) > 100


OTHERS = {
    "number": _program(TEXT.replace("1.5:f32", "1.25:f32")),
    "sign of zero": _program(TEXT.replace("= -0.0:f32", "= 0.0:f32")),
    "infinity": _program(TEXT.replace("1.5:f32", "inf:f32")),
    "name": _program(TEXT.replace("program p", "program q")),
    "message": _program(TEXT.replace("than 2", "than two")),
    "type": _program(TEXT.replace("f32", "f64")),
    "name of a task": _program(TEXT.replace("named", "called")),
    "name of a buffer": _program(TEXT.replace("out", "other")),
    "stage": replace(_program(), stage=Stage.CANONICAL),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_graph_is_another_key(other):
    assert graph_key(other).digest != graph_key(_program()).digest


def test_lines_that_become_one_are_another_key():
    one = parse_program(TEXT, locs=dict.fromkeys(range(1, 10), Loc("/f.py", 3)))
    assert graph_key(one).digest != graph_key(_program()).digest
    assert graph_key(_program(lines=7)).digest == graph_key(_program()).digest


BITS = {DType.f32: np.uint32, DType.f64: np.uint64, DType.f16: np.uint16, DType.bf16: np.uint16}
PAYLOADS = {DType.f32: 0x7FC12345, DType.f64: 0xFFF8000012345678, DType.f16: 0x7E12, DType.bf16: 0x7FC1}


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_bits_of_numbers_are_kept(dtype):
    """NaN with a payload, signed zeros, infinities, the smallest number."""
    (minus_zero, inf) = (np.asarray(v, dtype.numpy).view(BITS[dtype]) for v in (-0.0, np.inf))
    keys = set()
    for bits in (PAYLOADS[dtype], int(minus_zero), 0, int(inf), 1):
        value = Literal(np.asarray(bits, BITS[dtype]).view(dtype.numpy)[()], ScalarType(dtype))
        program = _program()
        program = replace(program, initial=dict.fromkeys(program.buffers, value))
        key = graph_key(program)
        keys.add(key.digest)
        (read,) = _read(written(program, key.locs), key).initial.values()
        assert np.asarray(read.value).view(BITS[dtype]) == bits
        assert read.dtype is dtype
    assert len(keys) == 5


@pytest.mark.parametrize(
    "changed",
    [{"machine": GPU}, {"until": Stage.CANONICAL}, {"differentiable": True}, {"fast_math": False}, {"num_threads": 3}],
    ids=str,
)
def test_other_options_and_machines_are_looked_up_apart(on_disk, changed):
    optimised(_program(), current())
    before = qd.stats()
    options = {k: v for k, v in changed.items() if k in ("fast_math", "num_threads")}
    with qd.options(**options):
        optimised(_program(), current(), **{k: v for k, v in changed.items() if k not in options})
    assert (qd.stats() - before).misses == {"passes: not there": 1}


def test_reasons_of_misses(on_disk):
    program = _program()
    for options, reason in (
        ({"offline_cache": False}, "off"),
        ({"offline_cache_passes": False}, "off"),
        ({"verify": True}, "passes are watched"),
    ):
        before = qd.stats()
        with qd.options(**options):
            optimised(program, current())
        assert (qd.stats() - before).misses == {f"passes: {reason}": 1}
    assert list(on_disk.iterdir()) == []


def test_objects_of_users_are_neither_written_nor_read(on_disk):
    key = graph_key(_program())
    assert written(lambda: None, key.locs) is None
    assert written([Loc("/other.py", 1)], key.locs) is None
    with pytest.raises(Exception, match=r"posix\.system is no part of a graph"):
        _read(written(os.system, key.locs), key)
    before = qd.stats()
    assert [kept("passes", lambda: key, ("test",), current(), lambda: os.getpid) for _ in range(2)] == [os.getpid] * 2
    assert (qd.stats() - before).misses == {"passes: not there": 1, "passes: not readable": 1}


def test_a_graph_with_an_object_of_python_is_not_kept(on_disk):
    program = _program()
    (task,) = program.tasks
    named = replace(program, tasks=(replace(task, hints={"fuse": "no"}),))
    held = replace(program, tasks=(replace(task, hints={"fuse": object()}),))
    assert graph_key(named).reason == ""
    assert graph_key(held).reason == "object of Python in the graph"
    before = qd.stats()
    optimised(held, current())
    assert (qd.stats() - before).misses == {"passes: object of Python in the graph": 1}
    assert list(on_disk.iterdir()) == []


def _twice(function, *args):
    """Returns the values that a function has with nothing on disk and then with everything, and the work of both."""
    values, works = [], []
    for _ in range(2):
        forget()
        before = qd.stats()
        values.append(jax.tree.map(np.asarray, function(*args)))
        works.append(qd.stats() - before)
    return values, works


def _same(got, want):
    assert all(a.tobytes() == b.tobytes() for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))


def _chain(scale, trips=None):
    """Three tasks, of which the second has a loop in it whose states are kept if it has `trips`."""

    def chain(x, n):
        a, b = qd.empty(x.shape, x.dtype), qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            a[i] = jnp.sin(x[i] * scale) * x[(i + 1) % x.shape[0]]
        for i in qd.range(x.shape[0]):
            v = qd.local(a[(i + 2) % x.shape[0]])
            if trips:
                for _ in qd.range(n):
                    v.value = jnp.sin(v.value) * a[i]
            b[i] = v.value
        for i in qd.range(x.shape[0]):
            x[i] = b[(i + 3) % x.shape[0]] * x[i]
        return x

    return qd.jit(chain)


X = np.linspace(0.1, 1, 7)
TRANSFORMS = {
    "gradient": lambda f: jax.jit(jax.grad(lambda x: f(x, 3).sum())),
    "value and gradient": lambda f: jax.jit(jax.value_and_grad(lambda x: f(x, 3).sum())),
    "tangent": lambda f: jax.jit(lambda x: jax.jvp(lambda x: f(x, 3), (x,), (2 * x,))),
    "hessian": lambda f: jax.jit(jax.hessian(lambda x: f(x, 3).sum())),
    "gradients of many": lambda f: lambda x: jax.vmap(jax.grad(lambda x: f(x, 3).sum()))(jnp.stack([x, 2 * x, -x])),
    "part of the results": lambda f: jax.jit(jax.jacrev(lambda x: f(x, 3)[:2])),
}


@pytest.mark.sample(full=4)
@pytest.mark.parametrize("trips", [None, 3])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.full
def test_a_second_process_derives_nothing_and_has_the_same_bits(on_disk, name, trips):
    (cold, warm), (made, work) = _twice(TRANSFORMS[name](_chain(1.25, trips)), X)
    _same(warm, cold)
    assert made.derivations > 0
    assert made.misses["derivations: not there"] >= made.derivations
    assert (work.derivations, work.pipelines, work.misses) == (0, 0, {})
    with qd.options(offline_cache_passes=False):
        (plain, _), (off, _) = _twice(TRANSFORMS[name](_chain(1.25, trips)), X)
    _same(plain, cold)
    assert (off.derivations, off.pipelines) == (made.derivations, made.pipelines)


@pytest.mark.full
@pytest.mark.sample(2, full=3)
@pytest.mark.parametrize("name", CASES)
def test_gradients_from_disk_have_the_same_bits(on_disk, name):
    make, args, bounds, wrt = CASES[name]
    f = make()
    f = f if name == "one_array_as_two_arguments" else qd.jit(f, options={"bounds": bounds})

    def total(*args):
        return sum(y.sum() for y in jax.tree.leaves(f(*args)))

    (cold, warm), (_, work) = _twice(jax.jit(jax.grad(total, wrt)), *args)
    _same(warm, cold)
    assert (work.derivations, work.pipelines, work.misses) == (0, 0, {})


@pytest.mark.full
def test_a_derivation_for_another_machine_is_another_key(on_disk):
    texts = {}
    for turn in range(2):
        forget()
        jaxpr = jax.make_jaxpr(jax.grad(lambda x: _chain(2.25, 3)(x, 3).sum()))(X)
        (spec,) = [e.params["spec"] for e in compat.all_eqns(jaxpr.jaxpr.eqns) if "spec" in e.params]
        before = qd.stats()
        texts[turn] = [print_program(derived_for(spec, machine).program, locs=True) for machine in (CPU, GPU)]
        assert (qd.stats() - before).derivations == (0 if turn else 2)
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


@pytest.mark.full
def test_storage_choices_are_read_with_the_lines_of_now(on_disk):
    lows = []
    for _ in range(2):
        forget()
        lows.append(qd.jit(jax.grad(lambda x: _chain(3.25, 3)(x, 3).sum())).lower(X).storage)
    assert lows[0]
    assert list(map(str, lows[1])) == list(map(str, lows[0]))


def _memory(monkeypatch, nbytes):
    monkeypatch.setattr(stack_budget, "free_memory", lambda: nbytes)


@pytest.mark.full
@pytest.mark.parametrize(("trips", "reason"), [(None, {}), (3, {"derivations: other memory": 1})], ids=["none", "loop"])
def test_another_budget_derives_again_what_has_choices(on_disk, monkeypatch, trips, reason):
    function = jax.jit(jax.grad(lambda x: _chain(4.25, trips)(x, 3).sum()))
    _memory(monkeypatch, 1 << 32)
    _twice(function, X)
    _memory(monkeypatch, 1 << 22)
    _, (work, again) = _twice(function, X)
    misses = {k: n for k, n in work.misses.items() if k.startswith("derivations")}
    assert (misses, work.derivations) == (reason, bool(trips))
    assert again.misses == {}


def _swapped(x):
    """Loops that load what they change: their values are on a tape, which less memory refuses."""
    for i in qd.range(x.shape[0]):
        for k in qd.range(4000):
            j = (i + k) % 7
            x[i, j] = jnp.sin(x[i, j]) + x[i, (j + 1) % 7]
    return x


@pytest.mark.full
def test_what_has_no_room_now_is_refused(on_disk, monkeypatch):
    gradient = jax.grad(lambda x: qd.jit(_swapped)(x).sum())
    x = np.ones((64, 40000), np.float32)
    monkeypatch.setattr(rows, "ROW_BYTES", 0)
    _memory(monkeypatch, 1 << 34)
    work = _lowered(gradient, x)
    assert work.derivations == 1
    work = _lowered(gradient, x)
    assert (work.derivations, work.misses) == (0, {})
    _memory(monkeypatch, 1 << 10)
    for _ in range(2):
        with pytest.raises(qd.GradientError, match="bytes an iteration of memory that loops load and change"):
            _lowered(gradient, x)
    _memory(monkeypatch, 1 << 34)
    assert _lowered(gradient, x).misses == {}


def _lowered(function, *args):
    forget()
    before = qd.stats()
    jax.jit(function).lower(*args)
    return qd.stats() - before


@pytest.mark.full
@pytest.mark.parametrize("kind", ["truncated", "empty", "zeros", "another's"])
def test_damaged_files_are_made_anew(on_disk, kind):
    function = jax.jit(jax.grad(lambda x: _chain(5.25)(x, 3).sum()))
    (cold, _), _ = _twice(function, X)
    files = sorted(on_disk.glob("*.qdo"))
    contents = [file.read_bytes() for file in files]
    for k, file in enumerate(files):
        data = contents[k]
        changed = {"truncated": data[:-1], "empty": b"", "zeros": bytes(len(data)), "another's": contents[k - 1]}
        file.write_bytes(changed[kind])
    (again, warm), (work, last) = _twice(function, X)
    _same([again, warm], [cold, cold])
    assert work.derivations == 1
    assert {reason for reason in work.misses if "passes" in reason or "derivations" in reason} == {
        "passes: damaged",
        "derivations: damaged",
    }
    assert last.misses == {}


def test_what_is_no_graph_is_made_anew(on_disk, monkeypatch):
    """Files that are whole, but hold something else."""
    cpu = backend("cpu")
    want = print_program(optimise(_program(), current()))
    for data in (b"", b"no pickle", pickle.dumps(None)[:-1], pickle.dumps(os.system), b"cos\nsystem\n(S'false'\ntR."):
        monkeypatch.setattr(type(cpu), "find_kept", lambda self, kind, key, options, data=data: data)
        before = qd.stats()
        assert print_program(optimised(_program(), current())) == want
        assert (qd.stats() - before).misses == {"passes: not readable": 1}


@pytest.mark.full
@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EROFS, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_folder_that_cannot_be_written_costs_one_warning(on_disk, monkeypatch, failure):
    def full(*args, **more):
        raise OSError(failure, os.strerror(failure))

    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr(cache, "os", SimpleNamespace(**{**vars(os), "replace": full}))  # not JAX's
    function = jax.jit(jax.grad(lambda x: _chain(6.25)(x, 3).sum()))
    with pytest.warns(RuntimeWarning, match=re.escape(os.strerror(failure))) as found:
        (cold, again), (_, work) = _twice(function, X)
    assert len([w for w in found if w.category is RuntimeWarning]) == 1
    _same(again, cold)
    assert work.derivations == 1
    assert list(on_disk.iterdir()) == []


@pytest.mark.parametrize("place", range(6))
def test_another_version_of_anything_is_another_key(on_disk, monkeypatch, place):
    versions = pass_cache._versions()
    assert versions[0] == version_of(str(ROOT / "qdtrace"))
    assert {jax.__version__, np.__version__} <= {*versions}
    optimised(_program(), current())
    other = (*versions[:place], "other", *versions[place + 1 :])
    monkeypatch.setattr(pass_cache, "_versions", lambda: other)
    before = qd.stats()
    optimised(_program(), current())
    assert (qd.stats() - before).misses == {"passes: not there": 1}


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, qdtrace as qd
from jax.extend.core import Primitive
before = qd.stats()
K = {k}
captured = np.asarray({captured})
@jax.custom_jvp
def ruled(v):
    return v * v
ruled.defjvp(lambda x, t: (ruled(x[0]), {rule} * x[0] * t[0]))
@jax.custom_vjp
def pulled(v):
    return v * 3.0
pulled.defvjp(lambda v: (pulled(v), None), lambda _, g: ({pull} * g,))
if {pull} == 3.0:
    pulled = lambda v: v * 3.0
if {rule} == 2.0:
    ruled = lambda v: v * v
bound = lambda v: v * {plugin}
if {plugin} != 0.0625:
    plugin = Primitive("plugin")
    plugin.def_abstract_eval(lambda x: x)
    qd.def_import_rule(plugin, lambda v: v * {plugin})
    bound = plugin.bind
def inner(v):
    return v * {inner} + captured[0]
def helper(v):
    return bound(pulled(ruled(inner(v)))) * K
def f(x, n={default}):
    mid, out = qd.zeros_like(x), qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        mid[i] = helper(x[i]) + n
    for i in qd.range(x.shape[0]):
        out[i] = jnp.sin(mid[i]) * mid[(i + 1) % x.shape[0]]
    return out
g = jax.grad(lambda x: qd.jit(f)(x).sum())
x = jnp.arange(4.0)
values = [np.asarray(qd.jit(f)(x)).tolist(), np.asarray(g(x)).tolist()]
def plain(x):
    v = ((x * {inner} + captured[0]) ** 2 * 3.0 * {plugin} * K) + {default}
    return jnp.sin(v) * jnp.roll(v, -1)
u = jnp.asarray(x) * {inner} + captured[0]
slope = {rule} * u * {inner} * {pull} * {plugin} * K
v = u * u * 3.0 * {plugin} * K + {default}
of_v = jax.grad(lambda v: (jnp.sin(v) * jnp.roll(v, -1)).sum())(v)
# v is about 40 and rounds by 1e-5, which a sine keeps and factors of 40 and 25 enlarge
good = np.allclose(values[0], plain(x), rtol=1e-5, atol=1e-3)
good = good and np.allclose(values[1], of_v * slope, rtol=1e-5, atol=1e-2)
work = qd.stats() - before
told.append([bool(good), values, work.pipelines, work.derivations, work.misses, work.compiled])
"""
EACH = """
import json, linecache, os, runpy, sys, tempfile
import jax
told = []
with tempfile.TemporaryDirectory() as folder:
    for text, x64 in json.loads(sys.argv[1]):
        script = os.path.join(folder, "program.py")
        with open(script, "w") as file:
            file.write(text)
        linecache.checkcache()
        jax.config.update("jax_enable_x64", x64)
        runpy.run_path(script, {"told": told})
print(json.dumps(told))
"""
AS_IT_IS = {"k": "2.0", "captured": "[1.5, 2.5]", "inner": "3.0", "default": "0.5", "rule": "2.0", "pull": "3.0"}
AS_IT_IS |= {"plugin": "0.0625"}
CHANGES = {
    "helper two calls away": {"inner": "4.0"},
    "global": {"k": "2.5"},
    "captured array": {"captured": "[1.75, 2.5]"},
    "default": {"default": "0.25"},
    "rule of custom_jvp": {"rule": "2.5"},
    "import rule": {"plugin": "0.125"},
}


def _program_text(**changed):
    return PROGRAM.format(**AS_IT_IS | changed)


def _command(folder, programs):
    """Returns the command and the environment of a process that runs programs in turn, each a text and whether 64 bits
    are enabled."""
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    environment |= {"QD_OFFLINE_CACHE_PASSES": "1"}
    return [sys.executable, "-c", EACH, json.dumps(programs)], environment


def _run(folder, *programs):
    """Returns what each program told."""
    command, environment = _command(folder, programs)
    return json.loads(fresh.run(command, env=environment, check=True).stdout)


def test_a_new_process_makes_no_graph_unless_the_program_changed(tmp_path):
    ((good, values, pipelines, derivations, misses, _),) = _run(tmp_path, (_program_text(), False))
    assert good
    assert pipelines == misses["passes: not there"] > 0
    assert misses["derivations: not there"] > derivations > 0
    changed = [(_program_text(**change), False) for change in CHANGES.values()]
    commented = "# a comment\n\n" + _program_text()
    warm, *others = _run(tmp_path, (commented, False), *changed, (_program_text(), True))
    assert warm == [True, values, 0, 0, {}, 0]
    for name, (good, other, pipelines, derivations, _, _) in zip([*CHANGES, "64 bits"], others, strict=True):
        assert good, name
        assert derivations > 0, name
        assert pipelines > 0, name
        assert other != values, name


def test_a_rule_of_custom_vjp_is_asked_in_each_process(tmp_path):
    for pulls in (("3.5",), ("3.5", "4.5")):
        programs = [(_program_text(pull=pull), False) for pull in pulls]
        for good, _, _, derivations, misses, _ in _run(tmp_path, *programs):
            assert (good, derivations) == (True, 1)
            assert misses["derivations: object of Python in the graph"] > 0


@pytest.mark.full
def test_processes_that_write_at_once_agree(tmp_path):
    program = (_program_text(), False)
    command, environment = _command(tmp_path, [program])
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(drawn(4))]
    found = [told for process in started for told in json.loads(process.communicate()[0])]
    assert all(good for good, *_ in found)
    assert all(values == found[0][1] for _, values, *_ in found)
    (warm,) = _run(tmp_path, program)
    assert warm[2:] == [0, 0, {}, 0]


def test_machines_are_told_apart():
    assert repr(CPU) != repr(GPU)
