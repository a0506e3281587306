"""Lane refill: lanes that take the next element when theirs has left the loop."""

from dataclasses import replace

import numpy as np
import pytest

from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from tests.lowering.harness import STRICT, agrees, execute

N = 101
YES, NO = " {refill=true}", " {refill=false}"
TARGETS = ("avx512", "avx2")
SIZES = (0, 1, 15, 31, 32, 33, 65, 500)
HALVE = f"""program halve(x: ref[f32,{N}], y: ref[f32,{N}])
  range_for i in 0:i32 : {N}:i32
    a: f32 = load x i
    r: f32 = while carry c = a
      o: bool = gt c 1.0:f32
      test o
      d: f32 = mul c 0.5:f32
      yield d
    store y r i
  return y
"""


def rows(n: int, after: str = "store y r i", before: str = "", index: str = "i32", hint: str = YES) -> Program:
    """A `for` over loaded bounds; `after` follows the loop."""
    extra = "".join(f"    {line}\n" for line in before.splitlines())
    tail = "".join(f"    {line}\n" for line in after.splitlines())
    return parse_program(
        f"""program rows(lo: ref[i32,{n}], hi: ref[i32,{n}], w: ref[f32,{N}], y: ref[f32,{n}], z: ref[i32,4])
  range_for i in 0:{index} : {n}:{index}{hint}
    a: i32 = load lo i
    b: i32 = load hi i
{extra}    r: f32 = for k in a : b : 1:i32 carry c = 0.5:f32
      m: f32 = abs c
      s: f32 = sqrt m
      x: f32 = load w k
      p: f32 = mul x c
      t: f32 = add s p
      u: f32 = div t 2.0:f32
      e: f32 = div u 1.5:f32
      v: f32 = add e 0.25:f32
      yield v
{tail}  return y, z
"""
    )


def _chain(first: str, last: str, length: int) -> str:
    """Costly arithmetic that is exact to the bit everywhere and shrinks its operand."""
    lines, value = [], first
    for k in range(length):
        lines += [f"a{k}: f32 = abs {value}", f"s{k}: f32 = sqrt a{k}", f"q{k}: f32 = div {value} 1.25:f32"]
        lines += [f"d{k}: f32 = div s{k} 8.0:f32", f"m{k}: f32 = sub q{k} d{k}"]
        value = f"m{k}"
    lines.append(f"{last}: f32 = mul {value} 0.9:f32")
    return "\n".join("      " + line for line in lines)


def arguments(n: int, longest: int) -> list[np.ndarray]:
    """Bounds with every trip count from negative to `longest`, weights, results."""
    rng = np.random.default_rng(n)
    low = rng.integers(0, N - longest, n).astype(np.int32)
    high = (low + rng.integers(-2, longest + 1, n)).astype(np.int32)
    w = rng.normal(size=N).astype(np.float32)
    return [low, high, w, np.full(n, -1, np.float32), np.zeros(4, np.int32)]


def is_refilled(program: Program, target: str = "avx512") -> bool:
    return "divergent loops with lane refill" in reason(program, target)


def reason(program: Program, target: str = "avx512") -> str:
    """How the only task was made."""
    (task,) = program.tasks
    return emit_task(task, Target.named(target), STRICT).reason


@pytest.mark.parametrize("longest", [1, 60])
@pytest.mark.parametrize("n", SIZES)
def test_rows_of_every_length(n: int, longest: int) -> None:
    program = rows(n)
    assert is_refilled(program) == (n != 1)  # which is scalar code, if nobody asks for vectors
    agrees(program, arguments(n, longest), TARGETS, vectors=(None, 1, 2, 4))


@pytest.mark.parametrize(
    "after",
    [
        "q: i32 = rem i 4:i32\naccum[op=add] z 1:i32 q\nstore y r i",
        "accum[op=add] z i 2:i32\nstore y r i",
        "accum[op=max] z i 1:i32\naccum[op=add] y r i",
        "g: bool = gt r 0.7:f32\nif g\n  store y r i\nelse\n  f: f32 = convert[dtype=f32] b\n  store y f i",
        "m: i32 = sub i -1:i32\nd: i32 = sub m 1:i32\nstore y r d",
        "o: i32 = atomic[op=add] z 1:i32 0:i32\nstore y r i",
    ],
)
def test_what_follows_the_loop(after: str) -> None:
    program = rows(77, after)
    assert is_refilled(program)
    agrees(program, arguments(77, 20), TARGETS, vectors=(None, 1))


def test_values_from_before_the_loop() -> None:
    before = "h: f32 = load w 3:i32\nn: f32 = convert[dtype=f32] i\nj: f32 = mul h n"
    program = rows(77, "f: f32 = add r j\ng: f32 = add f h\nstore y g i", before)
    assert is_refilled(program)
    agrees(program, arguments(77, 20), TARGETS)


@pytest.mark.full
@pytest.mark.parametrize(("length", "refilled"), [(4, True), (300, False)])
def test_a_private_array_that_a_loop_clears(length: int, refilled: bool) -> None:
    clear = f"""kept: cell[i32,{length}] = cell[dtype=i32, shape=({length})]
for z0 in 0:i32 : {length}:i32 : 1:i32
  store kept a z0
"""
    program = rows(77, "o: i32 = load kept 2:i32\nf: f32 = convert[dtype=f32] o\ng: f32 = add f r\nstore y g i", clear)
    stored = "d: i32 = rem k 3:i32\n      store kept k d\n      m: f32 = abs"
    text = print_program(program).replace("m: f32 = abs", stored)
    program = parse_program(text)
    assert is_refilled(program) == refilled
    agrees(program, arguments(77, 20), TARGETS, vectors=(None, 1))


@pytest.mark.full
def test_while_with_a_counter_that_lanes_do_not_share() -> None:
    program = parse_program(
        f"""program settle(x: ref[f32,{N}], y: ref[f32,{N}], z: ref[i32,{N}])
  range_for i in 0:i64 : {N}:i64{YES}
    a: f32 = load x i
    r: f32, steps: i32 = while carry c = a, k = 0:i32
      m: f32 = abs c
      g: bool = gt m 0.3:f32
      h: bool = lt k 50:i32
      o: bool = and g h
      test o
{_chain("c", "d", 9)}
      n: i32 = add k 1:i32
      yield d, n
    store y r i
    store z steps i
  return y, z
"""
    )
    assert is_refilled(program)
    x = np.random.default_rng(1).normal(size=N).astype(np.float32) * 4
    x[5] = np.nan
    agrees(program, [x, np.zeros(N, np.float32), np.zeros(N, np.int32)], TARGETS, vectors=(None, 1, 2))


def test_where_lanes_are_not_masks() -> None:
    """Rows whose trips are known in front of the loop are ordered; others, also quiet ones, as trips spread, but in
    short vectors, where all wait."""
    assert is_refilled(rows(77), "avx2")
    assert "ordered by trip counts" in reason(rows(77, hint=""), "avx2")
    assert not is_refilled(rows(77), "neon")
    assert "as trip counts spread" in reason(parse_program(HALVE), "avx2")
    assert "refill" not in reason(parse_program(HALVE), "neon")
    heavy = HALVE.replace("      d: f32 = mul c 0.5:f32", _chain("c", "e", 2) + "\n      d: f32 = mul e 0.5:f32")
    assert "as trip counts spread" in reason(parse_program(heavy), "avx2")
    x = np.exp(np.random.default_rng(1).normal(size=N) * 5).astype(np.float32)
    agrees(parse_program(heavy), [x, np.zeros(N, np.float32)], TARGETS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("a: i32 = load lo i", "store y 0.0:f32 i\n    a: i32 = load lo i", id="store before the loop"),
        pytest.param("a : b : 1:i32", "0:i32 : 20:i32 : 1:i32", id="lanes leave together"),
        pytest.param("a : b : 1:i32", "a : b : 2:i32", id="step of two"),
        pytest.param(YES, NO, id="a hint"),
    ],
)
def test_refused_bodies(old: str, new: str) -> None:
    text = print_program(rows(40))
    assert old in text
    program = parse_program(text.replace(old, new))
    assert not is_refilled(program)
    agrees(program, arguments(40, 20), TARGETS)


# Without a hint: the trip counts of some elements decide.


def trips(kind: str, n: int) -> list[np.ndarray]:
    """Bounds of rows whose lengths spread in some way."""
    rng = np.random.default_rng(n)
    longest = N - 1
    lengths = {
        "equal": np.full(n, 9),
        "narrow": rng.integers(8, 11, n),
        "geometric": rng.geometric(0.1, n),
        "rare": np.where(rng.random(n) < 0.05, longest, 2),
        "changing": np.where(np.arange(n) % 2000 < 1000, 7, rng.geometric(0.05, n)),
        "none": np.zeros(n),
    }[kind]
    low = np.zeros(n, np.int32)
    high = np.minimum(lengths, longest).astype(np.int32)
    return [low, high, rng.normal(size=N).astype(np.float32), np.full(n, -1, np.float32), np.zeros(4, np.int32)]


def ways(monkeypatch: pytest.MonkeyPatch, program: Program, args: list[np.ndarray]) -> float:
    """The part of the elements after the first probe that are refilled: those get 1.0 more than the others."""
    found = []
    for name in ("qd_refilled", "qd_masked"):
        code = emit_task(program.tasks[0], Target.named("avx512"), STRICT)
        text = code.text.replace(f"call void @{name}(", "call void @qd_nothing(")
        text += "\ndefine internal void @qd_nothing(ptr %a, i64 %b, i64 %c, ptr %d) {\n  ret void\n}\n"
        changed = replace(code, text=text)
        monkeypatch.setattr("tests.lowering.harness.emit_task", lambda *_, changed=changed: changed)
        (y, _) = execute(program, args, "avx512")
        found.append(float((y == -1).sum()))
    monkeypatch.undo()
    return found[0] / max(1.0, sum(found))


@pytest.mark.parametrize(
    ("kind", "refilled"),
    [("equal", (0, 0)), ("narrow", (0, 0)), ("geometric", (1, 1)), ("rare", (1, 1)), ("changing", (0.1, 0.9))],
)
def test_the_spread_of_trip_counts_decides(
    monkeypatch: pytest.MonkeyPatch, kind: str, refilled: tuple[float, float]
) -> None:
    monkeypatch.setattr("lowering.simd.divergence.spread.BLOCK", 12)
    program = rows(6000, hint="")
    assert "under masks or with lane refill, as trip counts spread" in reason(program)
    low, high = refilled
    assert low <= ways(monkeypatch, program, trips(kind, 6000)) <= high


@pytest.mark.parametrize("kind", ["equal", "narrow", "geometric", "rare", "changing", "none"])
@pytest.mark.parametrize("n", [*SIZES, 1999])
def test_both_ways_give_the_same(monkeypatch: pytest.MonkeyPatch, kind: str, n: int) -> None:
    monkeypatch.setattr("lowering.simd.divergence.spread.BLOCK", 2)
    monkeypatch.setattr("lowering.simd.divergence.spread.PROBE", 1)
    agrees(rows(n, hint=""), trips(kind, n), TARGETS, vectors=(None, 1, 2))


@pytest.mark.full
def test_cheap_loops_have_the_choice_too() -> None:
    assert "as trip counts spread" in reason(parse_program(HALVE))
    assert not is_refilled(parse_program(HALVE.replace(f": {N}:i32\n", f": {N}:i32{NO}\n")))
    assert is_refilled(parse_program(HALVE.replace(f": {N}:i32\n", f": {N}:i32{YES}\n")))
    x = np.exp(np.random.default_rng(1).normal(size=N) * 5).astype(np.float32)
    x[:3] = np.nan, np.inf, -np.inf
    x[1] = 3e38
    for hint in ("", YES, NO):
        agrees(
            parse_program(HALVE.replace(f": {N}:i32\n", f": {N}:i32{hint}\n")), [x, np.zeros(N, np.float32)], TARGETS
        )


@pytest.mark.parametrize(
    ("loop", "after", "how"),
    [
        (12, 0, "divergent loops with lane refill"),
        (12, 2, "divergent loops with lane refill"),
        (12, 8, "under masks or with lane refill, as trip counts spread"),
        (40, 40, "divergent loops with lane refill"),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_long_bodies_are_always_refilled(loop: int, after: int, how: str, target: str) -> None:
    """If they are long beside what is around them, or too long for three copies."""
    program = parse_program(
        f"""program settle(x: ref[f32,{N}])
  range_for i in 0:i32 : {N}:i32
    a: f32 = load x i
    r: f32 = while carry c = a
      m: f32 = abs c
      o: bool = gt m 0.3:f32
      test o
{_chain("c", "d", loop)}
      yield d
{_chain("r", "e", after).replace("      ", "    ")}
    store x e i
  return x
"""
    )
    assert how in reason(program, target)


@pytest.mark.parametrize(("step", "refilled"), [("u: f32 = div t 2.0:f32", True), ("u: f32 = neg t", False)])
def test_tasks_that_reduce_have_one_way(step: str, refilled: bool) -> None:
    """By cost: the order of their sums may not depend on what was counted."""
    text = print_program(rows(40, "store y r i\nf: i32 = convert[dtype=i32] r\naccum[op=add] z f 0:i32", hint=""))
    program = parse_program(text.replace("u: f32 = div t 2.0:f32", step))
    assert "or with lane refill" not in reason(program)
    assert is_refilled(program) is refilled
    agrees(program, arguments(40, 20), TARGETS)


@pytest.mark.parametrize("gathers", [False, True])
def test_what_is_measured_is_weighed_by_the_cost_of_gathers(gathers: bool) -> None:
    program = rows(N, hint="")
    if not gathers:
        program = parse_program(print_program(program).replace("load w k", "load w 3:i32"))
    texts = {
        emit_task(program.tasks[0], replace(Target.named("avx512"), cpu=cpu), STRICT).text
        for cpu in ("sapphirerapids", "znver4")
    }
    assert len(texts) == 1 + gathers
