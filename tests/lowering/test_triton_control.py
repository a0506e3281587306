"""Branches and loops in Triton source, and which tasks are refused or left to LLVM."""

import numpy as np
import pytest

from qdtrace.errors import BackendError
from qdtrace.ir.parser import parse_program

triton = pytest.importorskip("triton", reason="needs the package triton")

from lowering.triton.choice import choose, text_of  # noqa: E402
from lowering.triton.refusals import refusal  # noqa: E402
from tests.lowering.triton_interpreter import agrees  # noqa: E402

RNG = np.random.default_rng(5)


def over(body: str, head: str = "", refs: str = "", result: str = "y", n: int = 100):
    """A program whose iterations have this body; `x` and `y` are its arrays of f32."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    heads = "    head\n" + "".join(f"      {line}\n" for line in head.splitlines()) if head else ""
    return parse_program(
        f"program p(x: ref[f32,{n}], y: ref[f32,{n}]{refs})\n"
        f"  range_for i in 0:i32 : {n}:i32\n{heads}{lines}  return {result}\n"
    )


def arrays(n: int = 100) -> list[np.ndarray]:
    """Multiples of 1/8, and zeros."""
    return [(RNG.integers(-64, 64, n) / 8).astype(np.float32), np.zeros(n, np.float32)]


def test_both_sides_of_a_branch_that_lanes_disagree_on():
    agrees(
        over("""
v: f32 = load x i
c: bool = gt v 0.0:f32
w: f32, k: i32 = if c
  a: f32 = mul v 2.0:f32
  d: bool = gt v 4.0:f32
  u: f32 = if d
    store y a i
    yield a
  else
    yield 7.0:f32
  yield u, i
else
  j: i32 = neg i
  store y v i
  yield v, j
z: f32 = convert[dtype=f32] k
s: f32 = add w z
q: f32 = load y i
t: f32 = add s q
store y t i
"""),
        arrays(),
    )


def test_a_division_in_a_branch_is_safe_in_lanes_that_do_not_take_it():
    agrees(
        over("""
v: f32 = load x i
j: i32 = convert[dtype=i32] v
c: bool = ne j 0:i32
w: i32 = if c
  q: i32 = div 100:i32 j
  yield q
else
  yield 0:i32
z: f32 = convert[dtype=f32] w
store y z i
"""),
        arrays(),
    )


def test_a_load_in_a_branch_stays_in_lanes_that_take_it():
    """The index of the others is far outside; the one that all lanes share is, too, where nobody takes the branch."""
    made = over(
        """
c: bool = lt i 50:i32
w: f32 = if c
  j: i32 = mul i 2:i32
  v: f32 = load x j
  yield v
else
  yield 0.0:f32
never: bool = lt i m
z: f32 = if never
  u: f32 = load x far
  yield u
else
  yield w
store y z i
""",
        head="far: i32 = load k\nm: i32 = sub 0:i32 1:i32",
        refs=", k: ref[i32]",
    )
    agrees(made, [*arrays(), np.int32(2**30)])


@pytest.mark.parametrize("value", [-1, 3])
def test_a_branch_that_all_lanes_take_together(value: int):
    made = over(
        """
v: f32 = load x i
w: f32, u: i32 = if c
  a: f32 = for k in 0:i32 : n : 1:i32 carry s = v
    b: f32 = load x k
    t: f32 = add s b
    yield t
  yield a, n
else
  yield 1.0:f32, 2:i32
z: f32 = convert[dtype=f32] u
s: f32 = add w z
store y s i
""",
        head="n: i32 = load q\nc: bool = gt n 0:i32",
        refs=", q: ref[i32]",
    )
    agrees(made, [*arrays(), np.int32(value)])


@pytest.mark.parametrize(
    ("start", "stop", "step", "dtype"),
    [(0, 5, 1, "i32"), (5, 0, 1, "i32"), (0, 10, 3, "i32"), (9, 0, -2, "i32"), (0, 9, 0, "i32"), (2, 7, 1, "i64"),
     (2**31 - 8, 2**31 - 1, 5, "i32"), (-(2**31) + 7, -(2**31), -4, "i32"), (2**40, 2**40 + 3, 1, "i64")],
)  # fmt: skip
def test_loops_up_and_down(start: int, stop: int, step: int, dtype: str):
    bounds = f"{start}:{dtype} : {stop}:{dtype} : {step}:{dtype}"
    known = over(f"""
v: f32 = load x i
a: f32, b: f32, n: {dtype} = for k in {bounds} carry p = v, q = 1.0:f32, m = 0:{dtype}
  r: f32 = add p q
  m2: {dtype} = add m k
  yield q, r, m2
w: f32 = sub a b
t: {dtype} = rem n 1000:{dtype}
u: f32 = convert[dtype=f32] t
s: f32 = add w u
store y s i
""")
    agrees(known, arrays())


@pytest.mark.parametrize(("first", "last"), [(0, 4), (4, 0), (-3, 2)])
@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_loops_with_bounds_that_only_the_device_knows(first: int, last: int, step: int):
    made = over(
        f"""
s: i32 = for k in a : e : {step}:i32 carry m = 0:i32
  m2: i32 = mul m 10:i32
  m3: i32 = add m2 k
  yield m3
w: f32 = convert[dtype=f32] s
store y w i
""",
        head="a: i32 = load b 0:i32\ne: i32 = load b 1:i32",
        refs=", b: ref[i32,2]",
    )
    agrees(made, [*arrays(), np.array([first, last], np.int32)])


def test_a_loop_that_updates_memory_of_its_iteration():
    agrees(
        over("""
for k in 0:i32 : 4:i32 : 1:i32
  v: f32 = load y i
  w: f32 = load x i
  u: f32 = add v w
  store y u i
"""),
        arrays(),
    )


REFUSED = {
    "a while loop": """
v: i32 = while carry m = i
  c: bool = gt m 3:i32
  test c
  m2: i32 = div m 2:i32
  yield m2
""",
    "whose trips differ": """
s: i32 = for k in 0:i32 : i : 1:i32 carry m = 0:i32
  yield k
""",
    "only some iterations reach": """
c: bool = gt i 3:i32
if c
  for k in 0:i32 : 4:i32 : 1:i32
    store y 1.0:f32 i
""",
    "moves one carried value into another": """
v: f32 = load x i
p: f32, q: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry s = v, t = v
  yield 0.0:f32, s
store y q i
""",
    "a private array": "p: cell[f32,4] = cell[dtype=f32, shape=(4)]",
    "the old value": "o: f32 = atomic[op=add] y 1.0:f32 i",
    "`lgamma` for f32: Triton's version is not within 4 ulp": "v: f32 = load x i\nw: f32 = lgamma v\nstore y w i",
    "wait for each other": "m: i32 = lane_max i",
    "atomic `max` of f32": """
v: f32 = load x i
j: i32 = convert[dtype=i32] v
accum[op=max] z v j
""",
    "both accumulates into and accesses otherwise": """
v: f32 = load x i
j: i32 = convert[dtype=i32] v
accum[op=add] z v j
w: f32 = load z 0:i32
store y w i
""",
}


@pytest.mark.parametrize(
    ("begin", "taken"), [("v", False), ("w", False), ("0.0:f32", True)], ids=["alike", "perhaps alike", "apart"]
)
@pytest.mark.parametrize("order", ["0.0:f32, s", "d, s", "t, s", "s, t"])
def test_carried_values_that_move_into_another(begin: str, order: str, taken: bool):
    text = f"""
v: f32 = load x i
w: f32 = load y i
p: f32, q: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry s = v, t = {begin}
  d: f32 = add s 1.0:f32
  yield {order}
store y q i
"""
    (task,) = over(text).tasks
    assert (refusal(task) is None) == (taken or order == "s, t")


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals_have_their_reason_and_line(reason: str):
    (task,) = over(REFUSED[reason], refs=", z: ref[f32,5000]").tasks
    assert reason in str(refusal(task))
    assert text_of(task).startswith("# ")
    assert reason in text_of(task)
    chosen = choose(task)
    assert chosen.codegen == "llvm"
    assert reason in chosen.reason
    with pytest.raises(BackendError, match="codegen='triton' needs a regular task"):
        choose(task, "triton")


def test_bounds_that_the_task_writes_and_steps_known_late_are_refused():
    (task,) = parse_program("""program p(n: ref[i32], y: ref[i32,9])
  range_for i in 0:i32 : e
    head
      e: i32 = load n
    accum[op=add] n 1:i32
  return n
""").tasks
    assert "bounds depend on memory" in str(refusal(task))
    made = over("for k in 0:i32 : 4:i32 : s\n  store y 1.0:f32 i", head="s: i32 = load q", refs=", q: ref[i32]")
    (task,) = made.tasks
    assert "step is known only" in str(refusal(task))


def test_functions_are_taken_where_their_error_is_documented():
    (task,) = over("v: f32 = load x i\nw: f32 = exp v\nstore y w i").tasks
    assert refusal(task, "cuda") is None
    assert "`exp` for f32" in str(refusal(task, "rocm"))


def test_the_choice_and_its_reason():
    (stream,) = over("v: f32 = load x i\nstore y v i").tasks
    (loops,) = over("for k in 0:i32 : 4:i32 : 1:i32\n  store y 1.0:f32 i").tasks
    scatter = "v: f32 = load x i\nj: i32 = convert[dtype=i32] v\naccum[op=add] z v j"
    (scattered,) = over(scatter, refs=", z: ref[f32,5000]").tasks
    (serial,) = parse_program("program p(y: ref[f32])\n  serial\n    store y 1.0:f32\n  return y\n").tasks
    assert "100 iterations in blocks of" in choose(stream, "triton").reason
    assert choose(stream, "llvm").codegen == "llvm"
    fast = "one thread per iteration is as fast"
    for task, why in ((stream, fast), (loops, fast), (scattered, fast), (serial, "one iteration")):
        assert choose(task).codegen == "llvm"
        assert why in choose(task).reason
        assert choose(task, "triton").codegen == "triton"
