"""Which assembler makes cubins, and what happens where there is none that can."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import jax.numpy as jnp
import pytest

from lowering.cuda import driver as driver_module
from lowering.cuda import ptxas
from lowering.cuda.backend import CudaBackend
from lowering.cuda.driver import CudaDriver
from lowering.cuda.ptxas import assembler
from lowering.simt.devices import device
from qdtrace.config import current
from tests.cuda.programs import affine
from tests.cuda.test_driver import library

if TYPE_CHECKING:
    from pathlib import Path

EMPTY = "define void @f() {\n  ret void\n}\n"


def installed(path: Path, release: str = "12.9", answer: str = "a cubin") -> Path:
    """A program in place of the assembler; an empty answer: it refuses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"""#!{sys.executable}
import sys
if "--version" in sys.argv:
    print("Cuda compilation tools, release {release}, V{release}.1")
elif {bool(answer)}:
    assert sys.argv[1] == "-arch=sm_90" and "target sm_90" in open(sys.argv[2]).read()
    open(sys.argv[4], "w").write("{answer}")
else:
    sys.exit("ptxas fatal : Value 'sm_90' is not defined for option 'gpu-name'")
""")
    path.chmod(0o755)
    return path


@pytest.fixture
def found(monkeypatch):
    """What is found from now on."""

    def say(path: Path | None) -> None:
        monkeypatch.setattr(ptxas, "_candidates", lambda: [] if path is None else [path])
        assembler.cache_clear()

    yield say
    assembler.cache_clear()


@pytest.fixture
def cubin(monkeypatch):
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


def test_the_assembler_makes_the_cubin(tmp_path, found, cubin) -> None:
    found(installed(tmp_path / "ptxas"))
    assert cubin() == b"a cubin"


@pytest.mark.parametrize("release", ["13.5", "14.0"])
def test_an_assembler_of_a_later_release_than_the_driver_is_not_asked(tmp_path, found, cubin, release: str) -> None:
    found(installed(tmp_path / "ptxas", release))
    assert cubin() == (b"a cubin" if release == "13.5" else b"linked")


def test_the_driver_links_what_the_assembler_does_not_take(tmp_path, found, cubin) -> None:
    found(installed(tmp_path / "ptxas", answer=""))
    assert cubin() == b"linked"


def test_the_driver_links_where_there_is_no_assembler(tmp_path, found, cubin) -> None:
    found(None)
    assert cubin() == b"linked"
    found(tmp_path / "gone")
    assert cubin() == b"linked"


def test_another_assembler_makes_other_code(tmp_path, found, monkeypatch) -> None:
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda _: library())
    found(None)
    keys = [CudaDriver().made_by]
    for place, release in (("a", "12.9"), ("b", "12.9"), ("b", "13.10")):
        found(installed(tmp_path / place / "ptxas", release))
        keys.append(CudaDriver().made_by)
    assert keys[0] == ""
    assert len(set(keys)) == 4


def test_info_names_the_assembler(tmp_path, found) -> None:
    found(installed(tmp_path / "ptxas"))
    assert CudaBackend("sm_90").info(current())["assembler"] == str(tmp_path / "ptxas")
    found(None)
    assert CudaBackend("sm_90").info(current())["assembler"].startswith("the driver's linker; ")


@pytest.mark.skipif(assembler() is None, reason="NVIDIA's assembler is not here")
@pytest.mark.parametrize("kind", ["sm_80", "sm_90"])
def test_an_assembler_that_is_here_takes_our_code(kind: str) -> None:
    here = assembler()
    assert here is not None
    assert here.release >= 12
    made = here.cubin(affine.lower(jnp.ones(300), target=kind).as_text("ptx"), kind)
    assert made is not None
    assert made.startswith(b"\x7fELF")
    assert here.cubin("bogus", kind) is None
