"""Private arrays that are needed at different times have one memory, and nobody sees what another left there."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.analysis.machine import CPU
from qdtrace.config import Options
from qdtrace.errors import UnsupportedError
from qdtrace.ir.parser import parse_program
from qdtrace.ir.walk import private_bytes
from qdtrace.passes import share_private
from qdtrace.passes.by_name import pass_named
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.share_private import SharePrivate
from tests.passes.harness import assert_same_results, check, unchanged

SHARE = pass_named("share_private", Options())
HEAD = "program p(x: ref[f32,8x64], c: ref[f32,8])\n  range_for i in 0:i32 : 8:i32\n"


def filled(name: str, shape: str = "64", at: str = "k") -> str:
    """Makes an array and stores a row of `x` in it."""
    lines = [
        f"{name}: cell[f32,{shape.replace(',', 'x')}] = cell[dtype=f32, shape=({shape})]",
        "for k in 0:i32 : 64:i32 : 1:i32",
        "  v: f32 = load x i k",
        f"  store {name} v {at}",
    ]
    return "".join(f"    {line}\n" for line in lines)


def read(name: str, at: str) -> str:
    """Adds an element of an array to the result."""
    return f"    u_{name}: f32 = load {name} {at}\n    accum[op=add] c u_{name} i\n"


def program(*parts: str) -> str:
    return HEAD + "".join(parts) + "  return c\n"


def shared(name: str, kind: str, shape: str) -> str:
    return f"    {name}: cell[f32,{kind}] = cell[dtype=f32, shape=({shape})]\n"


def without_cell(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if "= cell[" not in line)


def test_arrays_in_turn_are_one() -> None:
    first = filled("a") + read("a", "3:i32")
    second = filled("b") + read("b", "5:i32")
    one = without_cell(first + second).replace(" a v", " s v").replace(" b v", " s v")
    one = one.replace("load a", "load s").replace("load b", "load s")
    check(SHARE, program(first, second), program(shared("s", "64", "64"), one))


def test_accesses_of_a_block_share_their_index() -> None:
    """What a block computes of an index serves it and the blocks inside, and no other one."""
    places = "m: i32 = div k 8:i32\n      n: i32 = rem k 8:i32\n      "
    first = filled("a", "8,8", "m n").replace("v: f32", places + "v: f32")
    loop = """    for j in 0:i32 : 8:i32 : 1:i32
      u_0: f32 = load a j 1:i32
      accum[op=add] c u_0 i
      for m_1 in 0:i32 : 8:i32 : 1:i32
        u_1: f32 = load a j m_1
        store a u_1 j m_1
        accum[op=add] c u_1 i
    for j_1 in 0:i32 : 8:i32 : 1:i32
      u_2: f32 = load a j_1 1:i32
      accum[op=add] c u_2 i
"""
    text = program(first, loop, filled("b", "80") + read("b", "5:i32"))
    made = SHARE(parse_program(text))
    assert_same_results(parse_program(text), made)
    count = Counter(e.primitive.name for e in made.all_eqns)
    assert (count["cell"], count["mul"], count["add"]) == (1, 3, 4)


def test_other_shapes_are_flattened() -> None:
    first = filled("a", "2,40", "1:i32 k") + read("a", "1:i32 3:i32")
    second = filled("b") + read("b", "5:i32")
    text = program(first.replace("0:i32 : 64:i32", "0:i32 : 40:i32"), second)
    made = SHARE(parse_program(text))
    assert private_bytes(made.tasks[0].body.eqns) == 80 * 4
    assert_same_results(parse_program(text), made)
    assert SHARE(made) is made


@pytest.mark.parametrize(
    "text",
    [
        program(filled("a"), filled("b"), read("a", "3:i32"), read("b", "5:i32")),
        program(filled("a", "9"), read("a", "3:i32"), filled("b", "9"), read("b", "5:i32"))
        .replace(": 64:i32", ": 9:i32"),
        program(filled("a"), read("a", "3:i32"), filled("b").replace("f32", "i32"))
        .replace("v: i32 = load x i k", "w: f32 = load x i k\n      v: i32 = convert[dtype=i32] w"),
    ],
    ids=["at once", "small", "other dtypes"],
)  # fmt: skip
def test_what_stays(text: str) -> None:
    unchanged(SHARE, text)


def test_a_use_in_a_loop_counts_for_the_whole_loop() -> None:
    loop = "    for t in 0:i32 : 3:i32 : 1:i32\n"
    inside = "".join(f"  {line}\n" for line in (read("a", "t") + filled("b") + read("b", "5:i32")).splitlines())
    unchanged(SHARE, program(filled("a"), loop, inside))
    # made inside of the loop, both are new in each iteration
    inside = filled("a") + read("a", "3:i32") + filled("b") + read("b", "5:i32")
    both = program(loop, "".join(f"  {line}\n" for line in inside.splitlines()))
    made = SHARE(parse_program(both))
    assert private_bytes(made.tasks[0].body.eqns) == 64 * 4
    assert_same_results(parse_program(both), made)


def test_too_much_is_refused() -> None:
    small = replace(CPU, reverse=replace(CPU.reverse, lane_bytes=300))
    fits = parse_program(program(filled("a"), read("a", "3:i32"), filled("b"), read("b", "5:i32")))
    assert SharePrivate(small)(fits).tasks[0] is not fits.tasks[0]
    both = parse_program(program(filled("a"), filled("b", "65"), read("a", "3:i32"), read("b", "5:i32")))
    text = r"at most 300 bytes of arrays .* got 516, the largest of them cell\[f32,65\]"
    with pytest.raises(UnsupportedError, match=text):
        SharePrivate(small)(both)


STEPS = [
    lambda x, a, b: jnp.cumsum(a),
    lambda x, a, b: jnp.sort(a)[::-1],
    lambda x, a, b: jnp.outer(a[:6], b[:5]),
    lambda x, a, b: a[: a.size // 2 * 2].reshape(2, -1).T @ b[:2],
    lambda x, a, b: lax.scan(lambda c, r: (c * 0.5 + r, c), x, a)[1],
    lambda x, a, b: lax.cond(x > 0.5, jnp.cumsum, lambda v: v[::-1], a),
    lambda x, a, b: lax.fori_loop(0, 3, lambda k, v: jnp.cumsum(v) * 0.5 + jnp.roll(v, k), a),
    lambda x, a, b: jnp.where(a > 0, jnp.cumsum(a), 0.0),
]


class Lane:
    """A function of a scalar whose large temporaries come and go."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, x: Any) -> Any:
        draw = random.Random(self.seed)
        alive = [jnp.sin(jnp.arange(12.0) * x)]
        for _ in range(draw.randint(4, 9)):
            make: Any = draw.choice(STEPS)
            made = make(x, draw.choice(alive).ravel(), draw.choice(alive).ravel())
            if draw.random() < 0.6:
                alive[draw.randrange(len(alive))] = made
            else:
                alive.append(made)
        return sum(jnp.sum(jnp.cos(v)) for v in alive)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(k, marks=pytest.mark.slow) for k in range(6, 200))])
def test_random_lanes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lane, x = Lane(seed), jnp.linspace(0.1, 0.9, 5)
    apart = qd.vmap(lane)(x)
    monkeypatch.setattr(share_private, "LARGE", 16)
    low = qd.jit(qd.vmap(lane)).lower(x)
    for staged in low.programs:
        assert_same_results(staged.program, optimise(staged.program, Options(fast_math=False)))
    np.testing.assert_array_equal(qd.vmap(lane)(x), apart)
