"""Tasks by Triton on a fake device: which code is loaded, what a call enqueues, what is kept, what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.gpu.codegen import content_of
from lowering.gpu.emission import Emission
from lowering.runtime.cache import ArtifactCache
from lowering.triton import installed
from qdtrace.errors import BackendError, QdWarning
from qdtrace.ir.parser import parse_program
from qdtrace.stats import stats
from tests.gpu.fake import FakeDriver, Launched, fake_backend
from tests.runtime.programs import uncached

if TYPE_CHECKING:
    from qdtrace.config import Options

N = 5000
needs_triton = pytest.mark.skipif(installed.triton_version() is None, reason="needs the package triton")
TEXT = f"""program p(x: ref[f32,{N}])
  buffer y: ref[f32,{N}]
  buffer s: ref[f32] = 1.0:f32
  range_for i in 0:i32 : {N}:i32
    v: f32 = load x i
    w: f32 = mul v 2.0:f32
    store y w i
  range_for i in 0:i32 : {N}:i32
    v: f32 = load y i
    accum[op=add] s v
  return y, s
"""
LOOPS = """program loops(x: ref[f32,64])
  buffer y: ref[f32,64]
  range_for i in 0:i32 : 64:i32
    v: f32 = load x i
    w: f32 = while carry a = v
      c: bool = lt a 9.0:f32
      test c
      b: f32 = add a 1.0:f32
      yield b
    store y w i
  return y
"""


def looks(arguments: int) -> FakeDriver:
    return FakeDriver(runs=False, looks=arguments)


def asked(driver: FakeDriver) -> list[Launched]:
    return [c for c in driver.asked if isinstance(c, Launched)]


@pytest.mark.full
@needs_triton
def test_each_kernel_is_an_image_with_its_launch() -> None:
    """A stream of two references; a sum of two, in two kernels, with shared memory and null arguments behind."""
    with fake_backend(looks(8), chip="sm_90") as (backend, driver):
        done = backend.compile(parse_program(TEXT), uncached(codegen="triton"))
        jax.block_until_ready(jax.jit(done.call)(np.zeros(N, np.float32)))
    stream, walk, combine = asked(driver)
    assert [k.name for k in (stream, walk, combine)] == ["qd_kernel", "qd_kernel", "qd_combine"]
    assert (stream.blocks, stream.threads, stream.shared_bytes) == (-(-N // 1024), 128, 0)
    assert (walk.blocks, walk.threads) == (-(-N // 2048), 256)
    assert walk.shared_bytes > 0
    assert combine.blocks == 1
    assert stream.arguments[2:] == (0, N, 0, 0, 0, 0)
    assert walk.arguments[2:5] == (0, N, 0)
    assert walk.arguments[5] != 0
    assert walk.arguments[6:] == (0, 0)
    assert combine.arguments == walk.arguments
    assert len(driver._libraries) == 3
    assert all(code.startswith(b"\x7fELF") for code in driver._libraries)
    assert sorted(shared for _, _, shared in driver.kernels) == sorted(k.shared_bytes for k in asked(driver))
    assert len({library for _, library, _ in driver.kernels}) == 3


@needs_triton
def test_tasks_of_one_program_have_emitters_of_their_own() -> None:
    program = parse_program(LOOPS)
    with fake_backend(looks(6), chip="sm_90") as (backend, driver):
        (task,) = program.tasks
        assert backend.describe(task, uncached()).codegen == "llvm"
        assert "a while loop" in backend.describe(task, uncached()).reason
        stream, total = parse_program(TEXT).tasks
        assert "one thread per iteration is as fast" in backend.describe(stream, uncached()).reason
        report = backend.describe(stream, uncached(codegen="triton"))
        assert report.codegen == "triton"
        assert report.reason.startswith(f"codegen='triton': {N} iterations in blocks of 1024")
        forced = backend.describe(total, uncached(codegen="llvm"))
        assert (forced.codegen, forced.reason.split("; ")[-1]) == ("llvm", "codegen='llvm'")
        kept = backend.describe(stream, uncached(block_dim=64))
        assert (kept.codegen, kept.reason.split("; ")[-1]) == ("llvm", "block_dim=64")
        own = backend.describe(replace(stream, hints={"block_dim": 96}), uncached())
        assert (own.codegen, own.reason.split("; ")[-1]) == ("llvm", "block_dim=96")
        assert backend.describe(stream, uncached(block_dim=64, codegen="triton")).codegen == "triton"
        backend.compile(program, uncached())
        (library,) = driver._libraries
    assert b".visible .entry qd_kernel" in library


@pytest.mark.full
@needs_triton
def test_assembly_is_that_of_the_emitter_that_is_chosen() -> None:
    stream, _ = parse_program(TEXT).tasks
    with fake_backend(looks(8), chip="sm_90") as (backend, _):
        made, other = (backend.text(stream, uncached(codegen=name), "ptx") for name in ("triton", "llvm"))
    assert "st.global.v4.b32" in made
    assert "st.global.v4.b32" not in other
    assert "qd_kernel" in other


@pytest.mark.full
@needs_triton
def test_the_cache_keeps_all_images_and_a_warm_backend_compiles_nothing(tmp_path) -> None:
    options = uncached(offline_cache=True, offline_cache_dir=str(tmp_path), codegen="triton")
    made, images, launched = [], [], []
    for _ in range(2):
        before = stats()
        with fake_backend(looks(8), kind=900, chip="sm_90") as (backend, driver):
            done = backend.compile(parse_program(TEXT), options)
            made.append((stats().compiled - before.compiled, stats().loaded - before.loaded))
            images.append(sorted(driver._libraries))
            launched.append(sorted((name, shared) for name, _, shared in driver.kernels))
            assert done.address
    tasks_launcher_and_handler = 4
    assert made == [(tasks_launcher_and_handler, 0), (0, tasks_launcher_and_handler)]
    assert images[0] == images[1]
    assert len(images[0]) == 3
    assert launched[0] == launched[1]
    assert ArtifactCache(tmp_path).size()[0] == tasks_launcher_and_handler


@pytest.mark.full
@needs_triton
def test_the_emitter_and_its_version_are_in_the_content(monkeypatch) -> None:
    options = [uncached(codegen=name) for name in ("auto", "llvm", "triton")]
    with fake_backend(looks(8), chip="sm_90") as (backend, _):
        names = [backend.compile(parse_program(TEXT), o).target_name for o in options]
    assert len(set(names)) == 3
    before = list(map(content_of, options))
    monkeypatch.setattr("lowering.gpu.codegen.triton_version", lambda: "99.0")
    after = list(map(content_of, options))
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, False]


@needs_triton
def test_what_triton_refuses_is_told_with_the_line() -> None:
    def grown(x):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = x[i]
            for _ in qd.while_(lambda i=i: out[i] < 9):
                out[i] += 1
        return out

    low = qd.jit(grown, options={"codegen": "triton"}).lower(jnp.ones(64), target="sm_90")
    with pytest.raises(BackendError) as raised:
        _ = low.tasks
    rule, *rest = str(raised.value).splitlines()
    assert rule.startswith("codegen='triton' needs a regular task, `grown.0` has a while loop at ")
    assert __file__ in rule
    assert rest[-1] == "help: leave codegen='auto': each task gets the emitter that can make it"
    with fake_backend(looks(8), chip="sm_90") as (backend, driver):
        with pytest.raises(BackendError, match=r"needs a regular task, `.*` has a while loop"):
            backend.compile(parse_program(LOOPS), uncached(codegen="triton"))
        assert driver._libraries == []


SCAN = f"""program scan(x: ref[i32,{N}])
  buffer y: ref[i32,{N}]
  serial @"total.0"
    s: i32 = for k in 0:i32 : {N}:i32 : 1:i32 carry c = 0:i32
      v: i32 = load x k
      t: i32 = add c v
      store y t k
      yield t
  return y
"""


@needs_triton
def test_what_triton_does_not_compile_is_left_to_llvm_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that names its line; where Triton is forced, that is an error."""

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such layout\nin pass 7")

    monkeypatch.setattr("triton.compile", fails)
    x = np.arange(N, dtype=np.int32)
    program = parse_program(SCAN, file="user.py")
    with fake_backend() as (backend, _):
        assert Emission(backend.device).choice(program.tasks[0], uncached()).codegen == "triton"
        with pytest.warns(QdWarning) as told:
            done = backend.compile(program, uncached())
        np.testing.assert_array_equal(jax.jit(done.call)(x)[0], np.cumsum(x))
        with pytest.raises(BackendError, match=r"Triton did not compile .*: no such layout\n(.*\n)*.*in pass 7\n"):
            backend.compile(program, uncached(codegen="triton"))
    (warning,) = told
    assert (warning.filename, warning.lineno) == ("user.py", 3)
    text = str(warning.message)
    assert text.startswith("total.0: LLVM makes this task in place of Triton: Triton did not compile `qd_")
    assert text.endswith(": no such layout")


@needs_triton
def test_a_triton_that_cannot_be_imported_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    x = np.arange(N, dtype=np.int32)
    program = parse_program(SCAN, file="user.py")
    with fake_backend() as (backend, _):
        with pytest.warns(QdWarning, match="in place of Triton: Triton cannot be imported: import"):
            done = backend.compile(program, uncached())
        np.testing.assert_array_equal(jax.jit(done.call)(x)[0], np.cumsum(x))
        with pytest.raises(BackendError, match=r"Triton cannot be imported: .*\nhelp: codegen='llvm' "):
            backend.compile(program, uncached(codegen="triton"))


@pytest.fixture(params=["no package", "3.4.1", "2.9"])
def without(request, monkeypatch):
    """A machine without a Triton that can be used."""

    def version(name: str) -> str:
        assert name == "triton"
        if request.param == "no package":
            raise installed.PackageNotFoundError(name)
        return request.param

    monkeypatch.setattr(installed, "version", version)
    installed.triton_version.cache_clear()
    yield
    installed.triton_version.cache_clear()


@pytest.mark.usefixtures("without")
def test_without_triton_all_is_llvm_and_triton_cannot_be_forced() -> None:
    stream, _ = parse_program(TEXT).tasks
    with fake_backend(looks(8), chip="sm_90") as (backend, driver):
        report = backend.describe(stream, uncached())
        assert report.codegen == "llvm"
        assert report.reason.endswith("; without the package triton, 3.5 or newer")
        backend.compile(parse_program(TEXT), uncached())
        assert not any(code.startswith(b"\x7fELF") for code in driver._libraries)
        forced: Options = uncached(codegen="triton")
        for ask in (lambda: backend.describe(stream, forced), lambda: backend.compile(parse_program(TEXT), forced)):
            with pytest.raises(BackendError) as raised:
                ask()
            assert str(raised.value) == (
                "codegen='triton' needs the package triton, 3.5 or newer\nhelp: pip install 'qdtrace[gpu]'"
            )
    assert content_of(uncached()) == content_of(uncached(codegen="llvm"))


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("found", ["3.5.0", "3.10.0+cu13", "4.0"])
def test_versions_that_can_be_used(monkeypatch, found: str) -> None:
    monkeypatch.setattr(installed, "version", lambda _: found)
    installed.triton_version.cache_clear()
    assert installed.triton_version() == found
