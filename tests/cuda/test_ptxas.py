"""The choice of the assembler that makes cubins, and the fallback where none can."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

import qdtrace as qd
from lowering.cuda import driver as driver_module
from lowering.cuda import ptxas
from lowering.cuda.backend import CudaBackend
from lowering.cuda.driver import CudaDriver
from lowering.cuda.ptxas import assemblers
from lowering.simt.devices import device
from qdtrace.config import current
from tests.cuda.programs import affine
from tests.cuda.test_driver import library

EMPTY = "define void @f() {\n  ret void\n}\n"
RELEASE = "Cuda compilation tools, release 12.9, V12.9.1"
VERSION = f'if "--version" in sys.argv:\n    sys.exit(print("{RELEASE}"))\n'
REFUSES = "sys.exit(\"ptxas fatal : Value 'sm_90' is not defined for option 'gpu-name'\")\n"


def script(path: Path, text: str) -> Path:
    """A program in Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{text}")
    path.chmod(0o755)
    return path


def makes(answer: str) -> str:
    """What writes a cubin that ends with these words."""
    return f"""
assert sys.argv[1] == "-arch=sm_90" and "target sm_90" in open(sys.argv[2]).read()
open(sys.argv[4], "w").write("\\x7fELF {answer}")
"""


def installed(path: Path, release: str = "12.9", answer: str = "a cubin") -> Path:
    """A program in place of the assembler; an empty answer: it refuses."""
    version = VERSION.replace("12.9", release)
    return script(path, version + (makes(answer) if answer else REFUSES))


@pytest.fixture
def found(monkeypatch) -> Iterator[Callable[..., None]]:
    """What is found from now on."""
    monkeypatch.setattr(ptxas, "_warned", set())

    def say(*paths: Path) -> None:
        monkeypatch.setattr(ptxas, "_candidates", lambda: iter(paths))
        assemblers.cache_clear()

    yield say
    assemblers.cache_clear()


@pytest.fixture
def cubin(monkeypatch) -> Callable[[], bytes]:
    """Makes a cubin by a driver for CUDA 13 whose linker says so."""
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda _: library())
    driver = CudaDriver()
    monkeypatch.setattr(driver, "link", lambda assembly: b"linked")
    return lambda: driver.code(EMPTY, device("sm_90"))


def test_where_it_is_looked_for(tmp_path, monkeypatch) -> None:
    names = ["nvidia/cuda_nvcc/bin", "nvidia/cu13/bin", "path", "triton/backends/nvidia/bin"]
    paths = [installed(tmp_path / name / "ptxas") for name in names]
    folders = {"nvidia": [str(tmp_path / "nvidia")], "triton": [str(tmp_path / "triton")]}
    specs = {name: SimpleNamespace(submodule_search_locations=given) for name, given in folders.items()}
    monkeypatch.setattr(ptxas, "find_spec", specs.get)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert list(ptxas._candidates()) == [paths[1], paths[0], paths[2], paths[3]]
    monkeypatch.setattr(ptxas, "find_spec", lambda name: None)
    assert list(ptxas._candidates()) == [paths[2]]


def test_a_folder_of_the_path_that_is_relative(tmp_path, monkeypatch, found, cubin) -> None:
    made = installed(tmp_path / "path" / "ptxas")
    monkeypatch.chdir(tmp_path / "path")
    monkeypatch.setenv("PATH", ".")
    monkeypatch.setattr(ptxas, "find_spec", lambda name: None)
    (path,) = ptxas._candidates()
    found(path)
    monkeypatch.chdir(tmp_path)
    assert path == made
    assert cubin() == b"\x7fELF a cubin"


def test_modules_in_place_of_packages(monkeypatch) -> None:
    """Documentation is built with stand-ins, which have no spec."""
    for name in ("nvidia", "triton"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__spec__=None))
    monkeypatch.setenv("PATH", "")
    assert list(ptxas._candidates()) == []


def test_the_assembler_makes_the_cubin(tmp_path, found, cubin) -> None:
    found(installed(tmp_path / "ptxas"))
    assert cubin() == b"\x7fELF a cubin"


@pytest.mark.full
@pytest.mark.parametrize("release", ["13.5", "14.0"])
def test_an_assembler_of_a_later_release_than_the_driver_is_not_asked(tmp_path, found, cubin, release: str) -> None:
    later = installed(tmp_path / "ptxas", release)
    found(later)
    assert cubin() == (b"\x7fELF a cubin" if release == "13.5" else b"linked")
    found(later, installed(tmp_path / "other", answer="another"))
    assert cubin() == (b"\x7fELF a cubin" if release == "13.5" else b"\x7fELF another")


@pytest.mark.full
def test_the_driver_links_what_no_assembler_takes(tmp_path, found, cubin) -> None:
    found(installed(tmp_path / "ptxas", answer=""))
    assert cubin() == b"linked"
    found(installed(tmp_path / "ptxas", answer=""), installed(tmp_path / "other", answer="another"))
    assert cubin() == b"\x7fELF another"


def test_the_driver_links_where_there_is_no_assembler(tmp_path, found, cubin) -> None:
    found()
    assert cubin() == b"linked"
    found(tmp_path / "gone")
    assert cubin() == b"linked"


def folder(path: Path) -> None:
    path.mkdir()


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def loop_of_links(path: Path) -> None:
    path.symlink_to(path)


def not_to_be_run(path: Path) -> None:
    installed(path).chmod(0o644)


def below_a_file(path: Path) -> None:
    """Where the path leads through something that is no folder."""
    path.write_text("")


def wrong_processor(path: Path) -> None:
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57))
    path.chmod(0o755)


def no_interpreter(path: Path) -> None:
    script(path, "")
    path.write_text(path.read_text().replace(sys.executable, "/nonesuch/python"))


def nothing(path: Path) -> None:
    script(path, "")


def no_release(path: Path) -> None:
    script(path, f'if "--version" in sys.argv:\n    sys.exit(print("ptxas"))\n{makes("of which release?")}')


def no_output(path: Path) -> None:
    script(path, VERSION)


def empty_output(path: Path) -> None:
    script(path, VERSION + 'open(sys.argv[4], "w")\n')


def no_cubin(path: Path) -> None:
    script(path, VERSION + 'open(sys.argv[4], "w").write("// PTX")\n')


def killed(path: Path) -> None:
    """As for want of memory, behind half a file."""
    script(path, f"{VERSION}{makes('half')}sys.stdout.flush()\nos.kill(os.getpid(), {signal.SIGKILL})\n")


def killed_at_once(path: Path) -> None:
    """As by an instruction that the processor lacks."""
    script(path, f"os.kill(os.getpid(), {signal.SIGILL})\n")


LEFT_OUT = (folder, dangling, loop_of_links, not_to_be_run, nothing, no_release, empty_output, no_cubin)
"""Nothing that was an assembler for sure, so nothing is said."""
FAILING = {
    wrong_processor: "fails (Exec format error)",
    no_interpreter: "fails (No such file or directory)",
    no_output: "fails (No such file or directory)",
    killed: "fails (ended by signal 9)",
    killed_at_once: "fails (ended by signal 4)",
}


@pytest.mark.full
@pytest.mark.parametrize("broken", [*LEFT_OUT, *FAILING], ids=lambda f: f.__name__)
def test_what_is_no_assembler_is_left_for_the_next(tmp_path, found, cubin, broken) -> None:
    """Without a word (warnings are errors) where another one makes the cubin; else the driver links, and says why."""
    broken(tmp_path / "ptxas")
    found(tmp_path / "ptxas", installed(tmp_path / "other", answer="another"))
    assert cubin() == b"\x7fELF another"
    found(tmp_path / "ptxas")
    if broken in LEFT_OUT:
        assert cubin() == b"linked"
        return
    with pytest.warns(qd.QdWarning) as warned:
        assert cubin() == b"linked"
    (told,) = warned
    assert str(told.message).startswith(f"NVIDIA's assembler {tmp_path}/ptxas {FAILING[broken]}: the driver's linker ")
    assert "python -m qdtrace cache clear" in str(told.message)
    assert cubin() == b"linked"  # and is silent


def test_a_path_that_cannot_be_looked_at(tmp_path, found, cubin) -> None:
    below_a_file(tmp_path / "file")
    found(tmp_path / "file" / "ptxas", tmp_path / ("n" * 300), installed(tmp_path / "ptxas"))
    assert cubin() == b"\x7fELF a cubin"


@pytest.mark.full
@pytest.mark.parametrize("why", ["nowhere", "full"])
def test_no_room_for_files(tmp_path, monkeypatch, found, cubin, why: str) -> None:
    """None of the assemblers can work then. Once there is room, they do."""
    found(installed(tmp_path / "ptxas"), installed(tmp_path / "other"))
    with monkeypatch.context() as patched:
        if why == "nowhere":
            patched.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
            said = "No such file or directory"
        else:
            patched.setattr(ptxas.Path, "write_bytes", full)
            said = "No space left on device"
        with pytest.warns(qd.QdWarning, match=rf"ptxas fails \({said}\); [^;]*other fails \({said}\): the driver's"):
            assert cubin() == b"linked"
    assert cubin() == b"\x7fELF a cubin"


def full(path: Path, data: bytes) -> int:
    raise OSError(28, os.strerror(28), str(path))


def test_no_process_can_be_started(tmp_path, monkeypatch, found, cubin) -> None:
    def run(*_: object, **settings: object) -> None:
        raise BlockingIOError(11, os.strerror(11))

    found(installed(tmp_path / "ptxas"))
    monkeypatch.setattr(ptxas.subprocess, "run", run)
    with pytest.warns(qd.QdWarning, match=r"fails \(Resource temporarily unavailable\)"):
        assert cubin() == b"linked"


@pytest.mark.full
def test_words_in_no_encoding(tmp_path, found, cubin) -> None:
    talks = 'sys.stdout.buffer.write(b"\\xff\\xfe\\x80")\nsys.stdout.flush()\n'
    found(script(tmp_path / "ptxas", talks + VERSION + talks + makes("a cubin")))
    assert cubin() == b"\x7fELF a cubin"


@pytest.mark.full
def test_it_reads_nothing_that_the_user_types(tmp_path, found, cubin) -> None:
    found(script(tmp_path / "ptxas", "assert not sys.stdin.read()\n" + VERSION + makes("a cubin")))
    assert cubin() == b"\x7fELF a cubin"


def test_other_assemblers_make_other_code(tmp_path, found, monkeypatch) -> None:
    """A second one too, which makes what the first cannot; one that may not be run is none."""
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda _: library())
    found()
    keys = [CudaDriver().made_by]
    for place, release in (("a", "12.9"), ("b", "12.9"), ("b", "13.10")):
        found(installed(tmp_path / place / "ptxas", release))
        keys.append(CudaDriver().made_by)
    found(*(tmp_path / place / "ptxas" for place in "ab"))
    keys.append(CudaDriver().made_by)
    assert keys[0] == ""
    assert len(set(keys)) == 5
    (tmp_path / "a" / "ptxas").chmod(0o644)
    found(tmp_path / "a" / "ptxas")
    assert CudaDriver().made_by == ""


@pytest.mark.full
def test_one_that_is_gone_later_is_as_one_that_fails(tmp_path, found, cubin) -> None:
    first, other = installed(tmp_path / "ptxas"), installed(tmp_path / "other", answer="another")
    found(first, other)
    assert cubin() == b"\x7fELF a cubin"
    before = CudaDriver().made_by
    first.unlink()
    assert cubin() == b"\x7fELF another"
    assert CudaDriver().made_by == before


@pytest.mark.full
def test_info_names_the_assembler(tmp_path, found) -> None:
    found(installed(tmp_path / "ptxas"))
    assert CudaBackend("sm_90").info(current())["assembler"] == str(tmp_path / "ptxas")
    found()
    assert CudaBackend("sm_90").info(current())["assembler"].startswith("the driver's linker; ")
    for broken in (wrong_processor, no_release):
        (tmp_path / "broken").unlink(missing_ok=True)
        broken(tmp_path / "broken")
        found(tmp_path / "broken")
        assert CudaBackend("sm_90").info(current())["assembler"].startswith("the driver's linker; ")
        found(tmp_path / "broken", tmp_path / "ptxas")
        assert CudaBackend("sm_90").info(current())["assembler"] == str(tmp_path / "ptxas")


@pytest.mark.skipif(not any(one.runs for one in assemblers()), reason="NVIDIA's assembler is not here")
@pytest.mark.parametrize("kind", ["sm_80", "sm_90"])
def test_an_assembler_that_is_here_takes_our_code(kind: str) -> None:
    here = next(one for one in assemblers() if one.runs)
    assert here.release is not None
    assert here.release >= 12
    made = here.cubin(affine.lower(jnp.ones(300), target=kind).as_text("ptx"), kind)
    assert made is not None
    assert made.startswith(b"\x7fELF")
    assert here.cubin("bogus", kind) is None
