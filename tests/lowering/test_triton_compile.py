"""Triton source as machine code, without a GPU: it compiles for every kind, with wide loads and nothing spilled."""

import re
from dataclasses import replace

import pytest

from qdtrace.errors import BackendError
from qdtrace.ir.parser import parse_program
from qdtrace.ir.primitives import FUNCTIONS
from qdtrace.ir.types import DType
from tests.lowering.test_elementwise import operations, table

triton = pytest.importorskip("triton", reason="needs the package triton")

from lowering.triton.compile import compile_kernels  # noqa: E402
from lowering.triton.emit import emit_triton  # noqa: E402
from lowering.triton.maths import is_accurate  # noqa: E402

NVIDIA = ("sm_80", "sm_90", "sm_100")
AMD = ("gfx90a", "gfx942", "gfx950", "gfx1100")
N = 1 << 20

STREAM = f"""program stream(x: ref[f32,{N}], y: ref[f32,{N}], z: ref[f32,{N}])
  range_for i in 0:i32 : {N}:i32
    v: f32 = load x i
    w: f32 = load z i
    s: f32 = add v w
    store y s i
  return y
"""
SUM = f"""program sum(x: ref[f32,{N}], s: ref[f32], m: ref[i64])
  range_for i in 0:i32 : {N}:i32
    v: f32 = load x i
    accum[op=add] s v
    k: i64 = convert[dtype=i64] i
    accum[op=max] m k
  return s, m
"""
HISTOGRAM = f"""program histogram(k: ref[i32,{N}], h: ref[i32,256])
  range_for i in 0:i32 : {N}:i32
    a: i32 = load k i
    j: i32 = bound[size=256, axis=0, buffer=h, shape=(256)] a
    accum[op=add] h 1:i32 j
  return h
"""
CONTROL = """program control(x: ref[f32,1000], n: ref[i32], y: ref[f32,1000], t: ref[f64,5000], b: ref[bool,1000])
  range_for i in 0:i32 : e
    head
      e: i32 = load n
      u: bool = gt e 3:i32
    v: f32 = load x i
    c: bool = gt v 0.0:f32
    w: f32, l: i64 = if c
      d: f32 = div v 3.0:f32
      store b c i
      yield d, 1:i64
    else
      yield v, 2:i64
    q: f32, p: bool = for k in 0:i32 : e : 2:i32 carry s = w, o = false
      r: f32 = add s 1.0:f32
      yield s, c
    a: f32 = if u
      yield 2.0:f32
    else
      yield q
    j: i32 = convert[dtype=i32] a
    f: f64 = convert[dtype=f64] q
    accum[op=add] t f j
    g: f32 = load y i
    h: f32 = mul g a
    store y h i
  serial
    v: f32 = load x 1:i32
    store y v 0:i32
  return y, t, b
"""


def codes(text: str):
    """The source of each task."""
    return [emit_triton(task) for task in parse_program(text).tasks]


@pytest.mark.parametrize("device", NVIDIA)
@pytest.mark.full
def test_streams_load_and_store_sixteen_bytes(device: str):
    (code,) = codes(STREAM)
    (kernel,) = compile_kernels(code, device)
    assert kernel.image.startswith(b"\x7fELF")
    assert "ld.global.v4.b32" in kernel.assembly
    assert "st.global.v4.b32" in kernel.assembly
    assert not re.search(r"(ld|st)\.global\.b(16|32)\b", kernel.assembly)
    assert ".local" not in kernel.assembly
    assert kernel.launch.threads == code.launches[0].warps * 32
    assert kernel.launch.shared_bytes == 0


@pytest.mark.full
@pytest.mark.parametrize("end", ["1000003:i32", "e"])
def test_ranges_that_end_anywhere_are_read_wide_up_to_the_last_block(end: str):
    head = "    head\n      e: i32 = load n\n" if end == "e" else ""
    text = f"""program p(x: ref[f32,1000003], y: ref[f32,1000003], n: ref[i32], s: ref[f32])
  range_for i in 0:i32 : {end}
{head}    v: f32 = load x i
    w: f32 = mul v 2.0:f32
    store y w i
    accum[op=add] s w
  return y, s
"""
    for made in (text, text.replace("    accum[op=add] s w\n", "")):
        (code,) = codes(made)
        main = compile_kernels(code, "sm_90")[0]
        assert "ld.global.v4.b32" in main.assembly
        assert "st.global.v4.b32" in main.assembly


@pytest.mark.full
@pytest.mark.sample(2, full=3)
@pytest.mark.parametrize("device", [*NVIDIA, *AMD])
def test_every_form_compiles(device: str):
    for text in (SUM, HISTOGRAM, CONTROL):
        for code in codes(text):
            kernels = compile_kernels(code, device)
            assert [k.launch.name for k in kernels] == [launch.name for launch in code.launches]
            for kernel in kernels:
                assert kernel.image.startswith(b"\x7fELF")
                assert 0 <= kernel.launch.null_arguments <= 4
                assert ".local" not in kernel.assembly
                assert "scratch_store" not in kernel.assembly
                wave = 64 if device.startswith("gfx9") else 32
                assert kernel.launch.threads % wave == 0


@pytest.mark.full
@pytest.mark.parametrize("device", ["sm_80", "sm_90"])
def test_sums_read_wide_and_meet_in_shared_memory(device: str):
    (code,) = codes(SUM)
    main, combine = compile_kernels(code, device)
    assert "ld.global.v4.b32" in main.assembly
    assert main.launch.shared_bytes > 0
    assert "atom" not in main.assembly
    assert "ld.global" in combine.assembly


@pytest.mark.full
@pytest.mark.sample(3, full=3)
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_every_primitive_compiles(dtype: DType):
    names = [o for o in operations(dtype) if o[0] != "nextafter"]
    (task,) = table(dtype, names, 64).tasks
    (kernel,) = compile_kernels(emit_triton(task), "sm_90")
    assert kernel.assembly.count("st.global") >= len(names)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.bf16, DType.f32, DType.f64], ids=lambda d: d.value)
def test_every_function_compiles(dtype: DType):
    names = [(n, {}, 1 + (n in ("pow", "atan2"))) for n in sorted(FUNCTIONS) if is_accurate(n, dtype, "cuda")]
    (task,) = table(dtype, names, 64).tasks
    (kernel,) = compile_kernels(emit_triton(task), "sm_90")
    assert kernel.assembly.count("st.global") >= len(names)


def test_what_does_not_compile_names_the_kernel_and_the_kind():
    (code,) = codes(STREAM)
    with pytest.raises(BackendError, match=r"`qd_kernel` for sm_90: AttributeError.*nothing"):
        compile_kernels(replace(code, text=code.text.replace("tl.load(x", "tl.nothing(x")), "sm_90")
