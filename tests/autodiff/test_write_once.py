"""Loads that find what memory holds before or behind their task: which are found, and derivatives without a tape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.autodiff import rows, tape, write_once
from qdtrace.autodiff.volatile import FoundLoad, accesses
from qdtrace.errors import CheckError, GradientError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from tests.autodiff import ordered_memory
from tests.autodiff.derive import derive, with_residuals
from tests.autodiff.read_residuals import residuals_of, residuals_read
from tests.autodiff.test_random_tasks import case_of


@pytest.fixture
def always(monkeypatch):
    """Asks the order of all memory that would have a tape or a row."""
    monkeypatch.setattr(tape, "LONG_TAPE", -1)
    monkeypatch.setattr(rows, "ROW_BYTES", 0)


def found(text: str, integers: str = "i32") -> str:
    """What the loads of `y` find, in order; nothing if one is not decided."""
    lines = "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))
    params = "y: ref[f64,30], z: ref[f64,9x9], n: ref[i32,9], wide: ref[i64,9], x: ref[f64,1]"
    head = f"program f({params})\n  serial\n    m: i32 = load n 0:i32\n"
    (task,) = parse_program(f"{head}{lines}  return y, z, x\n".replace("i32", integers)).tasks
    touched = accesses(task)
    write_once.settle(task, touched, by_data=True)
    return ", ".join(kind(load) for load in touched.found.values())


def kind(load: FoundLoad) -> str:
    """Where a load finds the content; " else" where data decide of elements that other iterations write."""
    return {True: "behind", False: "before", None: "refused"}[load.is_behind] + " else" * bool(load.compared)


def row_loop(*body: str, bounds: str = "0:i32 : m : 1:i32") -> str:
    return f"for c in {bounds}\n" + "\n".join(f"  {line}" for line in body)


UP, DOWN = "0:i32 : m : 1:i32", "m : 0:i32 : -1:i32"
TAKE = ("a: f64 = load y {}", "b: f64 = sin a", "store y b c")


def one_load(*index: str, name: str = "j", bounds: str = UP) -> str:
    """A loop that loads one element and stores element `c`."""
    return row_loop(*index, *(line.format(name) for line in TAKE), bounds=bounds)


def inner_loop(start: str, stop: str, step: int, *, at: str = "k", bounds: str = UP, store: str = "c") -> str:
    """A loop with another one inside, over elements of which a sum is stored."""
    return row_loop(
        "e: i32 = add c 1:i32",
        "w: i32 = add c -1:i32",
        f"s: f64 = for k in {start} : {stop} : {step}:i32 carry t = 0.0:f64",
        f"  l: i32 = add {at} 0:i32",
        "  a: f64 = load y l",
        "  u: f64 = add t a",
        "  yield u",
        f"store y s {store}",
        bounds=bounds,
    )


ORDERS = {
    "one before": (one_load("j: i32 = add c -1:i32"), "behind"),
    "one before, downwards": (one_load("j: i32 = add c -1:i32", bounds=DOWN), "before"),
    "one behind": (one_load("j: i32 = add c 1:i32"), "before"),
    "one behind, downwards": (one_load("j: i32 = add c 1:i32", bounds=DOWN), "behind"),
    "its own, which is not volatile": (one_load(name="c"), ""),
    "its own and one before": (one_load("j: i32 = add c -1:i32", "d: f64 = load y c"), "before, behind"),
    "its own, when it is stored": (row_loop("b: f64 = load x 0:i32", "store y b c", "a: f64 = load y c"), "behind"),
    "where data say": (one_load("j: i32 = load n c"), "before else"),
    "where data say, downwards": (one_load("j: i32 = load n c", bounds=DOWN), "before else"),
    "a constant": (one_load("j: i32 = add 3:i32 0:i32"), "before else"),
    "twice the counter": (one_load("j: i32 = mul c 2:i32"), "before else"),
    "smaller ones": (inner_loop("0:i32", "c", 1), "behind"),
    "smaller ones, downwards": (inner_loop("w", "-1:i32", -1), "behind"),
    "smaller ones, in steps": (inner_loop("0:i32", "c", 2), "behind"),
    "smaller ones and its own": (inner_loop("0:i32", "e", 1), "before else"),
    "its own and smaller ones, downwards": (inner_loop("c", "-1:i32", -1), "before else"),
    "larger ones": (inner_loop("e", "20:i32", 1), "before"),
    "larger ones, downwards": (inner_loop("20:i32", "c", -1), "before"),
    "its own and larger ones": (inner_loop("c", "20:i32", 1), "before else"),
    "larger ones and its own, downwards": (inner_loop("20:i32", "w", -1), "before else"),
    "smaller ones of a loop that counts down": (inner_loop("0:i32", "c", 1, bounds=DOWN), "before"),
    "smaller ones of a loop that begins anywhere": (inner_loop("0:i32", "c", 1, bounds="m : 9:i32 : 1:i32"), "behind"),
    "smaller ones up to a bound that may wrap": (
        inner_loop("0:i32", "w", 1, bounds="m : 9:i32 : 1:i32"),
        "before else",
    ),
    "larger ones from a bound that may wrap": (inner_loop("e", "20:i32", 1, bounds=DOWN), "before else"),
    "larger ones from a bound that does not": (inner_loop("e", "20:i32", 1, bounds="9:i32 : m : -1:i32"), "behind"),
    "far ones": (one_load("j: i32 = add c 1073741824:i32"), "before else"),
    "smaller ones than what is stored": (inner_loop("0:i32", "e", 1, store="e"), "behind"),
    "stored beside the counter, loaded where data say": (inner_loop("0:i32", "m", 1, store="e"), "before else"),
    "stored twice": (one_load("j: i32 = add c -1:i32") + "\n  store y a c", "behind"),
    "stored at two distances": (one_load("j: i32 = add c -1:i32") + "\n  store y a j", ""),
    "between two stores": (row_loop("b: f64 = load x 0:i32", "store y b c", "a: f64 = load y c", "store y a c"), ""),
    "accumulated": (row_loop("j: i32 = add c -1:i32", "a: f64 = load y j", "accum[op=add] y a c"), "behind"),
    "stored elsewhere": (one_load("j: i32 = add c -1:i32") + "\nd: f64 = load x 0:i32\nstore y d 3:i32", ""),
    "in front of the loop": ("d: f64 = load y 3:i32\n" + one_load("j: i32 = add c -1:i32"), "before, behind"),
    "behind the loop": (one_load("j: i32 = add c -1:i32") + "\nd: f64 = load y 3:i32", "behind, behind"),
    "a loop that does it again": (
        "for s in 0:i32 : m : 1:i32\n"
        + one_load("j: i32 = add c -1:i32").replace("\n", "\n  ").replace("for c", "  for c"),
        "",
    ),
    "a step of data": (one_load("j: i32 = add c -1:i32", bounds="0:i32 : 9:i32 : m"), ""),
    "old values": (one_load("j: i32 = add c -1:i32") + "\n  o: f64 = atomic[op=add] y a c", ""),
}




def falls(*index: str, bounds: str = UP) -> str:
    """A loop that loads element `j` and stores one whose index falls while the counter rises."""
    lines = ("e: i32 = sub 20:i32 c", *index, "a: f64 = load y j", "b: f64 = sin a", "store y b e")
    return row_loop(*lines, bounds=bounds)


def falling_rows(start: str, stop: str, bounds: str = UP) -> str:
    """A loop that stores the sum of other elements in one whose index falls while the counter rises."""
    inner = inner_loop(start, stop, 1, bounds=bounds, store="f")
    return inner.replace("e: i32", "f: i32 = sub 20:i32 c\n  g: i32 = sub 21:i32 c\n  e: i32")


def branch(*lines: str, other: tuple[str, ...] = ()) -> str:
    """A loop with a branch, and one element before."""
    whole = [*(f"  {line}" for line in lines), *(["else"] if other else []), *(f"  {line}" for line in other)]
    return row_loop("j: i32 = add c -1:i32", "b: f64 = load x 0:i32", "p: bool = gt c 3:i32", "if p", *whole)


def rewritten(bounds: str) -> str:
    """A loop that stores an element, loads others where data say, and then loads and stores the element again."""
    rows = ("b: f64 = load x 0:i32", "store y b c", "for k in 0:i32 : m : 1:i32", "  l: i32 = load n k")
    return row_loop(*rows, "  a: f64 = load y l", "d: f64 = load y c", "store y d c", bounds=bounds)


ORDERS |= {
    "falling, one before": (falls("j: i32 = sub 21:i32 c"), "behind"),
    "falling, one behind": (falls("j: i32 = sub 19:i32 c"), "before"),
    "falling, one before, downwards": (falls("j: i32 = sub 21:i32 c", bounds=DOWN), "before"),
    "falling, one behind, downwards": (falls("j: i32 = sub 19:i32 c", bounds=DOWN), "behind"),
    "falling, where data say": (falls("j: i32 = load n c"), "before else"),
    "falling, at the counter itself": (falls("j: i32 = add c 1:i32"), "before else"),
    "falling, larger ones": (falling_rows("g", "20:i32"), "behind"),
    "falling, smaller ones": (falling_rows("0:i32", "f"), "before"),
    "falling, its own and smaller ones": (falling_rows("0:i32", "g"), "before else"),
    "falling, larger ones from a bound that may wrap": (
        falling_rows("g", "20:i32", "m : 9:i32 : 1:i32"),
        "before else",
    ),
    "in a branch": (branch("a: f64 = load y c", "d: f64 = load y j", "store y d c"), "before, behind"),
    "in a branch, behind its store": (
        branch("store y b c", "a: f64 = load y c", "d: f64 = load y j"),
        "behind, behind",
    ),
    "in a branch, between two stores": (branch("store y b c", "a: f64 = load y c", "store y a c"), ""),
    "in the other branch": (branch("store y b c", other=("a: f64 = load y c", "d: f64 = load y j")), "before, behind"),
    "in a loop with its store": (branch("for s in 0:i32 : m : 1:i32", "  a: f64 = load y c", "  store y a c"), ""),
    "stored again, in few iterations": (rewritten("0:i32 : 9:i32 : 1:i32"), "refused else"),
    "stored again, in any number of iterations": (rewritten(UP), ""),
}


@pytest.mark.parametrize("integers", ["i32", "i64"])
@pytest.mark.parametrize("name", ORDERS)
def test_what_loads_find(name, integers, always):
    text, want = ORDERS[name]
    assert found(text, integers) == want


FEW = "0:i64 : few : 1:i64"
MANY = "p : q : 1:i64"
WIDTHS = {
    "a wide index of a narrow counter": (UP, "j: i64 = convert[dtype=i64] d", "c", "behind"),
    "a wide index of data": (UP, "j: i64 = load wide c", "c", "before else"),
    "a narrow index of data": (FEW, "j: i32 = load n c", "c", "before else"),
    "a narrow index of a wide counter of few values": (FEW, "j: i32 = convert[dtype=i32] d", "c", "behind"),
    "a narrow index of a wide counter": (MANY, "j: i32 = convert[dtype=i32] d", "c", "before else"),
    "stored at a narrow index of few values": (FEW, "j: i64 = load wide c", "v", "before else"),
    "stored at a narrow index of a wide counter": (MANY, "j: i64 = load wide c", "v", ""),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_an_index_has_at_least_the_bits_that_its_counter_needs(name, always):
    bounds, index, store, want = WIDTHS[name]
    of = "i32" if bounds == UP else "i64"
    head = ("p: i64 = load wide 0:i32", "q: i64 = load wide 1:i32", "few: i64 = div p 8589934592:i64")
    values = (f"d: {of} = add c -1:{of}", "v: i32 = convert[dtype=i32] c", index)
    loop = row_loop(*values, "a: f64 = load y j", f"store y a {store}", bounds=bounds)
    assert found("\n".join((*head, loop))) == want


@pytest.mark.parametrize("bound", ["4294967296:i64", "9223372036854775807:i64"])
def test_a_bound_far_beyond_its_counter_is_not_taken_for_a_near_one(bound, always):
    near = inner_loop("0:i32", "e", 1)
    assert found(near.replace("e: i32 = add c 1:i32", "e: i32 = add c -3:i32"), "i64") == "behind"
    assert found(near.replace("e: i32 = add c 1:i32", f"e: i32 = add c {bound}"), "i64") == "before else"


TABLE = """
for i in 1:i32 : m : 1:i32
  for j in 1:i32 : m : 1:i32
    k: i32 = add i {}
    l: i32 = add j {}
    a: f64 = load z k l
    store z a i j
"""


@pytest.mark.parametrize(
    ("row", "column", "want"),
    [(-1, 0, "behind"), (-1, 1, "behind"), (0, -1, "behind"), (0, 0, "before"), (0, 1, "before"), (1, -1, "before")],
)
def test_tables_are_ordered_by_rows_and_then_by_columns(row, column, want, always):
    assert found(TABLE.format(f"{row}:i32", f"{column}:i32")) == want


def test_memory_with_a_short_tape_keeps_it():
    assert found(one_load("j: i32 = add c -1:i32", bounds="1:i32 : 9:i32 : 1:i32")) == ""


LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 400)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [*range(40), *LONG])
def test_derivatives_of_random_programs(seed, always):
    assert differs(seed) is None


def differs(seed: int) -> str | None:
    """Text of a random program if its derivatives are not those of forward mode; a check may refuse its data."""
    program = ordered_memory.random_order(seed)
    args = ordered_memory.arguments(program, seed)
    case = case_of(program, args, seed)
    try:
        forward, reverse = case.derived()
    except GradientError:
        return None
    residuals = residuals_of(program, case.wrt, case.out)
    assert residuals == residuals_read(program, case.wrt, case.out)
    kept = evaluate(with_residuals(program, case.wrt, case.out, residuals), args)[len(program.results) :]
    given = derive(program, [], case.out, case.wrt, residuals=residuals)
    tangents = evaluate(forward, [*args, *case.direction])
    left = sum(np.vdot(c, t) for c, t in zip(case.adjoints, tangents, strict=True))
    for made, operands in ((reverse, [*args, *case.adjoints]), (given, [*args, *kept, *case.adjoints])):
        try:
            adjoints = evaluate(made, operands, check_races=True)
        except CheckError as error:
            return None if "that the same iteration writes in between" in str(error) else str(error)
        right = sum(np.vdot(d, g) for d, g in zip(case.direction, adjoints, strict=True))
        if not np.isclose(right, left, rtol=1e-8, atol=1e-8):
            return print_program(program)
    return None


def test_random_programs_are_of_each_kind(always):
    kinds: dict[str, int] = {}
    for seed in range(40):
        task = ordered_memory.random_order(seed).tasks[0]
        touched = accesses(task)
        write_once.settle(task, touched, by_data=True)
        for word in {kind(load) for load in touched.found.values()} or {"none"}:
            kinds[word] = kinds.get(word, 0) + 1
    assert min(kinds[k] for k in ("before", "behind", "before else", "none")) >= 3


@qd.jit
def forwards(b, values, row, col):
    y = qd.zeros(b.shape, b.dtype)
    for r in qd.range(b.shape[0], serial=True):
        s = qd.local(b[r])
        for k in qd.range(row[r], row[r + 1]):
            s.value -= values[k] * y[col[k]]
        y[r] = s.value
    return y


@qd.jit
def backwards(b, values, row, col):
    for r in qd.range(b.shape[0] - 1, -1, -1, serial=True):
        for k in qd.range(row[r], row[r + 1]):
            b[r] -= values[k] * b[col[k]]
    return b


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("integers", [np.int32, np.int64])
def test_a_large_sparse_solve_has_no_tape(integers):
    rng = np.random.default_rng(4)
    size = 20_000
    count = np.minimum(np.arange(size), 3)
    row = np.concatenate([[0], np.cumsum(count)]).astype(integers)
    col = np.concatenate([rng.integers(0, r, n) for r, n in enumerate(count) if n]).astype(integers)
    b, values, weights = rng.normal(size=size), rng.uniform(-0.3, 0.3, len(col)), rng.normal(size=size)
    f = lambda b, v: forwards(b, v, row, col) @ weights  # noqa: E731
    low = qd.jit(jax.grad(f, (0, 1))).lower(b, values)
    assert low.memory_analysis()["stack_per_lane"] == 0
    qd.check_grads(f, (b, values), order=1)


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("descends", [False, True])
def test_a_sweep_loads_old_and_new_values_without_a_tape(descends):
    """One step of Gauss-Seidel over a matrix with entries on both sides of the diagonal."""
    rng = np.random.default_rng(5)
    size = 20_000
    row = np.arange(0, 3 * size + 1, 3).astype(np.int32)
    col = rng.integers(0, size, 3 * size).astype(np.int32)
    col += (col == np.repeat(np.arange(size), 3)) * (1 - 2 * (col == size - 1))
    x, values, weights = rng.normal(size=size), rng.uniform(-0.2, 0.2, len(col)), rng.normal(size=size)

    @qd.jit
    def sweep(x, values, row, col):
        for r in qd.range(size - 1, -1, -1, serial=True) if descends else qd.range(size, serial=True):
            s = qd.local(0.1 * x[r])
            for k in qd.range(row[r], row[r + 1]):
                s.value += values[k] * x[col[k]] ** 2
            x[r] = s.value
        return x

    step = lambda x, v: sweep(x, v, row, col)  # noqa: E731
    f = lambda x, v: step(x, v) @ weights  # noqa: E731
    low = qd.jit(jax.grad(f, (0, 1))).lower(x, values)
    assert low.memory_analysis()["stack_per_lane"] == 0
    qd.check_grads(f, (x, values), order=1)
    got = jax.grad(lambda x: f(step(x, values), values))(x)
    direction = rng.normal(size=size)
    along = jax.jvp(lambda x: f(step(x, values), values), (x,), (direction,))[1]
    np.testing.assert_allclose(got @ direction, along, rtol=1e-9)


@pytest.mark.full
@pytest.mark.cpu
def test_an_element_that_is_finished_in_place_is_on_a_tape_and_its_neighbours_are_not():
    """Old and new values of others are found in memory; the element itself is loaded between two stores of it."""
    rng = np.random.default_rng(6)
    size = 20_000
    row = np.arange(0, 2 * size + 1, 2).astype(np.int32)
    col = ((np.repeat(np.arange(size), 2) + rng.integers(1, size, 2 * size)) % size).astype(np.int32)
    x, values, diagonal = rng.normal(size=size), rng.uniform(-0.2, 0.2, 2 * size), rng.uniform(1, 2, size)

    @qd.jit
    def sweep(x, values, diagonal, row, col):
        for r in qd.range(size, serial=True):
            x[r] = 0.3 * jnp.sin(x[r])
            for k in qd.range(row[r], row[r + 1]):
                x[r] += values[k] * x[col[k]] ** 2
            x[r] = x[r] ** 2 / diagonal[r]
        return x

    f = lambda x, v, d: sweep(x, v, d, row, col).sum()  # noqa: E731
    low = qd.jit(jax.grad(f, (0, 1, 2))).lower(x, values, diagonal)
    assert 8 * size <= low.memory_analysis()["stack_per_lane"] < 9 * size
    qd.check_grads(f, (x, values, diagonal), order=1)


@pytest.mark.full
@pytest.mark.cpu
def test_an_element_that_an_iteration_writes_before_and_behind_its_load_is_refused():
    rng = np.random.default_rng(4)
    size = 20_000
    row, col = np.arange(size + 1).astype(np.int32), np.maximum(np.arange(size) - 1, 0).astype(np.int32)
    col[0], values, x = size - 1, rng.uniform(-0.3, 0.3, size), rng.normal(size=size)
    f = lambda v: backwards(x, v, row, col).sum()  # noqa: E731
    qd.check_grads(f, (values,), order=1)
    col[17] = 17
    with pytest.raises(CheckError) as caught:
        qd.block_until_ready(qd.jit(jax.grad(lambda v: backwards(x, v, row, col).sum()))(values))
    first, place, line = str(caught.value).splitlines()
    assert first == (
        "check failed: a derivative needs `b` to be loaded in front of all stores of an iteration or behind them, got "
        "an element that the same iteration writes in between"
    )
    assert place.endswith("in backwards")
    assert line.strip() == "b[r] -= values[k] * b[col[k]]"


@pytest.mark.full
@pytest.mark.cpu
def test_dynamic_programming_over_a_large_table():
    """A table of 80 KB, larger than rows that are kept as private arrays, and with an unknown number of rows.

    All that is kept are states of the loop over a row, which carries the last element."""

    @qd.jit
    def f(z, n):
        for i in qd.range(1, n, serial=True):
            for j in qd.range(1, n):
                z[i, j] = jnp.tanh(z[i - 1, j] + 0.5 * z[i, j - 1] * z[i - 1, j - 1]) + 0.1 * z[i, j]
        return z

    z = np.random.default_rng(5).normal(size=(100, 100))
    low = qd.jit(jax.grad(lambda z: f(z, np.int32(100)).sum())).lower(z)
    assert low.memory_analysis()["stack_per_lane"] == sum(choice.nbytes for choice in low.storage) < 10_000
    qd.check_grads(lambda z: (f(z, np.int32(60)) ** 2).sum(), (z,), order=1)


def test_sweeps_over_the_same_memory_are_refused():
    @qd.jit
    def f(u, n):
        for _ in qd.range(n, serial=True):
            for i in qd.range(1, u.shape[0] - 1):
                u[i] = jnp.sin(u[i - 1]) + u[i + 1]
        return u

    with pytest.raises(GradientError) as caught:
        jax.grad(lambda u: f(u, 3).sum())(jnp.ones(40_000))
    first, place, line, note, advice = str(caught.value).splitlines()
    assert first == (
        "needs loops with at most a known number of iterations around loads of `u`, which the same iteration changes "
        "in them, or a row of at most 65536 bytes of it that each iteration of the task has for itself, named by "
        "indices that all accesses share; got a number of iterations known only at run time"
    )
    assert place.endswith(".f")
    assert line.strip() == "u[i] = jnp.sin(u[i - 1]) + u[i + 1]"
    assert note.startswith("note: of this loop it is not known: ")
    assert note.endswith(" in f")
    assert advice == (
        "help: give each such loop its most iterations (`most=64`), keep the values in a private array (qd.local), or "
        "load them in front of the loop; where sweeps repeat, make each a task: `qd.while_` or a `for` of Python "
        "outermost, and in it `qd.range(n, serial=True)`"
    )


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("fix", ["most", "qd.while_", "for"])
def test_what_the_refusal_of_sweeps_proposes_works(fix):
    def step(u):
        for i in qd.range(1, u.shape[0] - 1, serial=fix != "most"):
            u[i] = jnp.sin(u[i - 1]) + u[i + 1]

    @qd.jit
    def f(u, n):
        if fix == "most":
            for _ in qd.range(n, serial=True, most=4):
                step(u)
        elif fix == "for":
            for _ in range(3):
                step(u)
        else:
            k = qd.zeros((), jnp.int32)
            for _ in qd.while_(lambda: k[()] < n):
                step(u)
                k[()] += 1
        return u

    def by_hand(u):
        for _ in range(3):
            _, rest = jax.lax.scan(lambda a, b: 2 * (jnp.sin(a) + b,), u[0], u[2:])
            u = jnp.concatenate([u[:1], rest, u[-1:]])
        return u

    u, weights = np.linspace(0.3, 1.4, 40_000), np.cos(np.arange(40_000))
    got = jax.grad(lambda u: f(u, 3) @ weights)(u)
    np.testing.assert_allclose(got, jax.jit(jax.grad(lambda u: by_hand(u) @ weights))(u), rtol=1e-9, atol=1e-12)
