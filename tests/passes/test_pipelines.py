"""The pipeline: its order, what the options change, and who may watch."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from qdtrace.analysis.machine import CPU, CopyLimit, Machine
from qdtrace.config import Options
from qdtrace.errors import TraceValueError
from qdtrace.ir.builder import ref_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program, Stage
from qdtrace.ir.types import DType
from qdtrace.ir.verify import VerifyError, verify_stage
from qdtrace.passes.base import Pass
from qdtrace.passes.by_name import PASSES, pass_named, simplify_for
from qdtrace.passes.mem2reg import Mem2Reg
from qdtrace.passes.observers import Timer, Verifier
from qdtrace.passes.pipelines import optimise, stages
from qdtrace.tools.opt import main, passes_named
from tests.passes.harness import assert_same_results, parsed

TEXT = """\
program p(x: ref[f32,64], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    c: cell[f32] = cell[dtype=f32, shape=()]
    store c 0.0:f32
    for k in 0:i32 : 64:i32 : 1:i32
      a: f32 = load x k
      b: f32 = add a -0.0:f32
      d: f32 = div b 3.0:f32
      e: f32 = load x k
      f: f32 = mul d e
      accum[op=add] c f
    s: f32 = load c
    store y s i
  return y
"""
RESULT = """\
program p(x: ref[f32,64], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    c_2: f32 = for k in 0:i32 : 64:i32 : 1:i32 carry c = 0.0:f32
      a: f32 = load x k
      v0: f32 = mul a 0.33333334:f32
      f: f32 = mul v0 a
      c_1: f32 = add c f
      yield c_1
    store y c_2 i
  return y
"""


def pipeline(options: Options) -> list[Pass]:
    return [one for passes in stages(options).values() for one in passes]


STAGES = ["trace", *dict.fromkeys(one.name for one in pipeline(Options()))]
"""What observers see of `TEXT`: each stage once, as nothing changes when one runs again."""


def primitives(program: Program) -> list[str]:
    return re.findall(r"= (\w+)", print_program(program))


def test_the_stages_in_order() -> None:
    names = [s.name for s in pipeline(Options())]
    assert names[:5] == ["join_branches", "mem2reg", "simplify", "prove_bounds", "hoist_bounds"]
    assert names[5:7] == ["mem2reg", "simplify"]
    assert names[7:11] == ["fills", "fuse_tasks", "contract", "first_stores"]
    assert names[11:15] == ["mem2reg", "recurrences", "memory", "simplify"]
    assert names[15:20] == ["rare_behind", "unroll_guarded", "flatten_loops", "unroll", "last_iteration"]
    assert names[20:25] == ["simplify", "fuse_loops", "mem2reg", "prove_bounds", "memory"]
    assert names[25:28] == ["unroll_scattering", "gather", "simplify"]
    assert names[28:32] == ["own_rows", "reloads", "predicate", "strength_reduction"]
    assert names[32:35] == ["reciprocals", "jam", "simplify"]
    assert names[35:] == ["fills", "first_accumulations", "reuse_donated", "share_private"]
    bodies = {"fuse_loops", "gather", "own_rows", "reloads", "predicate", "strength_reduction", "reciprocals", "jam"}
    unrolls = {"unroll_guarded", "unroll", "unroll_scattering", "last_iteration", "flatten_loops"}
    loops = {"join_branches", "rare_behind", "recurrences", *unrolls, *bodies}
    basic = {*names} - loops
    assert {s.name for s in pipeline(Options(advanced_optimization=False))} == basic
    assert {s.name for s in pipeline(Options(opt_level=0))} == basic - {"memory"}
    assert {s.name for s in pipeline(Options(cfg_optimization=False))} == {*names} - {"memory"}


def test_promotion_comes_first_because_rules_see_through_no_cell() -> None:
    promote, simplify = Mem2Reg(), simplify_for(Options())
    right, swapped = simplify(promote(parsed(TEXT))), promote(simplify(parsed(TEXT)))
    assert_same_results(right, swapped)
    text = TEXT.replace("store c 0.0:f32", "store c 2.0:f32\n    z: f32 = load c\n    w: f32 = sqrt z\n    store c w")
    right, swapped = simplify(promote(parsed(text))), promote(simplify(parsed(text)))
    assert "sqrt" not in primitives(right)
    assert "sqrt" in primitives(swapped)


def test_promotion_comes_again_because_indices_become_constant() -> None:
    text = """
program p(x: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    c: cell[f32,4] = cell[dtype=f32, shape=(4)]
    a: f32 = load x i
    k: i32 = rem 6:i32 4:i32
    store c a k
    b: f32 = load c 2:i32
    d: f32 = neg b
    store x d i
  return x
"""
    assert "cell" in primitives(simplify_for(Options())(Mem2Reg()(parsed(text))))
    seen: list[str] = []
    made = optimise(parsed(text), Options(), (lambda name, program: seen.append(name),))
    assert primitives(made) == ["load", "neg"]
    twice = {"hoist_bounds": ["hoist_bounds", "mem2reg"]}
    assert seen == [name for stage in STAGES for name in twice.get(stage, [stage])]


def test_fast_math_changes_roundings_only_when_asked() -> None:
    assert print_program(optimise(parsed(TEXT), Options())) == RESULT.rstrip("\n")
    exact = optimise(parsed(TEXT), Options(fast_math=False))
    assert "div" in primitives(exact)
    assert_same_results(parsed(TEXT), exact)


def test_opt_level_0_shares_nothing() -> None:
    loads = [primitives(optimise(parsed(TEXT), Options(opt_level=level))).count("load") for level in (0, 1)]
    assert loads == [2, 1]


def test_without_advanced_optimization_there_is_one_round() -> None:
    names: list[str] = []
    options = Options(advanced_optimization=False, verify=True)
    optimise(parsed(TEXT), options, (lambda name, program: names.append(name),))
    assert names == [
        "trace",
        "mem2reg",
        "simplify_1_rewrite",
        "simplify_1_loop_invariant",
        "simplify_1_constant_extraction",
        "simplify_1_dead_code",
        *list(dict.fromkeys(stage.name for stage in pipeline(options)))[1:],
    ]


def test_constant_folding_off() -> None:
    text = "program p(x: ref[i32])\n  serial\n    a: i32 = add 1:i32 2:i32\n    store x a\n  return x\n"
    assert "add" in primitives(optimise(parsed(text), Options(constant_folding=False)))
    assert "add" not in primitives(optimise(parsed(text), Options()))


def test_observers_see_each_stage() -> None:
    seen: dict[str, Program] = {}
    made = optimise(parsed(TEXT), Options(), (seen.__setitem__,))
    assert list(seen) == STAGES
    assert seen["share_private"].tasks is made.tasks
    timer = Timer()
    optimise(parsed(TEXT), Options(), (timer,))
    assert list(timer.seconds) == STAGES
    assert all(s >= 0 for s in timer.seconds.values())


def test_the_verifier_names_the_pass() -> None:
    stranger = ref_var(DType.f32, (), "z")
    broken = Program("p", (), (), (), (stranger,))
    with pytest.raises(VerifyError, match=r"(?s)result: `z` is no parameter.*after pass `dead_code`"):
        Verifier()("dead_code", broken)


def test_print_ir(capsys: pytest.CaptureFixture[str]) -> None:
    optimise(parsed(TEXT), Options(print_ir=True))
    err = capsys.readouterr().err
    assert re.findall(r"^# (.*)$", err, re.MULTILINE) == [f"p after {name}" for name in STAGES]
    assert RESULT in err


@pytest.mark.parametrize(("rounds", "count"), [(False, len(STAGES)), (True, len(STAGES) + 8)])
def test_dumps(tmp_path: Path, rounds: bool, count: int) -> None:
    options = Options(dump_ir=True, dump_simplify=rounds, debug_dump_path=str(tmp_path))
    made = optimise(parsed(TEXT), options)
    files = sorted(tmp_path.glob("*_p/*.qd"))
    assert files[0].name == "000_trace.qd"
    assert files[-1].name == f"{len(files) - 1:03}_share_private.qd"
    assert len(files) >= count
    assert print_program(parse_program(files[-1].read_text())) == print_program(made)


def test_nothing_is_written_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optimise(parsed(TEXT), Options(debug_dump_path=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_opt_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.qd"
    file.write_text(TEXT)
    assert main([str(file)]) == 0
    assert capsys.readouterr().out == RESULT
    assert main([str(file), "-p", "mem2reg,dead_code", "--print-between", "--verify-each", "--time"]) == 0
    out, err = capsys.readouterr()
    assert re.findall(r"^# (.*)$", out, re.MULTILINE) == ["after mem2reg", "after dead_code"]
    assert re.fullmatch(r"mem2reg: \d+\.\d\d ms\ndead_code: \d+\.\d\d ms\n", err)
    assert main([str(file), "--no-fast-math"]) == 0
    assert "div" in capsys.readouterr().out


def test_opt_tool_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.qd"
    file.write_text(TEXT)
    assert main([str(file), "-p", "licm"]) == 1
    assert capsys.readouterr().err == (
        f"TraceValueError: needs the name of a pass, got 'licm'\nnote: passes are {', '.join(PASSES)}\n"
    )
    assert main([str(tmp_path / "missing.qd")]) == 1
    assert capsys.readouterr().err.startswith("FileNotFoundError: ")
    file.write_text("program p(x: ref[f32])\n  serial\n    store x 1:i32\n  return x\n")
    assert main([str(file)]) == 1
    assert capsys.readouterr().err.startswith("VerifyError: typing: ")


def test_every_pass_has_its_name() -> None:
    for name in PASSES:
        assert pass_named(name, Options()).name == name
    with pytest.raises(TraceValueError):
        passes_named(["simplify", "nothing"], Options())
    assert [p.name for p in passes_named(["dead_code", "simplify"], Options())] == ["dead_code", "simplify"]
    assert passes_named(["optimise"], Options()) == pipeline(Options())


def test_a_program_knows_its_stage_and_goes_on_from_there() -> None:
    program = parsed(TEXT)
    assert program.stage is Stage.TRACED
    canonical = optimise(program, Options(), until=Stage.CANONICAL)
    assert canonical.stage is Stage.CANONICAL
    assert "cell" not in primitives(canonical)
    seen: list[str] = []
    final = optimise(canonical, Options(), (lambda name, made: seen.append(name),))
    assert final.stage is Stage.FINAL
    assert seen[:2] == ["trace", "fills"]
    assert print_program(final) == RESULT.rstrip("\n")
    assert optimise(final, Options()) is final


def test_only_the_final_stage_depends_on_a_limit_of_unrolling() -> None:
    text = TEXT.replace("64:i32", "4:i32")
    rolled = Machine(unrolled=CopyLimit(0, 0))
    made = [optimise(parsed(text), Options(), machine=m, until=s) for m in (CPU, rolled) for s in list(Stage)[1:]]
    texts = list(map(print_program, made))
    assert texts[:2] == texts[3:5]
    assert ["for" in re.split(r"\W", t) for t in texts] == [True, True, False, True, True, True]


def test_each_stage_has_its_verifier() -> None:
    body = "a: f32 = load x\n    b: f32 = quotient a 2.0:f32 0.5:f32\n    store x b"
    program = parsed(f"program p(x: ref[f32])\n  serial\n    {body}\n  return x\n")
    with pytest.raises(VerifyError, match="stage: `quotient` stands in a program of stage canonical"):
        optimise(program, Options(verify=True))
    verify_stage(replace(program, stage=Stage.FINAL))


def test_straight_code_is_settled_by_one_round_and_loops_by_one_without_a_change() -> None:
    def rounds(text: str) -> set[str]:
        seen: list[str] = []
        simplify = simplify_for(Options(), lambda name, program: seen.append(name))
        made = simplify(Mem2Reg()(parsed(text)))
        assert simplify_for(Options())(made) is made
        return {name.split("_")[1] for name in seen}

    body = "a: f32 = load x i; b: f32 = add a -0.0:f32; d: f32 = div b 2.0:f32; store y d i"
    straight = "\n    ".join(body.split("; "))
    text = f"program p(x: ref[f32,8], y: ref[f32,8])\n  range_for i in 0:i32 : 8:i32\n    {straight}\n  return y\n"
    assert rounds(text) == {"1"}
    assert rounds(TEXT) >= {"1", "2"}
