"""Sums of products of neighbouring iterations run side by side."""

from dataclasses import replace
from random import Random

import pytest

from qdtrace.analysis.machine import CPU, GPU
from qdtrace.config import Options
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import verify_program
from qdtrace.passes.jam import Jam
from qdtrace.passes.pipelines import optimise
from tests.passes.harness import assert_same_results, check, parsed, unchanged
from tests.selection import drawn

BY_TWO = Jam(replace(CPU, jammed=2))


def product(outer: str = "0:i32 : 8:i32 : 1:i32", inner: str = "0:i32 : 9:i32 : 1:i32", more: str = "") -> str:
    """out[n, i] = sum of m[i, k] * x[n, k]."""
    return f"""
program p(m: ref[f32,8x9], x: ref[f32,5x9], out: ref[f32,5x8])
  range_for n in 0:i32 : 5:i32
    for i in {outer}
      s: f32 = for k in {inner} carry c = 0.0:f32
        w: f32 = load m i k
        v: f32 = load x n k
        p: f32 = mul w v
        t: f32 = add c p
        yield t
      store out s n i
      {more}
  return out
"""


def test_two_rows_of_a_product() -> None:
    check(
        BY_TWO,
        product("7:i32 : 0:i32 : -1:i32"),
        """
program p(m: ref[f32,8x9], x: ref[f32,5x9], out: ref[f32,5x8])
  range_for n in 0:i32 : 5:i32
    for i in 7:i32 : 1:i32 : -2:i32
      j: i32 = add i -1:i32
      s: f32, s2: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32, c2 = 0.0:f32
        w: f32 = load m i k
        w2: f32 = load m j k
        v: f32 = load x n k
        v2: f32 = load x n k
        p: f32 = mul w v
        p2: f32 = mul w2 v2
        t: f32 = add c p
        t2: f32 = add c2 p2
        yield t, t2
      store out s n i
      store out s2 n j
    for i in 1:i32 : 0:i32 : -1:i32
      s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
        w: f32 = load m i k
        v: f32 = load x n k
        p: f32 = mul w v
        t: f32 = add c p
        yield t
      store out s n i
  return out
""",
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(product(more="store out s n 0:i32"), id="a place that iterations share"),
        pytest.param(product(more="accum[op=add] x s n i\n      store out s n i"), id="what other iterations read"),
        pytest.param(product(inner="0:i32 : i : 1:i32"), id="a trip count of the iteration"),
        pytest.param(product(inner="0:i32 : 7:i32 : 1:i32"), id="few products"),
        pytest.param(product("0:i32 : 1:i32 : 1:i32"), id="one iteration"),
        pytest.param(
            product(more="b: i32 = bound[axis=1, buffer=out, shape=(5, 8), size=8] i\n      store out s n b"),
            id="a check",
        ),
        pytest.param(product().replace("mul w v", "max w v"), id="no product"),
    ],
)
def test_what_stays(text: str) -> None:
    unchanged(BY_TWO, text)


@pytest.mark.parametrize(
    ("count", "steps"),
    [(2, [2]), (3, [3]), (5, [5]), (8, [8]), (9, [8, 1]), (12, [6]), (15, [5]), (17, [8, 1])],
)
def test_a_gpu_joins_all_of_few(count: int, steps: list[int]) -> None:
    """So that what a trip makes again for each of them (`importer/elements`) is made once."""
    text = product(f"0:i32 : {count}:i32 : 1:i32").replace("8x9", "17x9").replace("5x8", "5x17")
    program = parsed(text)
    made = Jam(GPU)(program)
    assert [int(loop.bounds[2].value) for loop in made.tasks[0].body.eqns if loop.blocks] == steps  # type: ignore[union-attr]
    assert_same_results(program, made)


@pytest.mark.parametrize(
    ("row", "column", "more", "is_joined"),
    [
        pytest.param(5, 1, "", True, id="rows one behind another"),
        pytest.param(1, 5, "", True, id="columns one behind another"),
        pytest.param(5, 0, "", False, id="a place that iterations share"),
        pytest.param(5, 1, "next: i32 = add q 1:i32\n        store out s next", False, id="the next one's place"),
        pytest.param(5, 1, "same: i32 = add b a\n        store out s same", True, id="the same place in other words"),
    ],
)
def test_places_in_one_axis(row: int, column: int, more: str, is_joined: bool) -> None:
    program = parsed(f"""
program p(m: ref[f32,5x9], x: ref[f32,5x9], out: ref[f32,46])
  serial
    for r in 0:i32 : 5:i32 : 1:i32
      for i in 0:i32 : 5:i32 : 1:i32
        a: i32 = mul r {row}:i32
        b: i32 = mul i {column}:i32
        q: i32 = add a b
        s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 1.0:f32
          w: f32 = load m i k
          v: f32 = load x r k
          p: f32 = mul w v
          t: f32 = sub c p
          yield t
        store out s q
        {more}
  return out
""")
    made = Jam(GPU)(program)
    assert (made is not program) == is_joined
    assert_same_results(program, made)


def test_long_sums_stay_loops_that_are_joined() -> None:
    """Their operands stay in memory: more than registers are there for."""
    text = """
program p(m: ref[f32,12x{n}], x: ref[f32,5x{n}], out: ref[f32,5x12])
  range_for n in 0:i32 : 5:i32
    private: cell[f32,{n}] = cell[dtype=f32, shape=({n})]
    for k in 0:i32 : {n}:i32 : 1:i32
      v: f32 = load x n k
      store private v k
    for i in 0:i32 : 12:i32 : 1:i32
      s: f32 = for k in 0:i32 : {n}:i32 : 1:i32 carry c = 0.0:f32
        w: f32 = load m i k
        v: f32 = load private k
        p: f32 = mul w v
        t: f32 = add c p
        yield t
      store out s n i
  return out
"""
    for n, is_joined in ((16, False), (17, True)):
        program = parsed(text.replace("{n}", str(n)))
        final = print_program(optimise(program, Options()))
        assert ("0:i32 : 12:i32 : 4:i32" in final) == is_joined
        assert final.count(" load private ") == is_joined  # simplify, which comes last, finds those of all four equal
    assert_same_results(program, optimise(program, Options(fast_math=False)))


def random_program(seed: int) -> str:
    """Draws a nest whose iterations may meet in memory."""
    rng = Random(seed)
    start, count, step = rng.randrange(3), rng.randrange(2, 12), rng.choice((-2, -1, 1, 1, 2))
    size = start + count * abs(step) + 1
    first, last = (start, start + count * step) if step > 0 else (start - (count - 1) * step, start + step)
    sums, trips = rng.randrange(1, 4), rng.randrange(5, 10)
    carried = ", ".join(f"c{n} = {rng.choice(('0.0:f32', 'a'))}" for n in range(sums))
    body = [f"w{n}: f32 = load m {rng.choice(('i k', 'i i', 'k i'))}" for n in range(sums)]
    body += [
        f"v{n}: f32 = load {rng.choice(('x k',) * 9 + ('x i', 'own i', 'out i', 'own k', 'out k'))}"
        for n in range(sums)
    ]
    body += [f"p{n}: f32 = mul w{n} v{rng.randrange(sums)}" for n in range(sums)]
    body += [f"t{n}: f32 = {rng.choice((f'add c{n} p{n}', f'add p{n} c{n}', f'sub c{n} p{n}'))}" for n in range(sums)]
    place = rng.choice(("i",) * 3 + ("next",))
    after = [f"store {rng.choice(('own', 'out'))} s{n} {rng.choice((place,) * 7 + ('1:i32',))}" for n in range(sums)]
    after += [f"accum[op=add] {rng.choice(('own', 'out'))} s0 {rng.choice(('i',) * 5 + ('0:i32',))}"] * rng.randrange(2)
    lines = "\n        ".join(body)
    return f"""
program p(m: ref[f32,{size + 9}x{size + 9}], x: ref[f32,{size + 9}], out: ref[f32,{size + 9}])
  serial
    own: cell[f32,{size + 9}] = cell[dtype=f32, shape=({size + 9})]
    for k in 0:i32 : {size + 9}:i32 : 1:i32
      v: f32 = load x k
      store own v k
    for i in {first}:i32 : {last}:i32 : {step}:i32
      next: i32 = add i 2:i32
      a: f32 = load {rng.choice(("own", "out", "x"))} {rng.choice((place,) * 5 + ("2:i32",))}
      {", ".join(f"s{n}: f32" for n in range(sums))} = for k in 0:i32 : {trips}:i32 : 1:i32 carry {carried}
        {lines}
        yield {", ".join(f"t{n}" for n in range(sums))}
      {chr(10).join("      " + line for line in after).lstrip()}
    for k in 0:i32 : {size + 9}:i32 : 1:i32
      v: f32 = load own k
      accum[op=add] out v k
  return out
"""


@pytest.mark.full
@pytest.mark.parametrize("block", range(drawn(6)))
def test_random_nests(block: int) -> None:
    joined = 0
    for seed in range(40 * block, 40 * block + 40):
        program = parsed(random_program(seed))
        for times in (2, 3, 4):
            jam = Jam(replace(CPU, jammed=times))
            made = jam(program)
            verify_program(made)
            assert jam(made) is made
            assert_same_results(program, made)
            joined += made is not program
    assert 10 < joined < 110


def rows(
    outer: int, inner: int, trips: int = 9, *, store: str = "out r i", load: str = "m r k", before: str = ""
) -> str:
    """out[r, i] = sum of m[r, k] * x[k, i]."""
    return f"""
program p(m: ref[f32,20x20], x: ref[f32,20x20], out: ref[f32,20x20])
  serial
    for r in 0:i32 : {outer}:i32 : 1:i32
      {before}
      for i in 0:i32 : {inner}:i32 : 1:i32
        s: f32 = for k in 0:i32 : {trips}:i32 : 1:i32 carry c = 0.0:f32
          w: f32 = load {load}
          v: f32 = load x k i
          p: f32 = mul w v
          t: f32 = add c p
          yield t
        store {store.replace(" ", " s ", 1)}
  return out
"""


@pytest.mark.parametrize("times", [2, 4])
@pytest.mark.parametrize(("outer", "inner"), [(4, 8), (5, 8), (4, 11), (7, 9)])
def test_two_rows_of_a_product_of_matrices(outer: int, inner: int, times: int) -> None:
    """Eight sums share what they load; rows and columns that are left over have loops of their own."""
    program = parsed(rows(outer, inner))
    made = Jam(replace(CPU, jammed=times))(program)
    text = print_program(made)
    verify_program(made)
    assert_same_results(program, made)
    assert f"for r in 0:i32 : {outer // 2 * 2}:i32 : 2:i32" in text
    assert text.count("= mul ") == times * 2 + (outer % 2) * times + (inner % times > 0) * (2 + outer % 2)
    assert Jam(replace(CPU, jammed=times))(made) is made


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(rows(4, 8, store="out 0:i32 i"), id="a row that all write"),
        pytest.param(rows(4, 8, load="out k r"), id="what other rows read"),
        pytest.param(rows(1, 8), id="one row"),
        pytest.param(rows(4, 8, before="q: f32 = load out 0:i32 r"), id="a read of another row"),
    ],
)
def test_rows_that_stay(text: str) -> None:
    made = BY_TWO(parsed(text))
    assert ": 2:i32" not in next(line for line in print_program(made).splitlines() if "for r in" in line)
    assert_same_results(parsed(text), made)


@pytest.mark.full
@pytest.mark.parametrize("block", range(drawn(4)))
def test_random_rows(block: int) -> None:
    """Rows may meet in memory, in what they store or in what they read of each other."""
    joined = 0
    places = ("out r i",) * 4 + ("out i r", "out r 0:i32", "x r i", "m r i")
    for seed in range(40 * block, 40 * block + 40):
        rng = Random(seed)
        text = rows(
            rng.randrange(1, 8),
            rng.randrange(1, 12),
            rng.randrange(5, 12),
            store=rng.choice(places),
            load=rng.choice(("m r k",) * 4 + ("out r k", "m k r", "out k r", "x r k")),
            before=rng.choice(("",) * 3 + ("accum[op=add] out 1.0:f32 r r", "q: f32 = load m r 0:i32")),
        )
        program = parsed(text)
        for times in (2, 4):
            made = Jam(replace(CPU, jammed=times))(program)
            verify_program(made)
            assert_same_results(program, made)
            joined += any("for r in" in x and ": 2:i32" in x for x in print_program(made).splitlines())
    assert 10 < joined < 70
