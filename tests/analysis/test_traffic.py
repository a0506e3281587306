"""Bytes that tasks move, counted from the graph: by hand, and against an enumeration of all accesses."""

import random
from textwrap import indent

import pytest

from qdtrace.analysis.traffic import Traffic, program_traffic, reference_traffic, task_traffic
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Eqn, Literal, Program, Task, Var

HEAD = "program p(x: ref[f32,1000], y: ref[f32,1000], m: ref[f32,20x50], k: ref[i32,1000], n: ref[i32])\n"


def task_of(body: str, bounds: str = "0:i32 : 1000:i32", head: str = "") -> Task:
    head = head and "    head\n" + indent(head, "      ")
    text = HEAD + f"  range_for i in {bounds}\n{head}" + indent(body.strip("\n"), "    ") + "\n  return x\n"
    (task,) = parse_program(text).tasks
    return task


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("a: f32 = load x i\nstore y a i", Traffic(4000, 4000)),
        ("a: f32 = load x i\nb: f32 = load x i\nc: f32 = add a b\nstore x c i", Traffic(4000, 4000)),
        # What the iteration has stored is at hand; what another stores is not.
        ("store x 1.0:f32 i\na: f32 = load x i\nstore y a i", Traffic(0, 8000)),
        ("a: f32 = load x 7:i32\nstore y a i", Traffic(4, 4000)),
        ("accum[op=add] x 1.0:f32 i", Traffic(4000, 4000)),
        ("accum[op=add] x 1.0:f32 0:i32", Traffic(4, 4)),
        ("a: f32 = atomic[op=cas] x 1.0:f32 2.0:f32 i\nstore y a i", Traffic(4000, 8000)),
        # A stencil touches one element more at each end that stays inside.
        (
            "h: i32 = add i 1:i32\na: f32 = load x i\nb: f32 = load x h\nc: f32 = add a b\nstore y c i",
            Traffic(4000, 4000),
        ),
        ("r: i32 = sub 999:i32 i\na: f32 = load x r\nstore y a i", Traffic(4000, 4000)),
        ("h: i32 = div i 2:i32\na: f32 = load x h\nstore y a i", Traffic(2000, 4000)),
        ("h: i32 = rem i 10:i32\na: f32 = load x h\nstore y a i", Traffic(40, 4000)),
        ("r: i32 = div i 50:i32\nc: i32 = rem i 50:i32\na: f32 = load m r c\nstore y a i", Traffic(4000, 4000)),
        ("r: i32 = div i 50:i32\na: f32 = load m r 3:i32\nstore y a i", Traffic(80, 4000)),
        # What depends on data may be everywhere, but no element moves twice.
        ("j: i32 = load k i\na: f32 = load x j\nstore y a i", Traffic(8000, 4000, exact=False)),
        ("j: i32 = load k 0:i32\na: f32 = load x j\nstore y a i", Traffic(4004, 4000, exact=False)),
        ("a: f32 = load x i\nc: bool = gt a 0.0:f32\nif c\n  store y a i", Traffic(4000, 4000, exact=False)),
        # Conditional, but there was no way round it.
        ("a: f32 = load x i\nc: bool = gt a 0.0:f32\nstore y a i\nif c\n  store y 0.0:f32 i", Traffic(4000, 4000)),
        ("for j in 3:i32 : 3:i32 : 1:i32\n  store x 1.0:f32 j\nstore y 1.0:f32 i", Traffic(0, 4000)),
        ("c: cell[f32] = cell[dtype=f32, shape=()]\nstore c 1.0:f32\na: f32 = load c\nstore y a i", Traffic(0, 4000)),
    ],
)
def test_one_task(body: str, wanted: Traffic) -> None:
    assert task_traffic(task_of(body)) == wanted


def test_a_gather_moves_no_more_than_its_accesses() -> None:
    task = task_of("j: i32 = load k i\na: f32 = load x j\nstore y a i", "0:i32 : 10:i32")
    assert task_traffic(task) == Traffic(80, 40, exact=False)


def test_a_row_with_a_loop_inside() -> None:
    body = "for j in 0:i32 : 50:i32 : 2:i32\n  a: f32 = load m i j\n  store m 0.0:f32 i j"
    assert task_traffic(task_of(body, "0:i32 : 20:i32")) == Traffic(2000, 2000)
    body = "for j in 0:i32 : 50:i32 : 1:i32\n  t: i32 = mul i 50:i32\n  u: i32 = add t j\n  store x 0.0:f32 u"
    assert task_traffic(task_of(body, "0:i32 : 20:i32")) == Traffic(0, 4000)


def test_structures_with_gaps() -> None:
    """Two of four components: the union of two combs, and a comb of two."""
    two = "t: i32 = mul i 4:i32\nu: i32 = add t 1:i32\nstore x 0.0:f32 t\nstore x 0.0:f32 u"
    assert task_traffic(task_of(two, "0:i32 : 250:i32")) == Traffic(0, 2000)
    comb = "t: i32 = mul i 4:i32\nfor j in 0:i32 : 2:i32 : 1:i32\n  u: i32 = add t j\n  store x 0.0:f32 u"
    assert task_traffic(task_of(comb, "0:i32 : 250:i32")) == Traffic(0, 2000)


def test_diagonals() -> None:
    assert task_traffic(task_of("store m 0.0:f32 i i", "0:i32 : 20:i32")) == Traffic(0, 80)


def test_the_inside_of_a_field_with_its_neighbours() -> None:
    body = """
r: i32 = div i 48:i32
c: i32 = rem i 48:i32
r1: i32 = add r 1:i32
c1: i32 = add c 1:i32
r2: i32 = add r 2:i32
c2: i32 = add c 2:i32
a: f32 = load m r c1
b: f32 = load m r2 c1
d: f32 = load m r1 c
e: f32 = load m r1 c2
store y a i
"""
    # 18 x 48 inside of 20 x 50, and all of the border except its four corners
    assert task_traffic(task_of(body, "0:i32 : 864:i32")) == Traffic(4 * (1000 - 4), 4 * 864)


def test_bounds_known_at_run_time() -> None:
    task = task_of("a: f32 = load x i\nstore y a i", "0:i32 : e", "e: i32 = load n\n")
    assert task_traffic(task) == Traffic(4004, 4000, exact=False)


def test_task_constants_shift_what_is_touched() -> None:
    head = "e: i32 = load n\n"
    one = "j: i32 = add i e\na: f32 = load x j\nstore y a i"
    assert task_traffic(task_of(one, "0:i32 : 10:i32", head)) == Traffic(44, 40)
    # Nobody knows whether the two meet.
    two = "j: i32 = add i e\na: f32 = load x j\nb: f32 = load x i\nstore y a i"
    assert task_traffic(task_of(two, "0:i32 : 10:i32", head)) == Traffic(84, 40, exact=False)


def test_while_loops() -> None:
    body = """
z: f32 = while carry s = 1.0:f32
  a: f32 = load x i
  t: bool = gt s a
  test t
  b: f32 = load y i
  d: f32 = sub s b
  yield d
store x z i
"""
    task = task_of(body)
    by_name = {ref.hint: moved for ref, moved in reference_traffic(task).items()}
    assert by_name == {"x": Traffic(4000, 4000), "y": Traffic(4000, 0, exact=False)}


def test_nothing_runs() -> None:
    assert task_traffic(task_of("store x 0.0:f32 i", "5:i32 : 5:i32")) == Traffic()


def test_programs_and_words() -> None:
    tasks = "".join(f"  range_for i in 0:i32 : 1000:i32\n    store {r} 1.0:f32 i\n" for r in "xy")
    moved = program_traffic(parse_program(HEAD + tasks + "  return x\n"))
    assert moved == Traffic(0, 8000)
    assert moved.total == 8000
    assert str(moved) == "0 bytes read, 8000 written"
    assert str(Traffic(1, 2, exact=False)) == "at most 1 bytes read, 2 written"


def test_a_cleared_buffer_is_written() -> None:
    text = "program p()\n  buffer f: ref[f32,8x4] = 0.0:f32\n  return f\n"
    assert program_traffic(parse_program(text)) == Traffic(0, 128)


def chain(length: int) -> str:
    eqns = [f"v{k + 1}: f32 = mul v{k} 1.5:f32" for k in range(length)]
    return "\n".join(["v0: f32 = load x i", *eqns, f"store x v{length} i"])


def test_a_chain_in_one_task_is_two_passes_over_memory() -> None:
    assert task_traffic(task_of(chain(8))) == Traffic(4000, 4000)
    apart = "".join(f"  range_for i in 0:i32 : 1000:i32\n{indent(chain(1), '    ')}\n" for _ in range(8))
    assert program_traffic(parse_program(HEAD + apart + "  return x\n")) == Traffic(32000, 32000)


# Against an enumeration.


def enumerate_loads(program: Program) -> int:
    """Distinct elements that loads touch, by running the integers of the only task."""
    (task,) = program.tasks
    touched: set[tuple[Var, tuple[int, ...]]] = set()

    def run(eqns: tuple[Eqn, ...], env: dict[Var, int]) -> None:
        def value(atom: Literal | Var) -> int:
            return int(atom.value) if isinstance(atom, Literal) else env[atom]

        for eqn in eqns:
            match eqn.primitive.name:
                case "add":
                    env[eqn.outvar] = value(eqn.invars[0]) + value(eqn.invars[1])
                case "mul":
                    env[eqn.outvar] = value(eqn.invars[0]) * value(eqn.invars[1])
                case "div":
                    env[eqn.outvar] = value(eqn.invars[0]) // value(eqn.invars[1])
                case "rem":
                    env[eqn.outvar] = value(eqn.invars[0]) % value(eqn.invars[1])
                case "for":
                    for k in range(*map(value, eqn.invars)):
                        run(eqn.blocks[0].eqns, {**env, eqn.blocks[0].params[0]: k})
                case _:
                    ref = eqn.invars[0]
                    assert isinstance(ref, Var)
                    touched.add((ref, tuple(map(value, eqn.invars[1:]))))

    assert task.index is not None
    assert isinstance(task.start, Literal)
    assert isinstance(task.stop, Literal)
    for i in range(int(task.start.value), int(task.stop.value)):
        run(task.body.eqns, {task.index: i})
    return len(touched)


def random_program(rng: random.Random) -> str:
    lines, names, fresh = [], ["i", "j"], iter(range(100))

    def make() -> str:
        """An integer, small and not negative."""
        v, source = f"v{next(fresh)}", rng.choice(names)
        form = rng.choice(["add {} {}", "mul {} {}", "div {} {}", "rem {} {}", "split"])
        if form == "split":
            lines.append(f"{v}: i32 = mul {source} {rng.randint(1, 4)}:i32")
            lines.append(f"w{v}: i32 = add {v} {rng.choice(names)}")
            return "w" + v
        lines.append(f"{v}: i32 = {form.format(source, str(rng.randint(1, 6)) + ':i32')}")
        names.append(v)
        return v

    for load in range(rng.randint(1, 4)):
        lines.append(f"a{load}: f32 = load z {make()} {make()}")
    start, count = rng.choice([0, 0, 0, 2]), rng.choice([4, 12, 24, 7])
    loop = f"    for j in {rng.choice([0, 1])}:i32 : {rng.choice([1, 4, 7])}:i32 : {rng.choice([1, 2])}:i32\n"
    body = indent("\n".join(lines), "      ")
    # Large enough that every index is inside.
    return f"program p(z: ref[f32,300000x300000])\n  range_for i in {start}:i32 : {start + count}:i32\n{loop}{body}\n"


def check_random(seeds: range) -> int:
    exact = 0
    for seed in seeds:
        program = parse_program(random_program(random.Random(seed)))
        moved, wanted = task_traffic(program.tasks[0]), 4 * enumerate_loads(program)
        assert moved.read >= wanted, seed
        assert moved.read == wanted or not moved.exact, seed
        exact += moved.exact
    return exact


@pytest.mark.full
def test_random_indices() -> None:
    assert check_random(range(300)) > 100


@pytest.mark.slow
def test_many_random_indices() -> None:
    assert check_random(range(300, 30000)) > 10000
