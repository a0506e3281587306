"""Keys, memory of what was made, and failures while compiling."""

import ctypes
import gc
import signal
import threading
import time
from dataclasses import replace
from typing import NoReturn

import llvmlite.binding as llvm
import numpy as np
import pytest

from lowering.backend import CpuBackend
from lowering.llvm import unlocked
from lowering.llvm.options import emit_options
from lowering.llvm.target import Target
from lowering.runtime import compile as compiling
from lowering.runtime.cache import ArtifactCache
from lowering.runtime.compile import object_code, optimised
from lowering.runtime.info import describe, usable_cores
from lowering.runtime.jit import link
from lowering.runtime.keys import artifact_key, task_content
from lowering.runtime.once import Once
from lowering.runtime.sheltered import sheltered
from qdtrace.ir.builder import ref_var
from tests.runtime.programs import F32, affine, affine_task, uncached

TEXT = "define i32 @answer() {\n  ret i32 42\n}\n"


def test_what_an_exception_leaves_behind_goes_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is part of a cycle, with frames that hold LLVM's objects: the garbage collector takes them."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    def make() -> NoReturn:
        module, machine = compiling.optimised(TEXT, Target.host())
        interrupted(module, machine)

    for module, name in ((llvm.ModuleRef, "verify"), (compiling, "optimise"), (compiling, "count")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                Once[bytes]().get("key", make)
        gc.collect()
    compiling.optimised(TEXT, Target.host())


def test_an_interrupt_waits_for_llvm() -> None:
    """Signals come at many moments of compiling and linking; each call ends in an interrupt, or in code that runs."""

    def code(text: str) -> bytes:  # as `machine_code`, which tests keep
        return sheltered(lambda: unlocked.emit_object(*compiling.optimised(text, Target.host())[::-1]))

    def call(k: int, moment: float) -> str:
        name = f"interrupted_{k}"
        timer = threading.Timer(moment, signal.raise_signal, (signal.SIGINT,))
        try:
            timer.start()
            addresses = link(name, code(TEXT.replace("42", str(k))), ("answer",), {}, Target.host())
            assert ctypes.CFUNCTYPE(ctypes.c_int)(addresses["answer"])() == k
            timer.join()
            time.sleep(1)  # the signal is noted, if it has not been raised yet
        except KeyboardInterrupt:
            return "interrupted"
        return "not interrupted"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert {call(k, k * 2e-4) for k in range(60)} == {"interrupted"}
    finally:
        signal.signal(signal.SIGINT, before)
    gc.collect()
    for k in range(60):  # a library that was linked behind an interrupt is found
        address = link(f"interrupted_{k}", code(TEXT), ("answer",), {}, Target.host())["answer"]
        assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() in {k, 42}


def test_names_and_places_do_not_matter_to_a_task():
    x, y, other = ref_var(F32, (8,), "x"), ref_var(F32, (8,), "y"), ref_var(F32, (9,), "x")
    first = task_content(affine_task(y, x, 2.0), "")
    assert task_content(replace(affine_task(x, y, 2.0), name="named"), "") == first
    different = [affine_task(y, x, 3.0), affine_task(y, other, 2.0), affine_task(x, x, 2.0)]
    assert len({first, *(task_content(t, "") for t in different)}) == 4
    assert task_content(affine_task(y, x, 2.0), "fast") != first


def test_artifacts_of_another_processor_have_another_key():
    assert artifact_key("c", Target.named("portable")) != artifact_key("c", Target.named("avx2"))


def test_once_makes_a_value_once_for_many_threads():
    once, made = Once[int](), []

    def make() -> int:
        time.sleep(0.05)
        made.append(1)
        return 7

    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(once.get("k", make))) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (got, made) == ([7] * 5, [1])


def test_once_forgets_failures():
    once = Once[int]()
    with pytest.raises(ZeroDivisionError):
        once.get("k", lambda: 1 // 0)
    assert once.get("k", lambda: 3) == 3


def test_a_failure_of_the_emitter_comes_out_and_is_not_kept():
    def broken(*_):
        raise ValueError("cannot")

    program = affine(19, 0.125)
    with pytest.raises(ValueError, match=r"^cannot$"):
        CpuBackend(emit=broken).compile(program, uncached())
    done = CpuBackend().compile(program, uncached())
    assert np.array_equal(done.call(np.full(19, 8, np.float32))[0], np.full(19, 2))


def test_a_missing_symbol_is_an_error_not_a_crash(capfd):
    target = Target.host()
    text = "declare void @qd_no_such_symbol()\ndefine void @f() {\n  call void @qd_no_such_symbol()\n  ret void\n}\n"
    with pytest.raises(RuntimeError, match="Failed to materialize symbols"):
        link("test_missing", object_code(text, target), ("f",), {}, target)
    assert "Symbols not found: [ qd_no_such_symbol ]" in capfd.readouterr().err


def test_the_locked_way_makes_the_same_code(monkeypatch):
    def code() -> bytes:
        module, machine = optimised(TEXT, Target.host())
        return unlocked.emit_object(machine, module)

    free = code()
    assert unlocked._library() is not None
    monkeypatch.setattr(unlocked, "_library", lambda: None)
    assert code() == free


def test_info(tmp_path):
    options = uncached(offline_cache=True, offline_cache_dir=str(tmp_path), num_threads=1)
    backend = CpuBackend()
    backend.compile(affine(23, 0.75), options)
    facts = backend.info(options)
    count, size = ArtifactCache(tmp_path).size()
    assert count > 0
    assert facts["artifact cache"] == f"{tmp_path} ({count} files, {size / 1024:.0f} KiB)"
    assert facts["threads"] == f"1 of {usable_cores()}"
    assert backend.info(uncached())["artifact cache"] == "off"
    assert describe(Target.named("avx2"), None, None)["vectors"] == "256 bits, 16 registers"
    assert {"target", "vectors", "features", "threads", "versions", "compiler"} < set(facts)
    assert emit_options(options) == emit_options(uncached())
