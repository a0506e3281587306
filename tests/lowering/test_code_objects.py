"""Code objects of AMD GPUs: linked without one, with a descriptor for each kernel, and no slow ways to memory."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd
from benchmarks import lanes, mpm88
from benchmarks.peers import qdtrace_gradients as gradients
from benchmarks.peers import qdtrace_peer as programs
from benchmarks.programs import BY_NAME
from lowering.llvm.options import EmitOptions
from lowering.simt import code_object as module
from lowering.simt.assembly import assembly
from lowering.simt.code import KernelCode
from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from qdtrace.errors import BackendError
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType
from tests.lowering import code_objects
from tests.lowering.test_kernels import MANY, ROCM, SUM

FAST = EmitOptions(fast_math=True)
_SLOW = re.compile(r"^\s+(flat_\w+)", re.MULTILINE)
_PRIVATE = re.compile(r"^\s+((?:scratch|buffer)_(?:load|store)\w*)", re.MULTILINE)
_SPILLS = re.compile(r"\.[sv]gpr_spill_count: +(\d+)")
_UPDATES = re.compile(r"^\s+((?:global_atomic|ds)_\w+)", re.MULTILINE)


def _given(name: str, n: int) -> list[Any]:
    return [jnp.asarray(a) for a in BY_NAME[name].inputs(n).values()]


def _adjoint(function: Callable[..., Any], *given: Any) -> qd.Lowered:
    return qd.jit(jax.grad(lambda *args: function(*args).sum())).lower(*given)


def _spring_step() -> qd.Lowered:
    return programs.spring_step.lower(*_given("springs", 16), 0.01)


SUITE: dict[str, Callable[[], qd.Lowered]] = {
    "lorenz": lambda: qd.jit(qd.vmap(lanes.lorenz)).lower(*_given("lorenz", 4096)),
    "mandelbrot": lambda: programs.mandelbrot_image.lower(*_given("mandelbrot", 64)),
    "kepler": lambda: qd.jit(qd.vmap(lanes.kepler)).lower(*_given("kepler", 4096)),
    "ragged rows": lambda: programs.ragged_rows.lower(*_given("ragged", 4096)),
    "sum": lambda: programs.sum_of_all.lower(*_given("sum", 1 << 16)),
    "histogram": lambda: programs.counts.lower(*_given("histogram", 1 << 16)),
    "springs": _spring_step,
    "material points": lambda: qd.jit(mpm88.substep).lower(*map(jnp.asarray, mpm88.particles(1024))),
    "lorenz gradient": lambda: _adjoint(gradients.lorenz_ends(100), *_given("lorenz", 4096)),
    "while gradient": lambda: _adjoint(gradients.lorenz_until, *_given("lorenz", 4096), jnp.float32(1000)),
}


@functools.cache
def _lowered(program: str) -> qd.Lowered:
    return SUITE[program]()


@functools.cache
def _kernels(program: str, name: str) -> list[KernelCode]:
    """Of all tasks of a program of the suite."""
    kind = device(name)
    finals = [staged.optimised_for(kind.machine) for staged in _lowered(program).programs]
    return [emit_kernels(task, kind, FAST) for final in finals for task in final.tasks]


@pytest.mark.parametrize("name", ROCM)
@pytest.mark.parametrize("program", SUITE)
def test_no_slow_ways_to_memory(program: str, name: str) -> None:
    """No access that looks up its kind of memory when it runs, no register in memory, private memory only for arrays
    that are private."""
    codes = _kernels(program, name)
    assert codes
    for code, nvidia in zip(codes, _kernels(program, "sm_90"), strict=True):
        text = assembly(code.text, device(name))
        assert not _SLOW.findall(text)
        assert set(_SPILLS.findall(text)) == {"0"}
        if ".local" not in assembly(nvidia.text, device("sm_90")):
            assert not _PRIVATE.findall(text)
            assert set(re.findall(r"private_segment_fixed_size: +(\d+)", text)) == {"0"}


@pytest.mark.full
@pytest.mark.parametrize("name", ROCM)
@pytest.mark.parametrize("program", SUITE)
def test_the_suite_links(program: str, name: str) -> None:
    pytest.importorskip("triton", reason="its linker makes code objects")
    for code in _kernels(program, name):
        made = code_objects.read(module.code_object(code.text, device(name)))
        assert made.chip == code_objects.CHIPS[name]
        assert made.version == code_objects.VERSION_5
        assert made.relocations == 0
        assert set(made.kernels) == {launch.name for launch in code.launches}
        for kernel in made.kernels.values():
            assert kernel.code
            assert kernel.argument_bytes == 8 * (len(code.refs) + 4)
            # the address of the arguments, and where the chip wants it the resource of private memory: nothing else
            assert kernel.user_registers & ~code_objects.PRIVATE_BUFFER == code_objects.KERNARG_POINTER
            if name != "gfx90a":
                assert not kernel.user_registers & code_objects.PRIVATE_BUFFER
            assert kernel.shared_bytes <= 65536


@pytest.mark.parametrize("fast_math", [True, False])
@pytest.mark.parametrize("name", ROCM)
def test_slow_paths_of_functions(name: str, fast_math: bool) -> None:
    """What hardly ever runs is inlined: a call would need a stack in memory."""
    text = assembly(emit_kernels(parse_program(MANY).tasks[0], device(name), EmitOptions(fast_math)).text, device(name))
    assert not _SLOW.findall(text)
    assert not _PRIVATE.findall(text)
    assert "s_swappc" not in text
    assert "0x2757d1f5" in text.lower()  # a word of 2 / pi
    assert f"amdhsa_float_denorm_mode_32 {0 if fast_math else 3}" in text


POWER = """program p(x: ref[f16,64])
  range_for i in 0:i32 : 64:i32
    a: f16 = load x i
    b: f16 = integer_pow[y=5] a
    store x b i
  return x
"""


@pytest.mark.parametrize("name", ROCM)
def test_products_of_f16_keep_the_sign_of_zero(name: str) -> None:
    """LLVM's instruction for a product of f32 that is rounded to f16 adds +0.0: -0.0 would become 0.0."""
    text = assembly(emit_kernels(parse_program(POWER).tasks[0], device(name), EmitOptions(False)).text, device(name))
    assert "v_mul_f32" in text
    assert "v_cvt_f16_f32" in text
    assert "mixlo" not in text


@pytest.mark.full
@pytest.mark.parametrize("dtype", DType, ids=str)
@pytest.mark.parametrize("name", ["gfx942", "gfx1100"])
def test_sums_of_every_dtype(name: str, dtype: DType) -> None:
    """What all threads agree on goes through other registers than the rest."""
    d, op = dtype.value, "or" if dtype is DType.bool else "add"
    task = parse_program(f"""program p(n: ref[i32], x: ref[{d},300], s: ref[{d}], h: ref[{d},5])
  range_for i in 0:i32 : m
    head
      m: i32 = load n
    v: {d} = load x i
    accum[op={op}] s v
    k: i32 = rem i 5:i32
    accum[op={op}] h v k
  return s, h
""").tasks[0]
    for fast_math in (True, False):
        text = assembly(emit_kernels(task, device(name), EmitOptions(fast_math)).text, device(name))
        assert "amdhsa_kernel qd_combine" in text


def test_many_calls_are_not_inlined() -> None:
    """The slow paths of a function count where it is inlined: code does not grow without end."""
    lines = "\n".join(f"    a{k + 1}: f32 = sin a{k}" for k in range(120))
    text = f"""program p(x: ref[f32,64])
  range_for i in 0:i32 : 64:i32
    a0: f32 = load x i
{lines}
    store x a120 i
  return x
"""
    code = emit_kernels(parse_program(text).tasks[0], device("gfx942"), FAST)
    made = assembly(code.text, device("gfx942"))
    assert made.count("s_swappc") == 120
    assert not _SLOW.findall(made)
    assert len(made.splitlines()) < 3000
    flush = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'
    assert all(flush in line for line in code.text.splitlines() if line.startswith("define"))


NATIVE = {
    ("f32", "add"): ("global_atomic_add_f32", "ds_add_f32"),
    ("f64", "add"): ("global_atomic_add_f64", "ds_add_f64"),
    ("i32", "add"): ("global_atomic_add(_u32)?", "ds_add_u32"),
    ("u32", "max"): ("global_atomic_(umax|max_u32)", "ds_max_u32"),
    ("i64", "min"): ("global_atomic_(smin_x2|min_i64)", "ds_min_i64"),
}
"""In memory, and in memory of the block."""


@pytest.mark.parametrize(
    ("name", "dtype", "op"),
    [(n, *key) for key in NATIVE for n in ROCM if (n, key[0]) != ("gfx1100", "f64")],  # which has none of f64
)
def test_updates_are_instructions_where_the_chip_has_them(name: str, dtype: str, op: str) -> None:
    for size, wanted in zip((100_000, 100), NATIVE[dtype, op], strict=True):
        task = parse_program(f"""program p(x: ref[{dtype},64], c: ref[i32,64], h: ref[{dtype},{size}])
  range_for i in 0:i32 : 64:i32
    a: {dtype} = load x i
    k: i32 = load c i
    accum[op={op}] h a k
  return h
""").tasks[0]
        found = _UPDATES.findall(assembly(emit_kernels(task, device(name), FAST).text, device(name)))
        assert any(re.fullmatch(wanted, x) for x in found), found
        assert not any("cmp" in x for x in found), found


def _without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    module._linker.cache_clear()
    monkeypatch.setattr(module, "import_module", missing)


@pytest.mark.parametrize("linker", ["none", "program"])
def test_refusals(linker: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a linker it is said what to install; what a linker says is passed on."""
    _without_triton(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    if linker == "program":
        program = tmp_path / "llvm" / "bin" / "ld.lld"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho no such format >&2\nexit 1\n")
        program.chmod(0o755)
    words = "needs a linker" if linker == "none" else "the linker refused the code"
    code = emit_kernels(parse_program(SUM).tasks[0], device("gfx942"))
    with pytest.raises(BackendError, match=words) as caught:
        module.code_object(code.text, device("gfx942"))
    assert "pip install triton" in str(caught.value)
    assert ("no such format" in str(caught.value)) == (linker == "program")
    module._linker.cache_clear()


def test_a_linker_on_the_path(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_triton(monkeypatch)
    program = tmp_path / "ld.lld"
    program.write_text('#!/bin/sh\n[ "$1 $2 $4" = "-shared --no-undefined -o" ] && /bin/cp "$3" "$5"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "none"))
    assert module.linked(b"relocatable") == b"relocatable"
    module._linker.cache_clear()
