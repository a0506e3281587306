"""Loops that run for what they leave in memory: what remains of the last iteration, and which loops stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.machine import CPU
from qdtrace.passes.last_iteration import LastIteration
from tests.passes.harness import check, unchanged

HEAD = """program p(x: ref[f32,8], y: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    v: f32 = load x i
    kept: cell[f32,40] = cell[dtype=f32, shape=(40)]
"""
TAIL = """    u: f32 = load kept 3:i32
    store y u i
  return y
"""
LOOP = """    s: f32, t: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = v, d = 1.0:f32
      store kept c k
      e: f32 = sin c
      f: f32 = mul e d
      g: f32 = add f c
      h: f32 = mul g g
      o: f32 = sub h e
      yield o, f
"""


def test_what_the_last_iteration_leaves_stays() -> None:
    left = "    store kept s 8:i32\n"
    check(LastIteration(), HEAD + LOOP + TAIL, HEAD + LOOP.replace(": 9:i32", ": 8:i32") + left + TAIL)


def test_downwards_with_what_memory_and_checks_need() -> None:
    """The index of the last iteration is that of the loop; a check of it may still fail."""
    loop = LOOP.replace("0:i32 : 9:i32 : 1:i32", "{}:i32 : {}:i32 : -4:i32").replace(
        "      store kept c k\n",
        """      q: bool = lt c 9.0:f32
      check[message="m"] q
      store kept d k
""",
    )
    more = "".join(f"      w{n}: f32 = cos {'o' if n == 0 else f'w{n - 1}'}\n" for n in range(8))
    loop = loop.replace("      yield o", more + "      yield w7")
    left = """    q_1: bool = lt s 9.0:f32
    check[message="m"] q_1
    store kept t 2:i32
"""
    before, after = loop.format(14, 1), loop.format(14, 2) + left
    tail = TAIL.replace("3:i32", "6:i32")
    check(LastIteration(), HEAD + before + tail, HEAD + after + tail)


def test_machines_that_keep_every_state_stay() -> None:
    unchanged(LastIteration(CPU), HEAD + LOOP + TAIL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("store y u i", "a: f32 = add u s\n    store y a i"),
        (": 9:i32", ": 2:i32"),
        (": 9:i32", ": 129:i32"),
        (": 9:i32", ": m"),
        ("store kept c k", "store y c k"),
        ("store kept c k", "accum[op=add] y c k"),
        ("store kept c k", "more: cell[f32] = cell[dtype=f32, shape=()]\n      store kept c k"),
        ("store kept c k", "w: i32 = lane_max k\n      store kept c w"),
        ("store kept c k", "store kept c k\n      p: bool = lt c d\n      if p\n        store kept d k"),
        ("store kept c k", "z: f32 = sin c\n      z1: f32 = cos z\n      store kept z1 k"),
        ("store kept c k", "z: f32 = mul c d"),
    ],
    ids=["read", "two", "many", "unknown", "buffer", "sum", "cell", "lanes", "branch", "large", "nothing"],
)
def test_loops_that_stay(old: str, new: str) -> None:
    text = HEAD + "    m: i32 = load n\n" + LOOP + TAIL
    assert text.count(old) == 1
    unchanged(LastIteration(), text.replace(old, new))


@pytest.mark.full
@pytest.mark.parametrize("is_read", [False, True])
def test_the_sweep_of_a_gradient_ends_with_the_last_state(is_read: bool) -> None:
    """Unless the adjoint of what is behind the loop asks for it, and on a CPU."""

    def end(a, step):
        a = step(a, lambda a: jnp.sin(a) * 0.9 + 0.08 * a)
        return a * a if is_read else a

    @qd.jit
    def run(x):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            a = qd.local(x[i])

            def steps(_, one, a=a):
                for _ in qd.range(120):
                    a.value = one(a.value)
                return a.value

            out[i] = end(a.value, steps)
        return out

    def gradient(x, bar):
        return jax.vjp(run, jnp.asarray(x))[1](jnp.asarray(bar))[0]

    def plain(x):
        return end(x, lambda a, one: jax.lax.fori_loop(0, 120, lambda _, a: one(a), a))

    x, bar = jnp.linspace(-1, 1, 8), jnp.arange(8.0)
    for target, left in (("cpu", 119), ("sm_90", 11)):  # of 120 states, and of 12 segments
        text = qd.jit(gradient).lower(x, bar, target=target).as_text()
        assert (f" 0:i32 : {left}:i32" in text) == (target != "cpu" and not is_read)
    (wanted,) = jax.vjp(plain, x)[1](bar)
    assert np.allclose(gradient(x, bar), wanted, rtol=1e-4, atol=1e-6)  # 120 roundings of f32
