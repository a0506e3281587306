"""Index expressions of a task index: how each is written as equations, and which element it means.

The proofs of the passes must tell apart what is injective for every index (`i + 1`, `2 * i`, `i ^ 3`, the pair
`i // m, i % m`) from what is not (`i // 2`, `i % 2`, `min(i, 2)`, a constant) and from what only looks like it
(`(i + 1) // 2`, `i // 2 * 2 + i % 3`), so all of them are here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qdtrace.ir.builder import Builder
from qdtrace.ir.program import Atom, literal
from qdtrace.ir.types import DType


@dataclass(frozen=True)
class Place:
    """One index expression, of non-negative task indices."""

    name: str
    write: Callable[[Builder, Atom], Atom]
    """Appends the equations."""
    at: Callable[[int], int]
    """The element of an iteration."""

    def fits(self, iterations: Sequence[int], size: int) -> bool:
        """Whether all iterations stay within an axis."""
        return all(0 <= self.at(i) < size for i in iterations)


def places(n: int, m: int) -> list[Place]:
    """Expressions for ranges of about `n` iterations; `m` is a width to split by. Simple ones come first."""

    def apply(name: str, c: int) -> Callable[[Builder, Atom], Atom]:
        return lambda b, i: b(name, i, literal(c, i.dtype))

    def chain(*steps: tuple[str, int]) -> Callable[[Builder, Atom], Atom]:
        def write(b: Builder, i: Atom) -> Atom:
            for name, c in steps:
                i = b(name, i, literal(c, i.dtype))
            return i

        return write

    def split(b: Builder, i: Atom) -> Atom:
        whole = b("mul", apply("div", m)(b, i), literal(m, i.dtype))
        return b("add", whole, apply("rem", m)(b, i))

    def transposed(b: Builder, i: Atom) -> Atom:
        column = b("mul", apply("rem", m)(b, i), literal(max(n // m, 1), i.dtype))
        return b("add", column, apply("div", m)(b, i))

    def mixed(b: Builder, i: Atom) -> Atom:
        return b("add", chain(("div", 2), ("mul", 2))(b, i), apply("rem", 3)(b, i))

    def by_bits(b: Builder, i: Atom) -> Atom:
        wide = i.dtype is DType.i64
        unsigned = b("bitcast", i, dtype=DType.u64 if wide else DType.u32)
        return b("bitcast", apply("add", 1)(b, unsigned), dtype=i.dtype)

    def converted(dtype: DType) -> Callable[[Builder, Atom], Atom]:
        return lambda b, i: b.convert(b.convert(i, dtype), DType.i32)

    def chosen(b: Builder, i: Atom) -> Atom:
        return b("select", apply("lt", 2)(b, i), i, literal(0, i.dtype))

    def swapped(b: Builder, i: Atom) -> Atom:
        even = apply("eq", 0)(b, apply("rem", 2)(b, i))
        return b("select", even, apply("add", 1)(b, i), apply("sub", 1)(b, i))

    step = max(n // m, 1)
    return [
        Place("i", lambda b, i: i, lambda i: i),
        Place("i+1", apply("add", 1), lambda i: i + 1),
        Place("i-1", apply("sub", 1), lambda i: i - 1),
        Place("i+2", apply("add", 2), lambda i: i + 2),
        Place("2*i", apply("mul", 2), lambda i: 2 * i),
        Place("2*i+1", chain(("mul", 2), ("add", 1)), lambda i: 2 * i + 1),
        Place("2*i+2", chain(("add", 1), ("mul", 2)), lambda i: 2 * i + 2),
        Place("i<<1", apply("shift_left", 1), lambda i: i << 1),
        Place("3*i", apply("mul", 3), lambda i: 3 * i),
        Place("n-1-i", lambda b, i: b("sub", literal(n - 1, i.dtype), i), lambda i: n - 1 - i),
        Place("n-i", lambda b, i: apply("add", n)(b, b("neg", i)), lambda i: n - i),
        Place("n+~i", lambda b, i: apply("add", n)(b, b("not", i)), lambda i: n + ~i),
        Place("i^1", apply("xor", 1), lambda i: i ^ 1),
        Place("i^3", apply("xor", 3), lambda i: i ^ 3),
        Place("i|1", apply("or", 1), lambda i: i | 1),
        Place("i&1", apply("and", 1), lambda i: i & 1),
        Place("i//2", apply("div", 2), lambda i: i // 2),
        Place("i>>1", apply("shift_right_arithmetic", 1), lambda i: i >> 1),
        Place("i%2", apply("rem", 2), lambda i: i % 2),
        Place("i//m", apply("div", m), lambda i: i // m),
        Place("i%m", apply("rem", m), lambda i: i % m),
        Place("i//m+1", chain(("div", m), ("add", 1)), lambda i: i // m + 1),
        Place("(i+1)//2", chain(("add", 1), ("div", 2)), lambda i: (i + 1) // 2),
        Place("(i+1)%m", chain(("add", 1), ("rem", m)), lambda i: (i + 1) % m),
        Place("i//2*2", chain(("div", 2), ("mul", 2)), lambda i: i // 2 * 2),
        Place("2*i//2", chain(("mul", 2), ("div", 2)), lambda i: i),
        Place("split", split, lambda i: i),
        Place("transposed", transposed, lambda i: i % m * step + i // m),
        Place("i//2*2+i%3", mixed, lambda i: i // 2 * 2 + i % 3),
        Place("min(i,2)", apply("min", 2), lambda i: min(i, 2)),
        Place("max(i-1,0)", chain(("sub", 1), ("max", 0)), lambda i: max(i - 1, 0)),
        Place("min(i+1,n-1)", chain(("add", 1), ("min", n - 1)), lambda i: min(i + 1, n - 1)),
        Place("(i+1)%n", chain(("add", 1), ("rem", n)), lambda i: (i + 1) % n),
        Place("5*i%n", chain(("mul", 5), ("rem", n)), lambda i: 5 * i % n),
        Place("0", lambda b, i: literal(0, i.dtype), lambda i: 0),
        Place("1", lambda b, i: literal(1, i.dtype), lambda i: 1),
        Place("u32", by_bits, lambda i: i + 1),
        Place("i64", converted(DType.i64), lambda i: i),
        Place("u8", converted(DType.u8), lambda i: i),
        Place("f32", converted(DType.f32), lambda i: i),
        Place("i<2?i:0", chosen, lambda i: i if i < 2 else 0),
        Place("pairs", swapped, lambda i: i + 1 if i % 2 == 0 else i - 1),
    ]
