"""The tools of the random tests: comparison, inputs, corpus, and what the programs are made of."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from qdtrace.ir.parser import parse_program
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.types import DType
from tests.differential.compare import EXACT, Tolerance, compare, distance
from tests.differential.corpus import case, keep, replay
from tests.differential.inputs import KINDS, arguments
from tests.differential.programs import programs

F32 = np.float32
UP = np.nextafter(F32(1), F32(2))


def f32(*values) -> list[np.ndarray]:
    return [np.array(values, np.float32)]


@pytest.mark.parametrize(
    ("a", "b", "tolerance"),
    [
        (f32(1, np.nan), f32(1, -np.nan), EXACT),
        ([np.array([3, -1])], [np.array([3, -1])], EXACT),
        ([np.empty((0, 3))], [np.empty((0, 3))], EXACT),
        (f32(1), f32(UP), Tolerance(ulps=1)),
        (f32(3.4028235e38), f32(np.inf), Tolerance(ulps=1)),
        (f32(0.0), f32(-0.0), Tolerance(signed_zeros=False)),
        (f32(1e-45), f32(-1e-45), Tolerance(ulps=2)),
        (f32(1), f32(1.5), Tolerance(absolute=0.5)),
    ],
)
def test_agreement(a, b, tolerance):
    compare(a, b, tolerance)
    compare(b, a, tolerance)


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "message"),
    [
        (f32(1), f32(UP), EXACT, "result 0 at (0,): np.float32(1.0), not np.float32(1.0000001) (1 of 1 differ)"),
        (f32(1, np.nan), f32(1, 2), EXACT, "result 0 at (1,): np.float32(nan), not np.float32(2.0) (1 of 2 differ)"),
        (f32(0.0), f32(-0.0), EXACT, "result 0 at (0,): np.float32(0.0), not np.float32(-0.0) (1 of 1 differ)"),
        (
            f32(0.0),
            f32(-0.0),
            Tolerance(ulps=9, absolute=0.0),
            "result 0 at (0,): np.float32(0.0), not np.float32(-0.0) (1 of 1 differ)",
        ),
        (
            f32(np.nan),
            f32(np.inf),
            Tolerance(ulps=1 << 31),
            "result 0 at (0,): np.float32(nan), not np.float32(inf) (1 of 1 differ)",
        ),
        (
            [np.array([[1, 2], [3, 4]])],
            [np.array([[1, 2], [0, 4]])],
            Tolerance(ulps=9, absolute=9),
            "result 0 at (1, 0): np.int64(3), not np.int64(0) (1 of 4 differ)",
        ),
        (f32(1), [np.array([1.0])], EXACT, "result 0: float32(1,), not float64(1,)"),
        (f32(1), f32(1, 2), EXACT, "result 0: float32(1,), not float32(2,)"),
        (f32(1), [], EXACT, "1 results, not 0"),
    ],
)
def test_disagreement(a, b, tolerance, message):
    with pytest.raises(AssertionError) as caught:
        compare(a, b, tolerance)
    assert str(caught.value).splitlines()[0] == message


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float])
def test_distance_counts_representable_values(dtype):
    one = np.array([1], dtype.numpy)
    bits = np.dtype(f"i{dtype.itemsize}")
    assert distance(one, (one.view(bits) + bits.type(5)).view(dtype.numpy)) == 5
    zero, minus = np.array([0.0], dtype.numpy), np.array([-0.0], dtype.numpy)
    assert distance(zero, minus) == 0


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_a_function_of_kind_and_seed(dtype, kind):
    program = parse_program(f"program p(x: ref[{dtype.value},50x2], y: ref[{dtype.value}], z: ref[{dtype.value},0])")
    first, again, other = (arguments(program, kind, seed) for seed in (1, 1, 2))
    assert [(a.shape, a.dtype) for a in first] == [(s, dtype.numpy) for s in ((50, 2), (), (0,))]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
    assert first[0].tobytes() != other[0].tobytes()


def test_special_inputs_have_what_they_are_named_for():
    program = parse_program("program p(x: ref[f32,400])")
    (x,) = arguments(program, "special", 0)
    assert np.isnan(x).any()
    assert np.isposinf(x).any()
    assert np.isneginf(x).any()
    assert (np.signbit(x) & (x == 0)).any()
    (plain,) = arguments(program, "plain", 0)
    assert (plain * 8 == np.round(plain * 8)).all()
    assert (np.abs(plain) <= 8).all()


def test_unknown_inputs():
    with pytest.raises(ValueError, match="unknown kind of inputs 'odd'"):
        arguments(parse_program("program p(x: ref[f32,4])"), "odd", 0)


def test_the_corpus_keeps_cases(tmp_path):
    program = parse_program("program p(x: ref[f32,4])\n  return x")
    path = keep(case(program, "special", 3), "some_name", tmp_path)
    assert path.read_text(encoding="utf-8") == "# inputs: special 3\nprogram p(x: ref[f32,4])\n  return x\n"
    ((name, again),) = replay(tmp_path)
    assert name == "some_name-special-3"
    assert again.args[0].tobytes() == arguments(program, "special", 3)[0].tobytes()


def test_a_corpus_file_without_inputs(tmp_path):
    (tmp_path / "bare.qd").write_text("program p()", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bare\.qd needs a line `# inputs: <kind> <seed>`"):
        replay(tmp_path)


@pytest.mark.full
def test_programs_use_nearly_every_primitive():
    seen: set[str] = set()

    @settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(programs(functions=True))
    def look(made):
        seen.update(e.primitive.name for e in made.program.all_eqns)

    look()
    # what tells is drawn in tests/printing, what lanes ask each other and fewer segments are made by rewrites alone
    others = {"tell", "lane_max", "lane_count", "lane_rank", "at_most", "bound", "check", "custom", "platform"}
    assert len(PRIMITIVES.keys() - seen - others) <= 2  # any one function is rare
