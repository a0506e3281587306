"""Affine forms, injectivity and uniformity of small tasks."""


from collections.abc import Callable

import pytest

from qdtrace.analysis.index.affine import AffineForms, Form
from qdtrace.analysis.index.dependence import IterationSpace, dependence_between
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.analysis.index.trips import task_values
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Atom, Literal, Task, Var, literal
from qdtrace.ir.types import DType
from tests.lowering.harness import branch, f32, i32, loop, serial, task, while_loop

F32, I32 = DType.f32, DType.i32


def recorded(n: int, body: Callable[[Builder, Var], dict[str, Atom]]) -> tuple[Task, dict[str, Atom]]:
    """A task and the values that its body names."""
    names: dict[str, Atom] = {}
    made = task(n, lambda b, i: names.update(body(b, i), i=i))
    return made, names


def test_what_varies():
    x = ref_var(F32, (64,), "x")

    def body(b: Builder, i: Var) -> dict[str, Atom]:
        same = b.load(x, i32(3))
        own = b.load(x, i)
        cell = b.cell(F32)
        b.store(cell, same)
        private = b.load(cell)
        old = b("atomic", x, f32(1), i32(0), op="add")
        (chosen,) = branch(b, b("gt", own, f32(0)), lambda: [f32(1)], lambda: [f32(2)])
        (taken,) = branch(b, b("gt", same, f32(0)), lambda: [f32(1)], lambda: [same])
        return {"same": same, "own": own, "private": private, "old": old, "chosen": chosen, "taken": taken}

    made, v = recorded(64, body)
    facts = analyse_uniformity(made)
    assert {n for n, a in v.items() if facts.is_uniform(a)} == {"same", "taken"}
    assert {e.primitive.name for e in facts.divergent} == {"if"}


def test_a_counter_is_uniform_inside_a_divergent_loop_and_varies_after_it():
    k = ref_var(I32, (64,), "k")
    inside: list[Var] = []

    def body(b: Builder, i: Var) -> dict[str, Atom]:
        bound = b.load(k, i)

        def turn(c, a):
            inside.extend((c, a))
            return b("add", c, i32(1)), b("add", a, i)

        c, a = while_loop(b, [i32(0), i32(0)], lambda c, a: b("lt", c, bound), turn)
        return {"after": c, "sum": a}

    made, v = recorded(64, body)
    facts = analyse_uniformity(made)
    assert facts.is_uniform(inside[0])
    assert not facts.is_uniform(inside[1])
    assert not facts.is_uniform(v["after"])


def test_a_carry_that_becomes_varying_later_makes_the_loop_divergent():
    k = ref_var(I32, (64,), "k")

    def body(b: Builder, i: Var) -> dict[str, Atom]:
        def turn(a, c):
            return c, b("add", c, i)  # `a` is uniform for one iteration only

        a, _ = while_loop(b, [i32(0), i32(0)], lambda a, c: b("lt", a, b.load(k, i32(0))), turn)
        return {"a": a}

    made, v = recorded(64, body)
    facts = analyse_uniformity(made)
    assert not facts.is_uniform(v["a"])
    assert len(facts.divergent) == 1


def test_nothing_varies_in_a_serial_task():
    x = ref_var(F32, (4,), "x")
    made = serial(lambda b: loop(b, i32(0), i32(4), i32(1), [], lambda j: b.store(x, f32(0), j)))
    assert analyse_uniformity(made).varying == frozenset()


def test_forms_add_scale_and_cancel():
    def body(b: Builder, i: Var) -> dict[str, Atom]:
        twice = b("add", i, i)
        moved = b("sub", b("mul", twice, i32(3)), i32(7))
        gone = b("sub", moved, b("mul", i, i32(6)))
        back = b("neg", b("shift_left", i, i32(3)))
        wide = b("convert", moved, dtype=DType.i64)
        square = b("mul", i, i)
        return {"moved": moved, "gone": gone, "back": back, "wide": wide, "square": square}

    made, v = recorded(64, body)
    forms, i = AffineForms(made), v["i"]
    assert forms.of(v["moved"]) == Form({i: 6}, -7)
    assert forms.of(v["gone"]) == Form({}, -7)
    assert forms.of(v["back"]) == Form({i: -8}, 0)
    assert forms.of(v["wide"]) == Form({i: 6}, -7)
    assert forms.of(v["square"]) == Form({v["square"]: 1})
    assert forms.bounds(forms.of(v["moved"])) == (-7, 6 * 63 - 7)


def test_a_row_major_address_puts_quotient_and_remainder_together():
    def body(b: Builder, i: Var) -> dict[str, Atom]:
        return {"q": b("div", i, i32(10)), "r": b("rem", i, i32(10))}

    made, v = recorded(60, body)
    forms = AffineForms(made)
    assert forms.address(ref_var(F32, (6, 10)).type, [v["q"], v["r"]]) == Form({v["i"]: 1})
    assert len(forms.address(ref_var(F32, (6, 12)).type, [v["q"], v["r"]]).terms) == 2


def test_shifts_and_masks_divide_what_is_not_negative():
    def body(b: Builder, i: Var) -> dict[str, Atom]:
        moved = b("add", i, i32(-3))  # negative at first
        unsigned = b.convert(i, DType.u32)
        k = literal
        return {
            "q": b("shift_right_logical", i, i32(3)),
            "r": b("and", i, i32(7)),
            "uq": b("shift_right_logical", unsigned, k(3, DType.u32)),
            "ur": b("and", unsigned, k(7, DType.u32)),
            "moved q": b("shift_right_logical", moved, i32(3)),
            "moved r": b("and", moved, i32(7)),
            "other": b("and", i, i32(6)),
            "all": b("and", i, i32(-1)),
        }

    made, v = recorded(64, body)
    forms = AffineForms(made)
    for q, r in (("q", "r"), ("uq", "ur")):
        assert forms.address(ref_var(F32, (8, 8)).type, [v[q], v[r]]) == Form({v["i"]: 1})
        assert forms.bounds(forms.of(v[q])) == (0, 7)
    for name in ("moved q", "moved r", "other", "all"):
        assert forms.of(v[name]) == Form({v[name]: 1})


def test_quotients_of_multiples_are_exact_where_nothing_wraps():
    def body(b: Builder, i: Var) -> dict[str, Atom]:
        inside = b("div", b("add", b("mul", i, i32(4)), i32(3)), i32(4))
        wraps = b("div", b("mul", i, i32(1 << 28)), i32(1 << 28))
        negative = b("div", b("add", b("mul", i, i32(4)), i32(-3)), i32(4))  # of -3 it is 0, not -1
        return {"inside": inside, "wraps": wraps, "negative": negative}

    made, v = recorded(64, body)
    forms = AffineForms(made)
    assert forms.of(v["inside"]) == Form({v["i"]: 1})
    assert v["i"] not in forms.of(v["wraps"]).terms
    assert v["i"] not in forms.of(v["negative"]).terms


def split(b: Builder, value: Atom, by: int) -> tuple[Atom, Atom]:
    """A quotient and its remainder."""
    return b("div", value, i32(by)), b("rem", value, i32(by))


CASES: dict[str, tuple[Callable[[Builder, Atom, Atom], list[Atom]], bool]] = {
    "the index": (lambda b, i, j: [i], True),
    "the index in one component": (lambda b, i, j: [j, i], True),
    "plus a constant": (lambda b, i, j: [b("add", i, i32(5))], True),
    "times a constant": (lambda b, i, j: [b("mul", i, i32(-3))], True),
    "times zero": (lambda b, i, j: [b("mul", i, i32(0))], False),
    "half": (lambda b, i, j: [b("div", i, i32(2))], False),
    "remainder": (lambda b, i, j: [b("rem", i, i32(2))], False),
    "quotient and remainder": (lambda b, i, j: [b("div", i, i32(7)), b("rem", i, i32(7))], True),
    "moved quotient and remainder": (
        lambda b, i, j: [b("rem", i, i32(7)), b("add", b("div", i, i32(7)), i32(1))],
        True,
    ),
    "quotient and remainder by others": (lambda b, i, j: [b("div", i, i32(7)), b("rem", i, i32(6))], False),
    "three digits": (lambda b, i, j: [*split(b, b("div", i, i32(3)), 5), b("rem", i, i32(3))], True),
    "three digits, by one division": (
        lambda b, i, j: [b("div", i, i32(15)), b("rem", b("div", i, i32(3)), i32(5)), b("rem", i, i32(3))],
        True,
    ),
    "four digits, moved": (
        lambda b, i, j: [
            *split(b, b("div", i, i32(12)), 5),
            b("add", b("rem", b("div", i, i32(4)), i32(3)), i32(2)),
            b("rem", i, i32(4)),
        ],
        True,
    ),
    "the first and the last of three digits": (lambda b, i, j: [b("div", i, i32(15)), b("rem", i, i32(3))], False),
    "a digit by another": (
        lambda b, i, j: [b("div", i, i32(15)), b("rem", b("div", i, i32(3)), i32(4)), b("rem", i, i32(3))],
        False,
    ),
    "a quotient in two others": (
        lambda b, i, j: [b("div", i, i32(5)), b("add", b("div", i, i32(5)), j), b("rem", i, i32(5))],
        True,
    ),
    "clamped": (lambda b, i, j: [b("min", i, i32(9))], False),
    "plus a loop index": (lambda b, i, j: [b("add", i, j)], False),
    "a window of its own": (lambda b, i, j: [b("add", b("mul", i, i32(4)), j)], True),
    "windows that overlap": (lambda b, i, j: [b("add", b("mul", i, i32(3)), j)], False),
    "a product that wraps": (lambda b, i, j: [b("mul", i, i32(1 << 29))], False),
    "a constant": (lambda b, i, j: [i32(0)], False),
}


@pytest.mark.parametrize("name", CASES)
def test_injectivity(name: str):
    make, injective = CASES[name]
    found: list[list[Atom]] = []

    def body(b: Builder, i: Var) -> None:
        loop(b, i32(0), i32(4), i32(1), [], lambda j: found.append(make(b, i, j)))

    made = task(100, body)
    assert bool(Injectivity(made, AffineForms(made)).keys(found[0])) is injective


PAIRS: dict[str, tuple[Callable[[Builder, Atom], list[list[Atom]]], bool]] = {
    "equal": (lambda b, i: [[i], [i]], True),
    "neighbours": (lambda b, i: [[i], [b("add", i, i32(1))]], False),
    "columns of a row": (lambda b, i: [[i, i32(0)], [i, i32(1)]], True),
    "rows and columns": (lambda b, i: [[i, i32(0)], [i32(0), i]], False),
    "three of three": (lambda b, i: [[b("add", b("mul", i, i32(3)), i32(c))] for c in range(3)], True),
    "four of three": (lambda b, i: [[b("add", b("mul", i, i32(3)), i32(c))] for c in range(4)], False),
    "split and its neighbour": (
        lambda b, i: [[b("div", i, i32(5)), b("add", b("rem", i, i32(5)), i32(c))] for c in range(2)],
        False,
    ),
    "planes of three digits": (
        lambda b, i: [[i32(c), *split(b, b("div", i, i32(3)), 5), b("rem", i, i32(3))] for c in range(3)],
        True,
    ),
    "three digits and the next row": (
        lambda b, i: [
            [b("div", i, i32(15)), b("add", b("rem", b("div", i, i32(3)), i32(5)), i32(c)), b("rem", i, i32(3))]
            for c in range(2)
        ],
        False,
    ),
    "split and the next row": (
        lambda b, i: [[b("add", b("div", i, i32(5)), i32(c)), b("rem", i, i32(5))] for c in range(2)],
        False,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_that_meet_in_one_iteration_only(name: str):
    make, alone = PAIRS[name]
    found: list[list[Atom]] = []
    made = task(100, lambda b, i: found.extend(make(b, i)))
    injectivity = Injectivity(made, AffineForms(made))
    assert bool(frozenset.intersection(*map(injectivity.keys, found))) is alone


def test_unknown_bounds_admit_odd_factors_and_small_powers_only():
    b, index = Builder(), scalar_var(I32, "i")
    n = ref_var(I32, (), "n")
    stop = b.load(n)
    with b.block() as block:
        odd, four = b("mul", index, i32(5)), b("mul", index, i32(4))
    made = Task("range_for", index, literal(0, I32), stop, block.close(), tuple(b.current.eqns))
    injectivity = Injectivity(made, AffineForms(made))
    assert injectivity.keys([odd])
    assert not injectivity.keys([four])


def test_task_constants_may_shift_an_index():
    n = ref_var(I32, (), "n")
    found: list[Atom] = []
    made = task(50, lambda b, i, shift: found.append(b("add", i, shift)), lambda b: b.load(n))
    assert Injectivity(made, AffineForms(made)).keys(found)
    assert not isinstance(found[0], Literal)


def narrowed(dtype: str, text: str) -> tuple[Task, list[list[Atom]]]:
    """A task over more iterations than integers of 8 bits can count, and the indices of its stores."""
    program = parse_program(f"""
program p(x: ref[f32,64x4])
  range_for i in 0:i16 : 300:i16
    g: {dtype} = convert[dtype={dtype}] i
{text}
  return x
""")
    (task,) = program.tasks
    return task, [list(e.invars[2:]) for e in task.body.eqns if e.primitive.name == "store"]


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_digits_of_an_index_that_was_made_narrower_are_those_of_another_iteration(dtype: str) -> None:
    split = f"    q: {dtype} = div g 4:{dtype}\n    r: {dtype} = rem g 4:{dtype}\n    store x 1.0:f32 q r"
    task, (indices,) = narrowed(dtype, split)
    forms = AffineForms(task, bits=8)
    tuples = [forms.of(i) for i in indices]
    assert task.index is not None
    space = IterationSpace(task.index, task_values(task), ())
    assert not dependence_between(ref_var(F32, (64, 4)).type, tuples, tuples, (forms, forms), space).is_safe
    assert not Injectivity(task, forms).keys(indices)


def test_an_even_multiple_of_a_flipped_index_meets_others() -> None:
    def body(b: Builder, i: Var) -> dict[str, Atom]:
        flipped = b("xor", i, i32(5))
        return {"odd": b("mul", flipped, i32(3)), "even": b("mul", flipped, i32(1 << 30))}

    made, v = recorded(100, body)
    injectivity = Injectivity(made, AffineForms(made, flips=True))
    assert injectivity.keys([v["odd"]])
    assert not injectivity.keys([v["even"]])


@pytest.mark.parametrize(("first", "second", "alone"), [(0, 0, True), (0, 4, False), (1, 1, False), (4, 4, True)])
def test_windows_that_begin_elsewhere_meet_in_other_iterations(first: int, second: int, alone: bool) -> None:
    found: list[list[Atom]] = []

    def body(b: Builder, i: Var) -> None:
        def window(j: Var) -> None:
            at = b("add", b("mul", i, i32(4)), j)
            found.extend([[b("add", at, i32(k))] for k in (first, second)])

        loop(b, i32(0), i32(4), i32(1), [], window)

    made = task(100, body)
    injectivity = Injectivity(made, AffineForms(made))
    assert bool(frozenset.intersection(*map(injectivity.keys, found))) is alone


def test_a_dividend_has_its_terms_in_order():
    """Code is made of them, which must not depend on where variables are in memory."""
    x = ref_var(I32, (64,), "x")

    def body(b: Builder, i: Var) -> dict[str, Atom]:
        terms = {f"t{k}": b.load(x, i32(k)) for k in range(12)}
        total: Atom = i
        for term in terms.values():
            total = b("add", total, term)
        return {**terms, "quotient": b("div", total, i32(5)), "flipped": b("xor", total, i32(6))}

    made, v = recorded(64, body)
    order = [v["i"], *(v[f"t{k}"] for k in range(12))]
    forms = AffineForms(made, flips=True)
    (quotient,), (flipped,) = forms.of(v["quotient"]).terms, forms.of(v["flipped"]).terms
    assert list(quotient.dividend.terms) == order
    assert list(flipped.flipped.terms) == order
