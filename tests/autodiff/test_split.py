"""Tasks that are split between loops that change the same memory, so that their derivatives need no long tape."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.autodiff import rows
from qdtrace.autodiff.split import with_split_tasks
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program


@pytest.fixture
def no_rows(monkeypatch):
    """Makes private arrays of no rows."""
    monkeypatch.setattr(rows, "ROW_BYTES", 0)


SWEEP = """
for {c} in a : b : {step}:i32
  {c}j: i32 = add {c} {off}:i32
  {c}u: f64 = load {ref} {c}j
  {c}v: f64 = mul {c}u {c}u
  store {ref} {c}v {c}
"""


def sweep(counter: str, ref: str = "y", step: int = 1) -> str:
    return SWEEP.format(c=counter, ref=ref, step=step, off=-step)


ENDS = "a: i32 = load n 0:i32\nb: i32 = load n 1:i32"


def program(*parts: str, head: str = "", kind: str = "serial"):
    lines = "".join(f"    {line}\n" for part in parts for line in part.strip("\n").split("\n"))
    above = f"    head\n      {head}\n" if head else ""
    params = "y: ref[f64,30], z: ref[f64,30], x: ref[f64,1], n: ref[i32,4]"
    return parse_program(f"program f({params})\n  {kind}\n{above}{lines}  return y, z, x\n")


SUM = sweep("p").replace("for", "s: f64 = for").replace("1:i32\n", "1:i32 carry t = 0.0:f64\n", 1) + "  yield pv"
PROGRAMS = {
    "two sweeps": ((ENDS, sweep("p"), sweep("q", step=-1)), 2),
    "three sweeps": ((ENDS, sweep("p"), sweep("q"), sweep("r")), 3),
    "a sweep over other memory between two": ((ENDS, sweep("p"), sweep("o", "z"), sweep("q")), 2),
    "one sweep": ((ENDS, sweep("p"), sweep("q", "z")), 1),
    "sweeps with numbers of their own": (
        (ENDS, sweep("p"), "c: i32 = load n 2:i32", sweep("q").replace("a :", "c :")),
        2,
    ),
    "a sweep in a loop": ((ENDS, "for s in a : b : 1:i32", "  " + sweep("p").strip().replace("\n", "\n  ")), 1),
    "a sum that crosses": (
        (ENDS, SUM, sweep("q").replace("mul qu qu", "mul qu s")),
        1,
    ),
    "a number from memory that changes": (
        (ENDS, "w: f64 = load y 3:i32", sweep("p"), sweep("q").replace("mul qu qu", "mul qu w")),
        1,
    ),
    "a number of such a number": (
        (ENDS, "w: f64 = load y 3:i32\nh: f64 = add w w", sweep("p"), sweep("q").replace("mul qu qu", "mul qu h")),
        1,
    ),
    "a private array that crosses": (
        (ENDS, "w: cell[f64,2] = cell[dtype=f64, shape=(2)]", sweep("p") + "  store w pv 1:i32",
         sweep("q").replace("qv: f64 = mul qu qu", "qw: f64 = load w 1:i32\n  qv: f64 = mul qu qw")),
        1,
    ),
    "the old value of an atomic": (
        (ENDS, sweep("p"), sweep("q") + "  g: i32 = atomic[op=add] n 1:i32 3:i32"),
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts(name, no_rows):
    parts, count = PROGRAMS[name]
    made = program(*parts)
    split = with_split_tasks(made, made.params[2:3])
    assert len(split.tasks) == count
    if count == 1:
        assert split is made
        return
    args = [np.linspace(0.5, 1.2, 30), np.linspace(0.9, 1.1, 30), np.ones(1), np.array([4, 17, 6, 0], np.int32)]
    for got, want in zip(evaluate(split, args), evaluate(made, args), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_head_that_loads_what_changes_keeps_its_task_whole(no_rows):
    parts = (sweep("p"), sweep("q").replace("mul qu qu", "mul qu w"))
    still, changed = (program(ENDS, *parts, head=f"w: f64 = load {ref} 3:i32") for ref in ("z", "y"))
    assert [len(with_split_tasks(made, made.params[2:3]).tasks) for made in (still, changed)] == [2, 1]


def test_memory_that_is_zero_splits_nothing(no_rows):
    """Tangents are taken as zero, so that nobody needs a tape of them."""
    made = program(ENDS, sweep("p"), sweep("q"))
    y, _, x, _ = made.params
    assert [len(with_split_tasks(made, [linear]).tasks) for linear in (x, y)] == [2, 1]


def test_a_short_tape_splits_nothing(no_rows):
    ends = [line.replace("a : b", "4:i32 : 17:i32") for line in (sweep("p"), sweep("q"))]
    made = program(*ends)
    assert with_split_tasks(made, made.params[2:3]) is made


START = np.array([0, 5, 6, 6, 13], np.int32)


@qd.jit
def forth_and_back(x, rate, start):
    for i in qd.range(start.shape[0] - 1):
        lo, hi = start[i], start[i + 1]
        for j in qd.range(lo + 1, hi):
            x[j] += rate * jnp.sin(x[j - 1])
        for j in qd.range(hi - 2, lo - 1, -1):
            x[j] -= 0.5 * x[j + 1] ** 2
    return x


def by_hand(x, rate):
    for lo, hi in pairwise(START):
        for j in range(lo + 1, hi):
            x = x.at[j].add(rate * jnp.sin(x[j - 1]))
        for j in range(hi - 2, lo - 1, -1):
            x = x.at[j].add(-0.5 * x[j + 1] ** 2)
    return x


@pytest.mark.cpu
@pytest.mark.full
def test_rows_of_unknown_length_that_two_loops_change():
    x, weights = jnp.linspace(0.3, 1.0, 13), jnp.cos(jnp.arange(13.0))
    mine = lambda x, rate: forth_and_back(x, rate, START) @ weights  # noqa: E731
    plain = jax.jit(jax.grad(lambda x, rate: by_hand(x, rate) @ weights, (0, 1)))
    low = qd.jit(jax.grad(mine, (0, 1))).lower(x, 0.7)
    assert low.memory_analysis()["stack_per_lane"] == 0
    names = [task.name for task in low.tasks if "copy" not in task.name]
    assert names == [f"forth_and_back.0_part_{end}" for end in ("1", "2", "2_reverse", "1_reverse")]
    want = plain(x, 0.7)
    for made in (jax.grad(mine, (0, 1)), jax.jit(jax.grad(mine, (0, 1)))):
        for a, b in zip(made(x, 0.7), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    value, pull = jax.vjp(mine, x, 0.7)
    np.testing.assert_allclose(value, by_hand(x, 0.7) @ weights, rtol=1e-12)
    np.testing.assert_allclose(pull(1.0)[0], want[0], rtol=1e-12)
    rates = jnp.array([0.7, -0.2])
    got = jax.vmap(lambda rate: jax.grad(mine)(x, rate))(rates)
    for slope, rate in zip(got, rates, strict=True):
        np.testing.assert_allclose(slope, plain(x, rate)[0], rtol=1e-12)


@pytest.mark.full
@pytest.mark.cpu
def test_sweeps_of_a_python_loop_have_no_tape():
    """Five sweeps of Gauss-Seidel are one serial task, which changes an array of 160 KB five times."""
    size = 20_000
    rng = np.random.default_rng(3)
    row = np.arange(0, 2 * size + 1, 2).astype(np.int32)
    col = ((np.repeat(np.arange(size), 2) + rng.integers(1, size, 2 * size)) % size).astype(np.int32)
    values, x = rng.uniform(-0.3, 0.3, 2 * size), rng.normal(size=size)

    @qd.jit
    def sweeps(x, values, row, col):
        for _ in range(5):
            for r in qd.range(size, serial=True):
                s = qd.local(0.3)
                for k in qd.range(row[r], row[r + 1]):
                    s.value += values[k] * x[col[k]] ** 2
                x[r] = s.value
        return x

    f = lambda x, v: sweeps(x, v, row, col).sum()  # noqa: E731
    low = qd.jit(jax.grad(f, (0, 1))).lower(x, values)
    assert low.memory_analysis()["stack_per_lane"] == 0
    qd.check_grads(f, (x, values), order=1)
