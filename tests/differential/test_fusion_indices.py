"""Pairs of tasks at index expressions that wrap, shift, flip and divide, where only some iterations are in range.

Each access is guarded by a test of its bounds, so any expression is allowed, and the products and sums in it are chosen
to come back into range by wrap-around. What the pass joins must have no race in any order.
"""

import random
from collections.abc import Sequence

import pytest

from qdtrace.config import Options
from qdtrace.errors import QdError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Atom, Block, Program, Task, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.passes.by_name import pass_named
from qdtrace.passes.pipelines import optimise
from tests.differential.compare import compare
from tests.differential.inputs import arguments
from tests.differential.task_programs import ORDERS

I32, I64, U32 = DType.i32, DType.i64, DType.u32
OPTIONS = Options(fuse_tasks="aggressive", fast_math=False)
SHAPES = ((12,), (40,), (8, 4), (4, 8), (3, 5), (2, 2, 4))
STARTS = (0, 0, 0, 1, -3, -8, (1 << 30) - 4, (1 << 31) - 20, -(1 << 31))
ODD = (3, 5, 65537, -1, (1 << 31) - 1, 0x01000193)


class Pair:
    """Draws two tasks over one range."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.builder = Builder()
        self.dtype = pick((I32, I32, I32, I64))
        self.start = pick(STARTS)
        self.stop = self.start + pick((1, 4, 8, 16, 18))
        self.shape = pick(SHAPES)
        self.ref, self.out = ref_var(I32, self.shape, "b"), ref_var(I32, (20,), "c")
        self.shared = [self.steps() for _ in range(2)]

    def program(self) -> Program:
        tasks = [self.task(self.random.choice(("store", "accum", "load", "store"))) for _ in range(2)]
        return Program("p", (self.ref, self.out), (), tuple(tasks), (self.ref, self.out))

    def task(self, kind: str) -> Task:
        b, index = self.builder, scalar_var(self.dtype, "i")
        with b.block() as body:
            if self.random.random() < 0.25:
                j = scalar_var(self.dtype, "j")
                width = self.random.choice((2, 3, 4))
                with b.block([j]) as inner:
                    scaled = b("mul", index, literal(self.random.choice((width, 1, 2)), self.dtype))
                    self.access(kind, b("add", scaled, j), index)
                b.emit("for", *(literal(v, self.dtype) for v in (0, width, 1)), blocks=[inner.close()])
            else:
                self.access(kind, index, index)
        bounds = literal(self.start, self.dtype), literal(self.stop, self.dtype)
        return Task("range_for", index, *bounds, body.close())

    def access(self, kind: str, base: Atom, index: Var) -> None:
        """One access at a random place, where it is in range."""
        b, place = self.builder, []
        flat = self.apply(self.random.choice(self.shared), base)
        if len(self.shape) > 1 and self.random.random() < 0.6:  # a split of one index
            for extent in reversed(self.shape[1:]):
                width = literal(extent if self.random.random() < 0.9 else extent + 1, flat.dtype)
                place.insert(0, b("rem", flat, width))
                flat = b("div", flat, width)
            place.insert(0, self.shifted(flat))
        else:
            place = [flat, *(self.apply(self.random.choice(self.shared), base) for _ in self.shape[1:])]
            self.random.shuffle(place)
        inside: Atom = literal(True, DType.bool)
        for p, extent in zip(place, self.shape, strict=True):
            inside = b("and", inside, b("ge", p, literal(0, p.dtype)))
            inside = b("and", inside, b("lt", p, literal(extent, p.dtype)))
        only = b("convert", b("sub", index, literal(self.start, self.dtype)), dtype=I32)
        with b.block() as then:
            if kind == "load":
                b.store(self.out, b.load(self.ref, *place), only)
            elif kind == "store":
                b.store(self.ref, only, *place)
            else:
                b.accum(self.ref, only, *place, op=self.random.choice(("add", "add", "max")))
        b.emit("if", inside, blocks=[then.close(), Block()])

    def shifted(self, p: Atom) -> Atom:
        return self.builder("add", p, literal(1, p.dtype)) if self.random.random() < 0.2 else p

    def steps(self) -> list[tuple[str, int]]:
        """Operations that together are about the identity; an offset to come back to the start of the buffer."""
        pick = self.random.choice
        out: list[tuple[str, int]] = []
        if self.start and self.random.random() < 0.8:
            out.append(("add", -self.start))
        for _ in range(pick((0, 1, 1, 2))):
            c = pick((1, 2, 3, 4, 8, 1 << 16, 1 << 30, (1 << 31) - 1, -(1 << 31), -2, -7))
            k = pick((1, 2, 16, 30, 31))
            odd = pick(ODD)
            out += pick(
                [
                    [("add", c), ("add", pick((-c, -c, 1 - c)))],
                    [("mul", odd), ("mul", pow(odd, -1, 1 << 32))],
                    [("mul", odd), ("add", c), ("mul", pow(odd, -1, 1 << 32))],
                    [("neg", 0), ("add", pick((5, 12, 16)))],
                    [("not", 0), ("add", pick((5, 12, 16)))],
                    [("xor", c)], [("xor", c), ("xor", c)], [("xor", pick((1, 3, 4, 6)))],
                    [("shift_left", k), ("shift_right_logical", k)], [("shift_left", k)],
                    [("mul", 1 << k)], [("mul", 1 << k), ("div", 1 << k)],
                    [("mul", pick((2, 3, 4))), ("add", pick((0, 1, 2, 3)))],
                    [("u32", 0), ("add", c), ("div", pick((2, 3))), ("i32", 0)],
                    [("u32", 0), ("add", c), ("add", -c), ("i32", 0)],
                    [("i64", 0), ("mul", odd), ("i32", 0), ("mul", pow(odd, -1, 1 << 32))],
                    [("i64", 0), ("add", 1 << 32), ("i32", 0)], [("i64", 0), ("mul", (1 << 32) + 1), ("i32", 0)],
                    [("div", pick((2, 3)))], [("rem", pick((2, 5)))], [("mul", 2), ("div", 3)],
                    [("sub", 1)], [("add", 1), ("div", 2)], [("i8", 0)],
                ]
            )  # fmt: skip
        return out

    def apply(self, steps: Sequence[tuple[str, int]], value: Atom) -> Atom:
        """The expression; a last small offset makes two uses of one expression differ now and then."""
        b = self.builder
        for name, c in [*steps, *([("add", self.random.choice((1, -1, 4, 8)))] if self.random.random() < 0.3 else [])]:
            match name:
                case "i32" | "i64" if value.dtype is U32:
                    value = b("bitcast", value, dtype=I32)
                case "u32":
                    value = b("bitcast", b.convert(value, I32), dtype=U32)
                case "i32" | "i64":
                    value = b.convert(value, DType(name))
                case "i8":
                    value = b.convert(b.convert(value, DType.i8), I32)
                case "neg" | "not":
                    value = b(name, value)
                case _:
                    value = b(name, value, literal(_wrapped(c, value.dtype), value.dtype))
        return value


def _wrapped(c: int, dtype: DType) -> int:
    c %= 1 << dtype.bits
    return c - (1 << dtype.bits) if dtype.is_signed and c >> (dtype.bits - 1) else c


def random_pair(seed: int) -> Program | None:
    """The program of a number; None where it has a race of its own."""
    program = Pair(seed).program()
    verify_program(program)
    try:
        evaluate(program, arguments(program, "plain", 0), check_races=True)
    except QdError:
        return None
    return program


def check(seeds: range, *, everything: bool) -> int:
    """How many pairs were joined; each without a race and with the same results."""
    joined = 0
    for seed in seeds:
        program = random_pair(seed)
        if program is None:
            continue
        args = arguments(program, "plain", 0)
        want = evaluate(program, args)
        fused = pass_named("fuse_tasks", OPTIONS)(program)
        made = [fused, pass_named("contract", OPTIONS)(fused), *([optimise(program, OPTIONS)] if everything else [])]
        joined += len(fused.tasks) < len(program.tasks)
        for after in made:
            races = not everything or after is not made[-1]
            try:
                for order in ORDERS:
                    compare(evaluate(after, args, order=order, check_races=races), want)
            except (AssertionError, QdError) as e:
                text = f"{print_program(program)}\nafter\n{print_program(after)}"
                raise AssertionError(f"pair {seed}: {e}\n{text}") from e
    return joined


@pytest.mark.full
def test_pairs() -> None:
    assert check(range(400), everything=False) > 40


@pytest.mark.full
def test_pairs_through_the_pipeline() -> None:
    check(range(1000, 1040), everything=True)


@pytest.mark.slow
def test_many_pairs() -> None:
    check(range(10_000, 60_000), everything=False)
    check(range(60_000, 63_000), everything=True)


def test_most_pairs_are_in_range_somewhere() -> None:
    """The guards are true in many iterations, so that the checks check something."""
    stored = 0
    for seed in range(60):
        program = random_pair(seed)
        if program is None:
            continue
        args = arguments(program, "plain", 0)
        results = evaluate(program, args)
        stored += any((a != b).any() for a, b in zip(args, results, strict=True))
    assert stored > 20
