"""Loads of what earlier loops computed, and rows of parameters in private memory: texts, refusals and random rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.machine import GPU
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import verify_program
from qdtrace.passes.own_rows import OwnRows
from qdtrace.passes.reloads import Reloads
from tests.passes.harness import assert_same_bits, check, parsed, unchanged
from tests.selection import drawn

HEAD = "program p(x: ref[f32,3x6], w: ref[f32,3x6], s: ref[f32,6])\n  buffer out: ref[f32,3x6] = 0.0:f32\n"
TASK = HEAD + "  range_for i in 0:i32 : 3:i32\n{body}  return {results}\n"
UP, DOWN = "0:i32 : 6:i32 : 1:i32", "5:i32 : -1:i32 : -1:i32"
AGAIN = """    q: f32 = load s i
    a: cell[f32,6] = cell[dtype=f32, shape=(6)]
    for k in {first}
      v: f32 = load x i k
      d: f32 = sub v q
      e: f32 = exp d
      store a e {place}
{between}    for t in {second}
{again}      accum[op=add] out {value} i t
"""
RECOMPUTED = "      v1: f32 = load x i t\n      d1: f32 = sub v1 q\n      e1: f32 = {op} d1\n"


def again(op: str = "exp", first: str = UP, second: str = DOWN, place: str = "k", between: str = "") -> str:
    text = RECOMPUTED.format(op=op)
    body = AGAIN.format(first=first, second=second, place=place, between=between, again=text, value="e1")
    return TASK.format(body=body, results="out")


@pytest.mark.parametrize(("first", "second"), [(UP, DOWN), (DOWN, "1:i32 : 5:i32 : 1:i32"), (UP, UP)])
def test_a_value_that_is_in_a_private_array_is_loaded(first: str, second: str) -> None:
    text = RECOMPUTED.format(op="exp").replace("exp d1", "load a t")
    body = AGAIN.format(first=first, second=second, place="k", between="", again=text, value="e1")
    check(Reloads(), again(first=first, second=second), TASK.format(body=body, results="out"))
    unchanged(Reloads(GPU), again())


@pytest.mark.parametrize(
    "text",
    [
        again("sin"),
        again(first="1:i32 : 6:i32 : 1:i32"),  # the first element is unset
        again(first="0:i32 : 6:i32 : 2:i32"),
        again(place="2:i32"),
        again(between="    store a q 1:i32\n"),
        again(between="    store x q i 1:i32\n"),
        again(between="    q1: f32 = load a 0:i32\n").replace("sub v1 q", "sub v1 q1"),
        again().replace("store a e k", "store a e k\n      store a q k"),
        again().replace("exp", "neg"),  # a load costs as much
        again().replace("store a e k", "store a e k\n      store x e i k"),
    ],
)
def test_a_value_that_is_not_there_is_computed(text: str) -> None:
    unchanged(Reloads(), text)


@pytest.mark.full
def test_long_chains_whose_steps_read_the_one_before_twice_are_compared_once() -> None:
    """Along all paths, two operands a step would take 2^3000 steps, and recursion ends near 1000."""
    steps = range(3000)
    first = "".join(f"      e{k + 1}: f32 = add e{k} e{k}\n" for k in steps)
    second = "".join(f"      r{k + 1}: f32 = add r{k} r{k}\n" for k in steps)
    text = again().replace("e1: f32 = exp d1", "r0: f32 = exp d1").replace("e: f32 = exp d", "e0: f32 = exp d")
    text = text.replace("      store a e k\n", first + "      store a e3000 k\n")
    text = text.replace("      accum[op=add] out e1", second + "      accum[op=add] out r3000")
    assert "load a t" in print_program(Reloads()(parsed(text)))


CHANGED = """    for k in 0:i32 : 6:i32 : 1:i32
      v: f32 = load w i k
      d: f32 = mul v 2.0:f32
      store w d i k
    for t in 5:i32 : -1:i32 : -1:i32
      v1: f32 = load w i t
      accum[op=add] out v1 i t
"""
OWN = """    w1: cell[f32,6] = cell[dtype=f32, shape=(6)]
    for k0 in 0:i32 : 6:i32 : 1:i32
      v0: f32 = load w i k0
      store w1 v0 k0
""" + CHANGED.replace(" w ", " w1 ").replace("w1 i", "w1").replace("d i k", "d k")


def test_a_row_that_is_changed_and_then_gone() -> None:
    text = TASK.format(body=CHANGED, results="out")
    check(OwnRows(), text, TASK.format(body=OWN, results="out"))
    unchanged(OwnRows(GPU), text)
    unchanged(OwnRows(), text.replace("return out", "return out, w"))
    unchanged(OwnRows(), text.replace("3x6", "3x6000").replace("6:i32 :", "6000:i32 :"))  # longer than the near cache
    unchanged(OwnRows(), text.replace("store w d i k", "store w d 0:i32 k"))
    unchanged(OwnRows(), text.replace("0:i32 : 3:i32\n", "0:i32 : 2:i32\n").replace("w i", "w j").replace(
        "    for k in", "    j: i32 = add i 1:i32\n    for k in"))  # fmt: skip
    another = "  range_for i in 0:i32 : 3:i32\n    v2: f32 = load w i 0:i32\n    store out v2 i 0:i32\n  return"
    unchanged(OwnRows(), text.replace("  return", another))


def rows(rng: np.random.Generator) -> str:
    """Loops over a row, with few expressions, so that loops often compute what another one has stored."""

    def pick(*words: str) -> str:
        return words[rng.integers(len(words))]

    body = "    q: f32 = load s i\n"
    for name in "ab":
        body += f"    {name}: cell[f32,6] = cell[dtype=f32, shape=(6)]\n    for k{name} in {UP}\n"
        body += f"      store {name} 0.5:f32 k{name}\n"
    for n in range(rng.integers(2, 7)):
        body += f"    for k{n} in {pick(UP, UP, DOWN, '1:i32 : 5:i32 : 1:i32', '0:i32 : 6:i32 : 2:i32')}\n"
        body += f"      back{n}: i32 = sub 5:i32 k{n}\n"
        for m in range(rng.integers(1, 4)):
            t, at, own = f"{n}_{m}", pick(*(f"k{n}",) * 4, f"back{n}", "2:i32"), pick(*(f"k{n}",) * 6, f"back{n}")
            place = pick(*(f"x i k{n}",) * 6, f"x i {at}", f"w i {own}", f"a {at}", f"b {at}")
            made = pick(*(f"sub v{t} q",) * 4, f"min v{t} 1.0:f32")
            body += f"      v{t}: f32 = load {place}\n      d{t}: f32 = {made}\n      e{t}: f32 = exp d{t}\n"
            store = pick(*(f"a e{t} k{n}", f"b e{t} {own}", "out") * 3, f"w e{t} i {own}", f"x e{t} i {own}")
            kind = "accum[op=add]" if store == "out" else "store"
            line = f"{kind} {f'out e{t} i k{n}' if store == 'out' else store}\n"
            guard = rng.integers(5) == 0
            body += f"      p{t}: bool = lt v{t} 0.3:f32\n      if p{t}\n        {line}" if guard else f"      {line}"
    return TASK.format(body=body, results=pick("out", "out", "out, w", "out, x"))


@pytest.mark.full
def test_random_rows_keep_their_results() -> None:
    reloads, own = 0, 0
    for seed in range(drawn(150)):
        rng = np.random.default_rng(seed)
        program = parsed(rows(rng))
        args = [rng.normal(size=p.type.shape).astype(np.float32) for p in program.params]  # type: ignore[union-attr]
        first = OwnRows()(program)
        made = Reloads()(first)
        own, reloads = own + (first is not program), reloads + (made is not first)
        verify_program(made)
        for got, want in zip(evaluate(made, args), evaluate(program, args), strict=True):
            assert_same_bits(got, want)
    assert min(reloads, own) > drawn(150) // 10


@pytest.mark.full
def test_gradients_of_rows_that_loops_change() -> None:
    def softmax(x: jax.Array) -> jax.Array:
        y = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            most, total = qd.local(-jnp.inf), qd.local(0.0)
            for k in qd.range(x.shape[1]):
                most.value = jnp.maximum(most.value, x[i, k])
            for k in qd.range(x.shape[1]):
                y[i, k] = jnp.exp(x[i, k] - most.value)
                total.value += y[i, k]
            for k in qd.range(x.shape[1]):
                y[i, k] = y[i, k] / total.value
        return y

    x, bar = jax.random.normal(jax.random.key(0), (2, 5, 83))
    back = jax.jit(lambda x, bar: jax.vjp(qd.jit(softmax), x)[1](bar)[0])
    np.testing.assert_allclose(back(x, bar), jax.vjp(jax.nn.softmax, x)[1](bar)[0], rtol=1e-4, atol=1e-6)
    graph = str(qd.jit(lambda x, bar: jax.vjp(qd.jit(softmax), x)[1](bar)[0]).lower(x, bar, target="cpu").graph())
    assert graph.count("= exp") == 1
    assert "store y_bar v" not in graph.replace("store y_bar_1", "")
