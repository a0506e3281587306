"""Vectors along the inner loops of a task: random rows against the interpreter, and which loops and tasks run so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.inner import choice
from lowering.simd.plan import plan_task
from qdtrace.errors import BoundsError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.passes.dead_stores import DeadStores
from qdtrace.passes.first_accumulations import FirstAccumulations
from tests.lowering.guards import STRICT
from tests.lowering.harness import execute, same_bits
from tests.selection import drawn

ALONG = "vectors along its loops"
HEADER = """program rows(x: ref[i32,{n}x{m}], z: ref[f32,{n}x{m}], w: ref[i32,{m}], i: ref[i32,{m}])
  buffer y: ref[i32,{n}x{m}] = 3:i32
  buffer u: ref[f32,{n}x{m}] = 0.5:f32
  buffer out: ref[f32,{n}]
  range_for r in 0:i32 : {n}:i32
    a: cell[i32,{m}] = cell[dtype=i32, shape=({m})]
    for at in 0:i32 : {m}:i32 : 1:i32
      store a at at
"""
FOOTER = "    f: f32 = convert[dtype=f32] {total}\n    g: f32 = add f {most}\n    store out g r\n  return y, u, out\n"


class _Maker:
    """Draws loops over a row: loads, stores, accumulations and carries, whether or not trips are apart."""

    def __init__(self, rng: np.random.Generator, m: int) -> None:
        self.rng = rng
        self.m = m
        self.total, self.most = "0:i32", "-inf:f32"

    def pick(self, *words: str) -> str:
        return words[self.rng.integers(len(words))]

    def loop(self, k: int) -> str:
        low, high = int(self.rng.integers(3)), self.m - 2 - int(self.rng.integers(3))
        bounds = self.pick(f"{low}:i32 : {high}:i32 : 1:i32", f"{high}:i32 : {low}:i32 : -1:i32")
        lines = [
            f"next: i32 = add k{k} 1:i32", f"back: i32 = sub {self.m - 1}:i32 k{k}", f"mod: i32 = rem k{k} 4:i32",
            f"most: i32 = load i k{k}", "bit: i32 = and most 1:i32", f"near: i32 = add k{k} bit",
            "row: i32 = and r 1:i32", f"far: i32 = add k{k} row",
        ]  # fmt: skip
        values = [f"k{k}", self.total] if self.rng.integers(3) else [f"k{k}", self.total, f"s{k}"]
        for n in range(self.rng.integers(1, 5)):
            at = self.pick(*(f"k{k}",) * 5, "next", "back", "2:i32", "mod", "near", "far")
            place = self.pick(f"x r {at}", f"w {at}", f"a {at}", f"y r {at}")
            kind = self.pick("load", "load", "gather", "operate", "store", "accum")
            value, ref = self.pick(*values), self.pick(f"a {{}} {at}", f"y {{}} r {at}")
            if kind == "load":
                lines.append(f"v{n}: i32 = load {place}")
            elif kind == "gather":
                check = f'bound[size={self.m}, axis=0, buffer="w", shape=({self.m})] g{n}'
                lines += [f"g{n}: i32 = load i k{k}", f"b{n}: i32 = {check}"]
                lines.append(f"v{n}: i32 = load {self.pick('x r', 'w', 'a')} {self.pick('g', 'b')}{n}")
            elif kind == "operate":
                lines.append(f"v{n}: i32 = {self.pick('add', 'mul', 'max')} {value} {self.pick(*values)}")
            else:
                lines.append(ref.replace("{}", value).join((f"{kind}{'[op=add]' * (kind == 'accum')} ", "")))
                continue
            values.append(f"v{n}")
        value, op = self.pick(*values), self.pick("add", "sub", "max", "min", "mul")
        operands = (f"s{k}", value) if self.pick("left", "right", "left") == "left" else (value, f"s{k}")
        lines += [f"q: f32 = load z r {self.pick(f'k{k}', 'next', '0:i32')}"]
        lines += [f"m: f32 = {self.pick('max', 'min')} o{k} q", f"t: i32 = {op} {' '.join(operands)}"]
        if self.rng.integers(3):  # what was largest so far, with this trip or without it
            most = self.pick("m", f"o{k}")
            lines.insert(len(lines) - (0 if most == "m" else int(self.rng.integers(4))), f"store u {most} r k{k}")
        renamed = [_suffixed(line, k) for line in (*lines, "yield t m")]
        head = f"    c{k}: i32, d{k}: f32 = for k{k} in {bounds} carry s{k} = {self.total}, o{k} = {self.most}\n"
        self.total, self.most = f"c{k}", f"d{k}"
        return head + "".join(f"      {line}\n" for line in renamed)


def _suffixed(line: str, k: int) -> str:
    """Returns a line whose names of this loop's values are unlike those of other loops."""
    drawn = (f"{c}{n}" for c in "vgb" for n in range(5))
    local = {"next", "back", "mod", "most", "bit", "near", "row", "far", "q", "m", "t", *drawn}
    words = [f"{w}_{k}" if w in local else w for w in line.replace(":", " :", 1).split(" ")]
    return " ".join(words).replace(" :", ":", 1).replace(f"t_{k} m_{k}", f"t_{k}, m_{k}")


def rows(seed: int, n: int, m: int) -> str:
    maker = _Maker(np.random.default_rng(seed), m)
    text = HEADER + "".join(maker.loop(k) for k in range(maker.rng.integers(1, 5)))
    return (text + FOOTER.format(total=maker.total, most=maker.most)).replace("{n}", str(n)).replace("{m}", str(m))


def arguments(rng: np.random.Generator, n: int, m: int) -> list[np.ndarray]:
    whole = rng.integers(-9, 9, (n, m), np.int32)
    some = rng.choice(np.array([-0.0, 0.0, 1.5, -2.0, np.nan], np.float32), (n, m), p=[0.3, 0.3, 0.2, 0.1999, 0.0001])
    return [whole, some, rng.integers(-9, 9, m, np.int32), rng.integers(0, m, m, np.int32)]


@pytest.mark.full
def test_random_rows_agree_with_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "is_faster", lambda *_: True)
    along, loops = 0, 0
    for seed in range(drawn(60)):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(1, 6)), int(rng.integers(6, 140))
        program = parse_program(rows(seed, n, m))
        args = arguments(rng, n, m)
        target = ("avx512", "avx2", "portable")[seed % 3]
        plan = plan_task(program.tasks[0], Target.named(target), STRICT)
        along += len(plan.shape.inner)
        loops += len(plan.facts.innermost_loops)
        for got, want in zip(execute(program, args, target), evaluate(program, args), strict=True):
            same_bits(got, want, (seed, target))
    assert 0.3 * loops < along < loops


SUM = """program p(x: ref[f32,50x200], y: ref[f32,50x200])
  buffer out: ref[f32,50]
  range_for r in 0:i32 : 50:i32
    s: f32 = for k in {bounds} carry c = 0.5:f32
      v: f32 = load x {place}
{body}
      yield t
    store out s r
  return out, y
"""
UP, ROW, ADD = "0:i32 : 200:i32 : 1:i32", "r k", "      t: f32 = add c v"
SHARE = "      u: f32 = add w v\n      t: f32 = mul c u"


@pytest.mark.full
@pytest.mark.parametrize(
    ("bounds", "place", "body", "along"),
    [
        (UP, ROW, ADD, True),
        ("199:i32 : -1:i32 : -1:i32", ROW, ADD, True),
        (UP, ROW, "      t: f32 = sub c v", True),
        (UP, ROW, "      u: f32 = max c v\n      t: f32 = max u 0.0:f32", True),
        (UP, ROW, "      u: f32 = mul v v\n      t: f32 = add u c\n      store y u r k", True),
        ("0:i32 : 200:i32 : 2:i32", ROW, ADD, False),  # a step of two
        ("0:i32 : r : 1:i32", ROW, ADD, False),  # rows of different lengths
        (UP, "k r", ADD, False),  # along a column, lanes are neighbours
        (UP, ROW, "      t: f32 = sub v c", False),  # not a sum
        (UP, ROW, "      u: f32 = add c v\n      t: f32 = mul u 0.5:f32", False),
        (UP, ROW, ADD + "\n      store y t r k", True),  # every partial sum is kept
        ("199:i32 : -1:i32 : -1:i32", ROW, "      store y c r k\n" + ADD, True),
        (UP, ROW, "      store y c r k\n      t: f32 = max c v", True),
        (UP, ROW, "      w: f32 = load y r k\n      store y c r k\n" + SHARE, True),
        (UP, ROW, "      store y c r k\n      w: f32 = load y r k\n      t: f32 = max c w", False),  # in this order
        (UP, ROW, "      u: f32 = mul c v\n      t: f32 = add c u", False),  # a value that depends on the sum
        (UP, ROW, ADD + "\n      store y v r 0:i32", False),  # the last trip's value stays
        (UP, ROW, ADD + "\n      n: i32 = sub 199:i32 k\n      store y v r k\n      q: f32 = load y r n", False),
    ],
)
def test_what_runs_along_rows(bounds: str, place: str, body: str, along: bool) -> None:
    text = SUM if place == ROW else SUM.replace("50x200]", "200x50]", 1)
    program = parse_program(text.format(bounds=bounds, place=place, body=body))
    for target in ("avx512", "avx2", "portable"):
        options = EmitOptions()
        assert (ALONG in plan_task(program.tasks[0], Target.named(target), options).reason) == along
        args = [np.random.default_rng(1).random(p.type.shape, np.float32) for p in program.params]
        for got, want in zip(execute(program, args, target, options, (0.3,)), evaluate(program, args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)  # 200 numbers of one sign, added in another order


def test_sums_of_floats_keep_their_order_without_fast_math() -> None:
    task = parse_program(SUM.format(bounds=UP, place=ROW, body=ADD)).tasks[0]
    assert ALONG not in plan_task(task, Target.named("avx512"), STRICT).reason
    assert ALONG not in plan_task(task, Target.named("scalar"), EmitOptions()).reason
    for vectorize in (True, False):
        assert ALONG not in plan_task(task, Target.named("avx512"), EmitOptions(vectorize=vectorize)).reason


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize("place", [0, 5, 63, 65])
def test_an_index_that_fails_in_a_trip(monkeypatch: pytest.MonkeyPatch, target: str, place: int) -> None:
    """Trips of whole vectors and of the rest check the indices of their lanes; the rest has 66 - 64 of them."""
    text = """program p(n: ref[i32,3x66], x: ref[f32,8])
  buffer out: ref[f32,3]
  range_for r in 0:i32 : 3:i32
    s: f32 = for k in 0:i32 : 66:i32 : 1:i32 carry c = 0.0:f32
      a: i32 = load n r k
      b: i32 = bound[size=8, axis=0, buffer="x", shape=(8)] a
      v: f32 = load x b
      t: f32 = max c v
      yield t
    store out s r
  return out
"""
    monkeypatch.setattr(choice, "is_faster", lambda *_: True)
    program = parse_program(text)
    assert ALONG in plan_task(program.tasks[0], Target.named(target), EmitOptions()).reason
    n, x = np.zeros((3, 66), np.int32), np.arange(8, dtype=np.float32)
    n[0, place], n[1, 65 - place], n[2, 7] = 3, 7, 2
    np.testing.assert_array_equal(execute(program, [n, x], target)[0], [3, 7, 2])
    for index in (8, -1):
        n[1, place] = index
        with pytest.raises(BoundsError, match=f"^index {index} is out of bounds for axis 0 of `x` with shape"):
            execute(program, [n, x], target)


@pytest.mark.parametrize("n", [1, 64, 77, 512])
@pytest.mark.full
def test_softmax_and_standardised_rows_in_lanes(n: int) -> None:
    def standardised(x: jax.Array) -> jax.Array:
        return (x - jnp.mean(x)) / (jnp.std(x) + 0.1)

    x, bar = jax.random.normal(jax.random.key(n), (2, 9, n)) * 3
    for f in (jax.nn.softmax, standardised):
        got, back = jax.vjp(qd.vmap(f), x)
        want, back_of_jax = jax.vjp(jax.vmap(f), x)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(back(bar)[0], back_of_jax(bar)[0], rtol=1e-4, atol=1e-5)
    large = jnp.array([[jnp.inf, 0.0, jnp.nan] * n, [-jnp.inf, 1.0, 2.0] * n, [3e38, 3e38, 1.0] * n])
    np.testing.assert_allclose(qd.vmap(jax.nn.softmax)(large), jax.nn.softmax(large), rtol=1e-5)


@pytest.mark.parametrize(("length", "vectors"), [(510, 4), (512, 1), (1000, 4), (1024, 1)])
def test_lanes_of_rows_in_few_sets_of_the_cache(length: int, vectors: int) -> None:
    bounds = UP.replace("200", f"{length}") + " [unroll=1]"  # strips take one vector
    text = SUM.replace("200", str(length)).format(bounds=bounds, place=ROW, body=ADD)
    task = parse_program(text).tasks[0]
    assert plan_task(task, Target.named("avx512"), EmitOptions(vectorize=True)).shape.vectors == vectors


@pytest.mark.parametrize("results", ["y, u, out", "out"])
def test_passes_keep_what_random_rows_give(results: str) -> None:
    """What is stored in loops and not read goes, and first accumulations in loops become stores."""
    changed = 0
    for seed in range(drawn(45)):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(1, 4)), int(rng.integers(6, 9))
        program = parse_program(rows(seed, n, m).replace("return y, u, out", f"return {results}"))
        args = arguments(rng, n, m)
        want = evaluate(program, args)
        made = FirstAccumulations()(DeadStores()(program))
        changed += made is not program
        for got, expected in zip(evaluate(made, args), want, strict=True):
            same_bits(got, expected, seed)
    assert changed > (3 if results == "out" else 0)


@pytest.mark.parametrize("first", ["n", "p"])
@pytest.mark.parametrize("bounds", ["0:i32 : 77:i32 : 1:i32", "76:i32 : -1:i32 : -1:i32"])
def test_trips_with_two_elements_each(first: str, bounds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""program p(x: ref[i32,3x77], y: ref[i32,3x154], z: ref[i32,3x154])
  buffer out: ref[i32,3]
  range_for r in 0:i32 : 3:i32
    a: cell[i32,154] = cell[dtype=i32, shape=(154)]
    for k in {bounds}
      n: i32 = mul k 2:i32
      p: i32 = add n 1:i32
      v: i32 = load x r k
      w: i32 = load y r {first}
      store y v r n
      accum[op=add] y w r p
      accum[op=add] z v r p
      store a w n
      store a v p
    s: i32 = for j in {bounds.replace("77", "154").replace("76", "153")} carry c = 0:i32
      v1: i32 = load a j
      v2: i32 = mul v1 j
      t: i32 = add c v2
      yield t
    store out s r
  return out, y, z
"""
    monkeypatch.setattr(choice, "is_faster", lambda *_: True)
    program = parse_program(text)
    args = [np.random.default_rng(2).integers(-9, 9, p.type.shape, np.int32) for p in program.params]
    for target in ("avx512", "avx2", "portable"):
        assert len(plan_task(program.tasks[0], Target.named(target), STRICT).shape.inner) == 2
        for got, want in zip(execute(program, args, target), evaluate(program, args), strict=True):
            same_bits(got, want, target)


COLUMNS = """program p(x: ref[f32,50x12x40], y: ref[f32,50x40])
  range_for r in 0:i32 : 50:i32
    for k in {bounds}
      s: f32 = for n in 0:i32 : 12:i32 : 1:i32 carry c = {first}
{body}
        t: f32 = add c v
        yield t
      store y s r k
  return y
"""
DOWN = "        v: f32 = load x r n k"


@pytest.mark.parametrize(
    ("bounds", "first", "body", "along", "around"),
    [
        ("0:i32 : 40:i32 : 1:i32", "0.0:f32", DOWN, True, True),
        ("39:i32 : -1:i32 : -1:i32", "0.5:f32", DOWN, True, True),
        ("0:i32 : 12:i32 : 1:i32", "0.0:f32", "        v: f32 = load x r k n", None, False),  # lines of 12: by target
        ("0:i32 : 40:i32 : 1:i32", "0.0:f32", DOWN + "\n        store x v r n 0:i32", False, False),
        ("0:i32 : 40:i32 : 1:i32", "0.0:f32", DOWN + "\n        store x c r n k", True, True),
        ("0:i32 : 40:i32 : 2:i32", "0.0:f32", DOWN, False, False),
    ],
)
def test_sums_down_lines_have_a_column_in_each_lane(
    bounds: str, first: str, body: str, along: bool | None, around: bool
) -> None:
    program = parse_program(COLUMNS.format(bounds=bounds, first=first, body=body))
    args = [np.random.default_rng(1).random(p.type.shape, np.float32) for p in program.params]
    for target in ("avx512", "avx2", "portable"):
        shape = plan_task(program.tasks[0], Target.named(target), EmitOptions()).shape
        assert along is None or (ALONG in shape.reason) == along, shape.reason
        assert any(e.primitive.loops for loop in shape.inner for e in loop.blocks[0].eqns) == around
        want = evaluate(program, args)[0]
        np.testing.assert_allclose(execute(program, args, target, EmitOptions(), (0.3,))[0], want, rtol=1e-5)


class _NestMaker:
    """Draws loops along lines with loops down them inside: what a trip touches is its own, or its neighbour's."""

    def __init__(self, rng: np.random.Generator, n: int, m: int) -> None:
        self.rng = rng
        self.n, self.m = n, m

    def pick(self, *words: str) -> str:
        return words[self.rng.integers(len(words))]

    def inside(self, k: str, depth: int) -> list[str]:
        """Returns lines of a loop over `j`, which carries a sum of what it reads, and changes what it passes."""
        j, (n, m) = f"j{depth}", (self.n, self.m)
        bounds = self.pick(f"0:i32 : {n}:i32 : 1:i32", f"{n - 1}:i32 : -1:i32 : -1:i32", f"1:i32 : {n}:i32 : 2:i32")
        flat = [f"line{j}: i32 = mul {j} {m}:i32", f"flat{j}: i32 = add line{j} {k}"]
        lines, last = [*flat, f"next{j}: i32 = rem {j} {n - 1}:i32"], f"c{j}"
        for at in range(self.rng.integers(1, 4)):
            place = self.pick(f"b flat{j}", f"a {j} {k}", f"a {j} {k}", f"x r {j} {k}", f"y r {j} {k}", f"a {k}2 {j}")
            place = place.replace(f"{k}2", self.pick(f"next{j}", j)) if " " in place else place
            kind = self.pick("load", "load", "store", "accum")
            if kind == "load" or place.startswith("x"):
                lines += [f"v{j}{at}: i32 = load {place}", f"s{j}{at}: i32 = {self.pick('add', 'max')} {last} v{j}{at}"]
                last = f"s{j}{at}"
            else:
                ref, rest = place.split(" ", 1)
                lines.append(f"{kind}{'[op=add]' * (kind == 'accum')} {ref} {self.pick(last, k)} {rest}")
        if depth == 0 and self.rng.integers(2):
            lines += self.inside(k, 1)
            lines.append(f"s{j}: i32 = sub {last} t{1}")
            last = f"s{j}"
        head = f"t{depth}: i32 = for j{depth} in {bounds} carry c{j} = {self.pick('0:i32', k)}"
        return [head, *(f"  {line}" for line in lines), f"  yield {last}"]

    def text(self) -> str:
        n, m = self.n, self.m
        bounds = self.pick(f"0:i32 : {m}:i32 : 1:i32", f"{m - 1}:i32 : -1:i32 : -1:i32")
        lines = self.inside("k", 0)
        lines += [self.pick("store s t0 k", "accum[op=add] s t0 k", "store y t0 r 0:i32 k", "store s t0 0:i32")]
        lines += ["t: i32 = add c t0", "yield t"]
        loop = [f"total: i32 = for k in {bounds} carry c = 3:i32", *(f"  {line}" for line in lines)]
        fill = [
            f"a: cell[i32,{n}x{m}] = cell[dtype=i32, shape=({n}, {m})]",
            f"b: cell[i32,{n * m}] = cell[dtype=i32, shape=({n * m})]",
            f"s: cell[i32,{m}] = cell[dtype=i32, shape=({m})]",
            f"for p in 0:i32 : {n * m}:i32 : 1:i32", f"  q: i32 = div p {m}:i32", f"  o: i32 = rem p {m}:i32",
            "  z: i32 = load x r q o", "  store a p q o", "  store b z p",
            f"for u in 0:i32 : {m}:i32 : 1:i32", "  store s u u",
        ]  # fmt: skip
        out = [
            f"for e in 0:i32 : {n * m}:i32 : 1:i32", f"  f: i32 = div e {m}:i32", f"  g: i32 = rem e {m}:i32",
            "  aa: i32 = load a f g", "  bb: i32 = load b e", "  ss: i32 = load s g", "  ab: i32 = sub aa bb",
            "  as: i32 = mul ab ss", "  store out as r f g", "store whole total r",
        ]  # fmt: skip
        body = "".join(f"    {line}\n" for line in (*fill, *loop, *out))
        head = f"program p(x: ref[i32,5x{n}x{m}])\n  buffer y: ref[i32,5x{n}x{m}] = 2:i32\n"
        head += f"  buffer out: ref[i32,5x{n}x{m}]\n  buffer whole: ref[i32,5]\n  range_for r in 0:i32 : 5:i32\n"
        return f"{head}{body}  return y, out, whole\n"


@pytest.mark.full
def test_random_loops_down_lines_agree_with_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "is_faster", lambda *_: True)
    monkeypatch.setattr(choice, "runs_around", lambda *_: True)
    along, apart = 0, 0
    for seed in range(drawn(90)):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(2, 6)), int(rng.integers(5, 40))
        program = parse_program(_NestMaker(rng, n, m).text())
        args = [rng.integers(-9, 9, (5, n, m), np.int32)]
        target = ("avx512", "avx2", "portable")[seed % 3]
        inner = plan_task(program.tasks[0], Target.named(target), STRICT).shape.inner
        is_along = any(e.primitive.loops for loop in inner for e in loop.blocks[0].eqns)
        along, apart = along + is_along, apart + (not is_along)
        for got, want in zip(execute(program, args, target), evaluate(program, args), strict=True):
            same_bits(got, want, (seed, target))
    assert along > apart / 3
    assert apart > along / 10
