"""Ranges with what is known in a place: no value ever leaves them, and the usual guards prove the usual indices."""

import itertools
import random

import pytest

from qdtrace.analysis.index.flow_ranges import FlowRanges
from qdtrace.analysis.index.intervals import range_of_result
from qdtrace.interpret.numpy_rules import quiet, scalar_function
from qdtrace.ir.builder import Builder
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Eqn, Program, Task, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.passes.prove_bounds import ProveBounds, Prover
from tests.analysis.integer_programs import Draw, arguments, ends, in_sight, outcome, watched

RUNS = 5
"""Runs of each random task, on other inputs."""


def ranges_in(program: Program) -> dict[tuple[Eqn, Var], tuple[int, int]]:
    """The range of every variable in sight where each equation begins, as the pass that uses them sees it."""
    (task,) = program.tasks
    sight = in_sight(task)
    found: dict[tuple[Eqn, Var], tuple[int, int]] = {}

    class Asking(Prover):
        def visit(self, eqn: Eqn) -> None:
            found.update({(eqn, v): self.ranges.of(v) for v in sight[eqn]})
            super().visit(eqn)

    Asking(task).rebuild_task(task)
    return found


def is_sound(seed: int) -> int:
    """No value of a random task leaves its range, and proofs change no outcome; gives how many ranges say something."""
    program = Draw(seed).program()
    verify_program(program)
    ranges = ranges_in(program)
    inputs = [arguments(program, random.Random(seed + k)) for k in range(RUNS)]
    says = 0
    for (eqn, var), (low, high) in watched(program, iter(inputs)).items():
        first, last = ranges[eqn, var]
        where = f"seed {seed}: {low} to {high}, not in {first} to {last}, at {eqn.primitive.name}\n"
        assert first <= low, where + print_program(program)
        assert high <= last, where + print_program(program)
        says += (first, last) != ends(var.dtype)
    proven = ProveBounds()(program)
    verify_program(proven)
    for args in inputs:
        assert outcome(proven, args) == outcome(program, args), f"seed {seed}\n{print_program(program)}"
    return says


@pytest.mark.full
@pytest.mark.sample(2, full=2)
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_no_value_leaves_its_range(first: int) -> None:
    says = sum(is_sound(seed) for seed in range(first, first + 25))
    assert says > 500  # a test of ranges that say nothing would prove nothing


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21000, 500))
def test_no_value_leaves_its_range_in_long_runs(first: int) -> None:
    for seed in range(first, first + 500):
        is_sound(seed)


# Single equations.

_SAMPLES = (-128, -127, -9, -2, -1, 0, 1, 2, 3, 7, 8, 126, 127)
_UNSIGNED = (0, 1, 2, 3, 7, 8, 126, 127, 128, 254, 255)
_BINARY = (
    "add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shift_left", "shift_right_logical",
    "shift_right_arithmetic", "lt", "le", "gt", "ge", "eq", "ne",
)  # fmt: skip
_UNARY = ("neg", "abs", "sign", "not", "population_count", "clz")
_SHORT = ((0, 1), (-1, 0), (0, 0), (1, 1), (-3, 2), (-1, 7), (5, 8), (-128, -126), (125, 127), (-128, 127), (0, 127))


def _results(name: str, dtype: DType, operands: list[tuple[int, int]], **params: object) -> tuple[int, int]:
    function = scalar_function(name, [dtype] * len(operands), params)
    make = dtype.numpy.type
    with quiet():
        values = [int(function(*map(make, xs))) for xs in itertools.product(*(range(a, b + 1) for a, b in operands))]
    return min(values), max(values)


@pytest.mark.parametrize("dtype", [DType.i8, DType.u8])
@pytest.mark.parametrize("name", [*_BINARY, *_UNARY])
def test_the_result_of_an_equation_is_in_its_range(name: str, dtype: DType) -> None:
    low, high = ends(dtype)
    ranges = sorted({(max(a, low), min(b, high)) for a, b in _SHORT if min(b, high) >= max(a, low)})
    if dtype is DType.u8:
        ranges += [(120, 130), (250, 255), (0, 255)]
    result = DType.bool if name in ("lt", "le", "gt", "ge", "eq", "ne") else dtype
    for operands in itertools.product(ranges, repeat=1 if name in _UNARY else 2):
        if sum(b - a for a, b in operands) > 300:
            continue  # two whole dtypes: nothing to say, and long to run
        got = range_of_result(name, operands, result, dtype)
        want = _results(name, dtype, list(operands))
        assert got[0] <= want[0] <= want[1] <= got[1], (operands, got, want)


@pytest.mark.parametrize("dtype", [DType.i8, DType.i32, DType.i64, DType.u8, DType.u64, DType.bool])
def test_a_conversion_that_wraps_has_the_range_of_the_dtype(dtype: DType) -> None:
    for source, (low, high) in itertools.product(
        (DType.i64, DType.u64, DType.i32, DType.bool), ((0, 1), (0, 300), (-1, 3), (5, 5), (2**31 - 2, 2**31 - 1))
    ):
        first, last = ends(source)
        if low < first or high > last:
            continue
        got = range_of_result("convert", [(low, high)], dtype, source)
        function = scalar_function("convert", [source], {"dtype": dtype})
        with quiet():
            for value in {low, high, (low + high) // 2}:
                assert got[0] <= int(function(source.numpy.type(value))) <= got[1], (source, low, high, got)


# Conditions, on all values of two operands.


@pytest.mark.parametrize("seed", range(30))
def test_what_follows_from_a_condition(seed: int) -> None:
    """All values of i8 variables that make a random condition true, or false, are in the ranges that follow."""
    one = random.Random(seed)
    b = Builder()
    loads: list[Eqn] = []
    program = parse_program("program p(x: ref[i8,3], y: ref[bool])\n  serial\n    store y true\n  return y\n")
    x = program.params[0]
    variables = [b.load(x, literal(k, DType.i32)) for k in range(2)]
    loads += b.current.eqns
    near = [*variables]
    for v in variables:
        near.append(b(one.choice(("add", "sub")), v, literal(one.randint(-3, 3), DType.i8)))
        near.append(b("convert", v, dtype=DType.i32))
        near.append(b("add", near[-1], literal(one.randint(-3, 3), DType.i32)))

    def condition(depth: int) -> Var:
        if depth and one.random() < 0.7:
            name = one.choice(("and", "or", "not"))
            return b(name, *(condition(depth - 1) for _ in range(1 if name == "not" else 2)))
        v = one.choice(near)
        others = [n for n in near if n.dtype is v.dtype]
        w = one.choice(others) if one.random() < 0.3 else literal(one.choice((-128, -2, 0, 1, 5, 127)), v.dtype)
        return b(one.choice(("lt", "le", "gt", "ge", "eq", "ne")), *((v, w) if one.random() < 0.7 else (w, v)))

    last = condition(3)
    b.store(program.params[1], last)
    task = Task("serial", None, literal(0, DType.i32), literal(1, DType.i32), b.current.close())
    ranges = FlowRanges(task)
    facts = {holds: ranges.facts_of(last, holds) for holds in (True, False)}
    steps = [
        (e.outvars[0], scalar_function(e.primitive.name, [a.dtype for a in e.invars], e.params), e.invars)
        for e in b.current.eqns
        if e not in loads and e.outvars
    ]
    with quiet():
        for values in itertools.product(_SAMPLES, repeat=2):
            env: dict[object, object] = {v: DType.i8.numpy.type(k) for v, k in zip(variables, values, strict=True)}
            for out, function, operands in steps:
                env[out] = function(*(env[a] if isinstance(a, Var) else a.value for a in operands))
            known = facts[bool(env[last])]
            for var, value in env.items():
                low, high = known.get(id(var), ends(var.dtype))  # type: ignore[attr-defined]
                assert low <= int(value) <= high, (values, var, low, high)  # type: ignore[call-overload]


def test_a_condition_that_never_holds_leaves_no_range_upside_down() -> None:
    text = """
program p(x: ref[i32,1], y: ref[i32,8])
  serial
    a: i32 = load x 0:i32
    b: i32 = and a 1:i32
    c: bool = lt b b
    if c
      d: i32 = add b 4:i32
      e: i32 = rem d b
      f: i32 = shift_right_logical d b
      g: i32 = add e f
      h: i32 = bound[axis=0, buffer="y", shape=(8), size=8] g
      store y 1:i32 h
  return y
"""
    ProveBounds()(parse_program(text))


# Precision: what must be proven.

_BOUND = '[size=8, axis=0, buffer="x", shape=(8)]'
PROVEN = {
    "task index": """
    k: i32 = bound i
""",
    "one before, behind a test": """
    p: bool = gt i 0:i32
    if p
      j: i32 = sub i 1:i32
      k: i32 = bound j
""",
    "one after, behind a test": """
    p: bool = lt i 7:i32
    if p
      j: i32 = add i 1:i32
      k: i32 = bound j
""",
    "not the first": """
    p: bool = ne i 0:i32
    if p
      j: i32 = sub i 1:i32
      k: i32 = bound j
""",
    "the other side": """
    p: bool = eq i 0:i32
    if p
    else
      j: i32 = sub i 1:i32
      k: i32 = bound j
""",
    "neighbour on a ring, as Python's remainder": """
    j: i32 = sub i 1:i32
    r: i32 = rem j 8:i32
    negative: bool = lt r 0:i32
    s: i32 = add r 8:i32
    t: i32 = select negative s r
    k: i32 = bound t
""",
    "clip": """
    a: i32 = load n 0:i32
    b: i32 = max a 0:i32
    c: i32 = min b 7:i32
    k: i32 = bound c
""",
    "two tests with and": """
    a: i32 = load n 0:i32
    p: bool = ge a 0:i32
    q: bool = lt a 8:i32
    r: bool = and p q
    if r
      k: i32 = bound a
""",
    "not of an or": """
    a: i32 = load n 0:i32
    p: bool = lt a 0:i32
    q: bool = ge a 8:i32
    r: bool = or p q
    s: bool = not r
    if s
      k: i32 = bound a
""",
    "select": """
    a: i32 = load n 0:i32
    p: bool = lt a 8:i32
    q: bool = ge a 0:i32
    r: bool = and p q
    b: i32 = select r a 0:i32
    k: i32 = bound b
""",
    "while below": """
    e: i32 = while carry c = 0:i32
      p: bool = lt c 8:i32
      test p
      k: i32 = bound c
      d: i32 = add c 1:i32
      yield d
""",
    "while above": """
    e: i32 = while carry c = 7:i32
      p: bool = ge c 0:i32
      test p
      k: i32 = bound c
      d: i32 = sub c 1:i32
      yield d
""",
    "while below a number of the run": """
    a: i32 = load n 0:i32
    b: i32 = min a 8:i32
    e: i32 = while carry c = 0:i32
      p: bool = lt c b
      test p
      k: i32 = bound c
      d: i32 = add c 1:i32
      yield d
""",
    "loop with a way out": """
    e: i32, f: bool = while carry c = 0:i32, go = true
      p: bool = lt c 8:i32
      q: bool = and p go
      test q
      k: i32 = bound c
      v: i32 = load x k
      r: bool = lt v 5:i32
      d: i32 = add c 1:i32
      yield d, r
""",
    "binary search": """
    l: i32, h: i32 = while carry low = 0:i32, high = 8:i32
      p: bool = lt low high
      test p
      s: i32 = add low high
      m: i32 = shift_right_arithmetic s 1:i32
      k: i32 = bound m
      v: i32 = load x k
      q: bool = lt v 3:i32
      m1: i32 = add m 1:i32
      a: i32 = select q m1 low
      b: i32 = select q high m
      yield a, b
""",
    "upward loop": """
    for j in 0:i32 : 8:i32 : 1:i32
      k: i32 = bound j
""",
    "downward loop": """
    for j in 7:i32 : -1:i32 : -1:i32
      k: i32 = bound j
""",
    "a loop up to another index": """
    for j in 0:i32 : i : 1:i32
      k: i32 = bound j
""",
    "a loop behind another index": """
    b: i32 = add i 1:i32
    for j in b : 8:i32 : 1:i32
      k: i32 = bound j
""",
    "halves of the index": """
    a: i32 = div i 3:i32
    b: i32 = rem i 3:i32
    k: i32 = bound a
    m: i32 = bound b
""",
    "as an i64": """
    a: i64 = convert[dtype=i64] i
    k: i64 = bound a
""",
    "what an if gives": """
    p: bool = gt i 0:i32
    a: i32 = if p
      j: i32 = sub i 1:i32
      yield j
    else
      yield i
    k: i32 = bound a
""",
}


def body_of(text: str, index: str = "0:i32 : 8:i32") -> Program:
    text = text.replace("= bound ", f"= bound{_BOUND} ")
    program = parse_program(f"program p(x: ref[i32,8], n: ref[i32,1])\n  range_for i in {index}{text}")
    verify_program(program)
    return program


@pytest.mark.parametrize("text", PROVEN.values(), ids=PROVEN.keys())
def test_usual_indices_are_proven(text: str) -> None:
    proven = ProveBounds()(body_of(text))
    assert not [e for e in proven.all_eqns if e.primitive.name == "bound"], print_program(proven)


@pytest.mark.full
def test_questions_inside_of_questions_take_no_exponential_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices whose conditions depend on each other: the side of each is a question of its own about all before it."""
    asked, of = [0], FlowRanges.of

    def count(self: FlowRanges, *args: int) -> object:
        asked[0] += 1
        return of(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(FlowRanges, "of", count)
    counts: list[int] = []
    for number in (6, 12):
        lines = ["v0: i32 = load n 0:i32"]
        for k in range(number):
            lines += [f"w{k}: i32 = mul v{k} 3:i32", f"p{k}: bool = lt w{k} {k}:i32", f"a{k}: i32 = add v{k} 1:i32"]
            lines += [f"v{k + 1}: i32 = select p{k} a{k} v{k}"]
        before = asked[0]
        ProveBounds()(body_of("".join(f"\n    {line}" for line in (*lines, f"k: i32 = bound v{number}")) + "\n"))
        counts.append(asked[0] - before)
    assert counts[1] < 2**5 * counts[0]


CHECKED = {
    "wraps": ("0:i32 : 2147483647:i32", "    j: i32 = add i 2:i32\n    k: i32 = bound j\n"),
    "one too many": ("0:i32 : 9:i32", "    k: i32 = bound i\n"),
    "one before": ("0:i32 : 8:i32", "    j: i32 = sub i 1:i32\n    k: i32 = bound j\n"),
    "or": (
        "0:i32 : 8:i32",
        """
    a: i32 = load n 0:i32
    p: bool = ge a 0:i32
    q: bool = lt a 8:i32
    r: bool = or p q
    if r
      k: i32 = bound a
""",
    ),
    "a remainder of something negative": ("-8:i32 : 8:i32", "    r: i32 = rem i 8:i32\n    k: i32 = bound r\n"),
    "a sum that wraps": (
        "0:i32 : 8:i32",
        """
    e: i8 = while carry c = 0:i8
      p: bool = lt c 127:i8
      test p
      a: i32 = convert[dtype=i32] c
      k: i32 = bound a
      d: i8 = add c 3:i8
      yield d
""",
    ),
    "behind the loop": (
        "0:i32 : 8:i32",
        """
    e: i32 = while carry c = 0:i32
      p: bool = lt c 8:i32
      test p
      d: i32 = add c 1:i32
      yield d
    k: i32 = bound e
""",
    ),
    "outside of the branch": (
        "0:i32 : 8:i32",
        """
    j: i32 = sub i 1:i32
    p: bool = gt i 0:i32
    if p
      a: i32 = load x i
      store x a j
    k: i32 = bound j
""",
    ),
    "the low bits of another dtype": (
        "0:i32 : 8:i32",
        "    a: i32 = load n 0:i32\n    b: i8 = convert[dtype=i8] a\n    p: bool = lt b 8:i8\n    q: bool = ge b 0:i8\n"
        "    r: bool = and p q\n    if r\n      k: i32 = bound a\n",
    ),
}


@pytest.mark.parametrize(("index", "text"), CHECKED.values(), ids=CHECKED.keys())
def test_what_may_be_out_of_range_is_checked(index: str, text: str) -> None:
    proven = ProveBounds()(body_of("\n" + text.lstrip("\n"), index))
    assert [e for e in proven.all_eqns if e.primitive.name == "bound"], print_program(proven)
