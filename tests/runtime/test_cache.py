"""Files of the artifact cache."""

import contextlib
import itertools
import logging
import os
import pwd
import socket
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import qdtrace as qd
from lowering.backend import CpuBackend
from lowering.runtime import cache as cache_module
from lowering.runtime.cache import Artifact, ArtifactCache, artifact_cache, decode, encode
from qdtrace.config import current
from qdtrace.tools.info import clear_cache, show_cache
from tests import fresh

ROOT = Path(__file__).parents[2]

ARTIFACT = Artifact(b"\x7fELF code", {"cost": 3, "lanes": 16})


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch):
    """Each test sees the warnings of a new process."""
    monkeypatch.setattr(cache_module, "_warned", set())


def test_an_artifact_survives_encoding():
    assert decode("k", encode("k", ARTIFACT)) == ARTIFACT
    assert decode("", encode("", Artifact(b"", {}))) == Artifact(b"", {})


def test_every_damage_is_noticed():
    data = encode("key", ARTIFACT)
    for k in range(len(data)):
        assert decode("key", data[:k]) is None, f"cut to {k} bytes"
        assert decode("key", data[:k] + bytes([data[k] ^ 0x10]) + data[k + 1 :]) is None, f"byte {k} changed"
    assert decode("key", data + b"x") is None
    for other in ("kez", "ke", "key{", ""):
        assert decode(other, data) is None


def test_save_load_size_clear(tmp_path):
    cache = ArtifactCache(tmp_path / "deep" / "folder")
    assert (cache.load("k"), cache.size(), cache.clear()) == (None, (0, 0), 0)
    cache.save("k", ARTIFACT)
    cache.save("k", ARTIFACT)
    assert cache.load("k") == ARTIFACT
    assert cache.size() == (1, len(encode("k", ARTIFACT)))
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert [p.name for p in cache.folder.iterdir()] == ["k.qdo"]
    (cache.folder / "mine.txt").write_text("stays")
    assert cache.clear() == 1
    assert [p.name for p in cache.folder.iterdir()] == ["mine.txt"]


def _kept(folder):
    return sorted(p.name for p in folder.iterdir())


def test_the_oldest_of_three_versions_goes_first(tmp_path):
    """The limit holds two files; a load counts as a use, and what is being written stays."""
    one = len(encode("a_11111111", ARTIFACT))
    cache = ArtifactCache(tmp_path)
    now = time.time()
    for age, key in ((30, "a_11111111"), (20, "b_22222222"), (10, "c_33333333")):
        cache.save(key, ARTIFACT)
        os.utime(tmp_path / f"{key}.qdo", (now - age * 86400,) * 2)
    (tmp_path / ".writing-now").write_bytes(b"x" * one)
    (tmp_path / "mine.txt").write_bytes(b"x" * 1000)
    assert cache.prune(4 * one) == 0
    assert cache.load("a_11111111") == ARTIFACT
    assert cache.prune(3 * one) == 1
    assert _kept(tmp_path) == [".writing-now", "a_11111111.qdo", "c_33333333.qdo", "mine.txt"]
    os.utime(tmp_path / ".writing-now", (now - 40 * 86400,) * 2)
    assert cache.prune(2 * one) == 0
    assert _kept(tmp_path) == ["a_11111111.qdo", "c_33333333.qdo", "mine.txt"]
    assert cache.prune(0) == 2
    assert _kept(tmp_path) == ["mine.txt"]


def test_prune_removes_other_versions(tmp_path):
    cache = ArtifactCache(tmp_path)
    for key in ("a_11111111", "b_22222222", "plain"):
        cache.save(key, ARTIFACT)
    assert cache.prune(None, "2222222200000000") == 2
    assert _kept(tmp_path) == ["b_22222222.qdo"]


def test_saving_keeps_to_the_limit(tmp_path):
    """The folder is looked at before the first file is written, and again after a part of the limit."""
    one = len(encode("00", ARTIFACT))
    cache = ArtifactCache(tmp_path, limit=40 * one)
    for k in range(100):
        cache.save(f"{k:02}", ARTIFACT)
        os.utime(tmp_path / f"{k:02}.qdo", (1000 + k,) * 2)
        assert cache.size()[1] <= cache.limit
    assert cache.size()[0] > 30
    assert cache.load("99") == ARTIFACT
    assert cache.load("00") is None
    unlimited = ArtifactCache(tmp_path / "other")
    for k in range(100):
        unlimited.save(f"{k:02}", ARTIFACT)
    assert unlimited.size()[0] == 100


@pytest.mark.full
def test_a_file_that_another_process_prunes_is_whole_or_not_there(tmp_path):
    cache = ArtifactCache(tmp_path)
    artifact = Artifact(bytes(1 << 20), {})
    program = (
        "import sys; from pathlib import Path; from lowering.runtime.cache import ArtifactCache\n"
        "cache = ArtifactCache(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "while not (cache.folder / 'end').exists(): cache.prune(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pruning = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=environment, stdout=subprocess.PIPE)
    try:
        assert pruning.stdout.readline() == b"ready\n"
        found = []
        while len(found) < 20 or (None not in found and len(found) < 10_000):
            cache.save("k", artifact)
            found.append(cache.load("k"))
    finally:
        (tmp_path / "end").touch()
        pruning.communicate()
    assert None in found
    assert all(a is None or a == artifact for a in found)


def test_the_limit_is_an_option(tmp_path):
    with qd.options(offline_cache_dir=tmp_path, offline_cache_limit=3):
        assert artifact_cache(current()) == ArtifactCache(tmp_path, 3 << 20)
    with qd.options(offline_cache_dir=tmp_path, offline_cache_limit=None):
        assert artifact_cache(current()) == ArtifactCache(tmp_path)


def test_a_damaged_file_is_dropped(tmp_path):
    cache = ArtifactCache(tmp_path)
    cache.save("k", ARTIFACT)
    (tmp_path / "k.qdo").write_bytes(encode("k", ARTIFACT)[:-1])
    assert cache.load("k") is None
    assert cache.size() == (0, 0)


def test_a_folder_that_cannot_be_made_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    cache = ArtifactCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning) as caught:
        cache.save("k", ARTIFACT)
    assert str(caught[0].message) == (
        f"qdtrace: compiled code is not kept: cannot write {cache.folder} (Not a directory); "
        "set QD_OFFLINE_CACHE_DIR to a folder that can be written, or QD_OFFLINE_CACHE=0"
    )
    assert cache.load("k") is None
    assert cache.size() == (0, 0)


def test_a_file_under_the_name_of_another_is_dropped(tmp_path, caplog):
    cache = ArtifactCache(tmp_path)
    cache.save("a", ARTIFACT)
    os.replace(tmp_path / "a.qdo", tmp_path / "b.qdo")
    with caplog.at_level(logging.DEBUG, "qdtrace.cache"):
        assert cache.load("b") is None
    assert [r.getMessage() for r in caplog.records] == [
        f"{tmp_path / 'b.qdo'} is not the artifact of its name: it is made anew"
    ]
    assert cache.size() == (0, 0)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_folder_that_others_may_write_is_not_used(tmp_path, mode):
    cache = ArtifactCache(tmp_path / "cache")
    cache.save("k", ARTIFACT)
    cache.folder.chmod(mode)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cache.load("k") is None
        cache.save("k", ARTIFACT)
        cache.save("other", ARTIFACT)
        assert ArtifactCache(cache.folder).load("other") is None
    assert [str(w.message) for w in caught] == [
        f"qdtrace: compiled code is not kept: others may write {cache.folder} (mode {mode:o}); "
        "set QD_OFFLINE_CACHE_DIR to a folder of your own, `chmod go-w` this one, or QD_OFFLINE_CACHE=0"
    ]
    assert [p.name for p in cache.folder.iterdir()] == ["k.qdo"]
    cache.folder.chmod(0o755)
    assert cache.load("k") == ARTIFACT


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    cache = ArtifactCache(tmp_path)
    cache.save("k", ARTIFACT)
    monkeypatch.setattr(cache_module, "_ADMINISTRATOR", -1)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cache.load("k") is None
        cache.save("other", ARTIFACT)
    assert [str(w.message) for w in caught] == [
        f"qdtrace: compiled code is not kept: {tmp_path} belongs to another user; "
        "set QD_OFFLINE_CACHE_DIR to a folder of your own, or QD_OFFLINE_CACHE=0"
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["k.qdo"]


def test_in_a_shared_folder_only_own_files_count(tmp_path):
    """Where each may remove their own files only, as in /tmp."""
    cache = ArtifactCache(tmp_path)
    tmp_path.chmod(0o1777)
    cache.save("mine", ARTIFACT)
    cache.save("changed", ARTIFACT)
    (tmp_path / "changed.qdo").chmod(0o666)
    assert cache.load("mine") == ARTIFACT
    assert cache.load("changed") is None
    assert cache.size()[0] == 1


def _a_fifo(path, folder):
    os.mkfifo(path)


def _a_folder(path, folder):
    path.mkdir()


def _a_link_to_a_fifo(path, folder):
    os.mkfifo(folder / "fifo")
    path.symlink_to(folder / "fifo")


def _a_link_to_an_artifact(path, folder):
    (folder / "elsewhere").write_bytes(encode("k", Artifact(b"other code", {})))
    path.symlink_to(folder / "elsewhere")


def _a_link_to_itself(path, folder):
    path.symlink_to(path)


def _a_device(path, folder):
    path.symlink_to("/dev/zero")


def _a_socket(path, folder):
    with contextlib.chdir(folder), socket.socket(socket.AF_UNIX) as made:  # names of sockets are short
        made.bind(path.name)


def _nothing(path, folder):
    path.write_bytes(b"")


def _no_permission(path, folder):
    path.write_bytes(encode("k", ARTIFACT))
    path.chmod(0)


IN_ITS_PLACE = [
    _a_fifo, _a_folder, _a_link_to_a_fifo, _a_link_to_an_artifact, _a_link_to_itself, _a_device, _a_socket, _nothing,
    _no_permission,
]  # fmt: skip


@pytest.mark.parametrize("make", IN_ITS_PLACE, ids=lambda make: make.__name__[1:])
def test_what_stands_in_the_place_of_an_artifact(tmp_path, make):
    """It is not waited for, no link is followed, and the artifact replaces it, or the folder is warned of once."""
    cache = ArtifactCache(tmp_path)
    make(tmp_path / "k.qdo", tmp_path)
    if make is not _no_permission:  # nothing is forbidden to the administrator
        assert cache.load("k") is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.save("k", ARTIFACT)
        cache.save("k", ARTIFACT)
    if make is _a_folder:
        assert [str(w.message) for w in caught] == [
            f"qdtrace: compiled code is not kept: cannot write {tmp_path} (Is a directory); "
            "set QD_OFFLINE_CACHE_DIR to a folder that can be written, or QD_OFFLINE_CACHE=0"
        ]
        assert cache.load("k") is None
    else:
        assert not caught
        assert cache.load("k") == ARTIFACT
        assert not (tmp_path / "k.qdo").is_symlink()
    assert not list(tmp_path.glob(".writing-*"))


def _in_a_fifo(folder):
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


WITHOUT_A_FOLDER = {
    "a FIFO": _in_a_fifo,
    "a device": lambda folder: Path("/dev/null"),
    "in a device": lambda folder: Path("/dev/null/cache"),
    "made by the system": lambda folder: Path("/proc/cache"),
    "a name that is too long": lambda folder: folder / ("x" * 5000),
    "a NUL": lambda folder: folder / "a\0b",
    "half of a character": lambda folder: folder / "\ud800",
    "a link to nothing": lambda folder: _linked(folder / "gone", folder / "link"),
    "a link to itself": lambda folder: _linked(folder / "link", folder / "link"),
}


def _linked(to, path):
    path.symlink_to(to)
    return path


@pytest.mark.parametrize("where", WITHOUT_A_FOLDER.values(), ids=WITHOUT_A_FOLDER)
def test_a_folder_that_is_none(tmp_path, where):
    cache = ArtifactCache(where(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cache.load("k") is None
        cache.save("k", ARTIFACT)
        cache.save("k", ARTIFACT)
        assert cache.load("k") is None
    assert len(caught) == 1
    assert str(caught[0].message).startswith(f"qdtrace: compiled code is not kept: cannot write {cache.folder} (")
    assert (cache.size(), cache.clear()) == ((0, 0), 0)


@pytest.mark.parametrize("folder", ["~/.cache/qdtrace", "~nobody_of_this_name/x"])
def test_no_home_directory(monkeypatch, folder, capsys):
    def unknown(_):
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)
    with qd.options(offline_cache_dir=folder), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert artifact_cache(current()) is None
        assert artifact_cache(current()) is None
        assert show_cache() == clear_cache() == 1
        assert CpuBackend().info(current())["artifact cache"] == "off"
    assert [str(w.message) for w in caught] == [
        f"qdtrace: compiled code is not kept: no home directory is known for {folder}; "
        "set QD_OFFLINE_CACHE_DIR to a folder that can be written, or QD_OFFLINE_CACHE=0"
    ]
    assert capsys.readouterr().out == ""


PROGRAM = """
import numpy as np, qdtrace as qd
@qd.jit
def f(x):
    for i in qd.range(x.shape[0]):
        x[i] = x[i] * 2 + 1
    return x
@qd.jit
def g(x):
    for i in qd.range(x.shape[0]):
        x[i] = x[i] * 3 - 5
    return x
x = np.arange(4, dtype=np.float32)
assert f(x).tolist() == [1, 3, 5, 7], f(x)
assert g(x).tolist() == [-5, -2, 1, 4], g(x)
"""


def test_swapped_and_damaged_files_change_no_result(tmp_path):
    """Each file gets the content of its neighbour, of itself cut short, of nothing; the run mends all of them."""
    folder, program = tmp_path / "cache", tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}

    def run():
        fresh.run([sys.executable, str(program)], env=environment, check=True)
        return {p: p.read_bytes() for p in sorted(folder.iterdir())}

    good = run()
    assert len(good) >= 4
    contents = itertools.cycle([*list(good.values())[1:], next(iter(good.values())), b"", b"qdtrace"])
    for path in good:
        path.write_bytes(next(contents))
    assert run() == good
    for path, data in good.items():
        path.write_bytes(data[: len(data) // 2])
    assert run() == good
