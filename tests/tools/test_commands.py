"""`python -m qdtrace`: what its small commands print."""

import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import qdtrace as qd
from qdtrace.__main__ import main
from qdtrace.backend import backend
from qdtrace.tools import info

ROOT = Path(__file__).parents[2]


def command(*words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-m", "qdtrace", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.full
def test_info_names_versions_backend_and_cache(tmp_path: Path) -> None:
    done = command("info", cache=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert rows["qdtrace"] == qd.__version__
    assert rows["jax"].startswith(jax.__version__)
    assert rows["devices"] == ", ".join(map(str, jax.devices()))
    assert rows["target"].startswith("cpu (")
    assert rows["artifact cache"] == f"{tmp_path} (0 files, 0 KiB)"


@pytest.mark.parametrize("maker", ["cuda", "rocm"])
def test_info_names_the_gpu_and_its_assembler(monkeypatch, capsys, maker: str) -> None:
    facts = {"device": "sm_90"} | ({"assembler": "/opt/ptxas"} if maker == "cuda" else {})
    found = {"cpu": backend("cpu"), maker: SimpleNamespace(info=lambda options: facts)}
    monkeypatch.setattr(info, "backend", found.__getitem__)
    monkeypatch.setattr(info, "gpu_platform", lambda: maker)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert main(["info"]) == 0
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["GPU code for"] == "sm_90"
    assert rows.get("assembler") == facts.get("assembler")
    assert rows["target"].startswith("cpu (")


def test_the_cache_is_filled_shown_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"

    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + 1.37890625  # no other test compiles it
        return x

    def told(action: str) -> str:
        assert main(["cache", action]) == 0
        return capsys.readouterr().out

    with qd.options(offline_cache=True, offline_cache_dir=cache):
        f(jax.numpy.zeros(8)).block_until_ready()
        key, *_ = (p for p in cache.iterdir() if p.suffix == ".qdo")
        version = key.stem.partition("_")[2]
        assert re.fullmatch(r"[0-9a-f]{8}", version)
        (cache / "k_00000000.qdo").write_bytes(bytes(1 << 21))
        os.utime(cache / "k_00000000.qdo", (time.time() - 3 * 86400,) * 2)
        shown = told("info")
        files = re.fullmatch(
            rf"{re.escape(str(cache))}: (\d+) files, 2\.\d MiB of at most 256\n"
            rf"  compiler {version}: (\d+) files, 0\.\d MiB, used \d+ \w+ ago, this version\n"
            r"  compiler 00000000: 1 files, 2\.0 MiB, used 3 days ago\n",
            shown,
        )
        assert files is not None, shown
        assert int(files[1]) - 1 == int(files[2]) > 0
        assert told("prune") == f"{cache}: 1 files removed\n"
        assert not (cache / "k_00000000.qdo").exists()
        assert told("clear") == f"{cache}: {files[2]} files removed\n"
        assert told("info") == f"{cache}: 0 files, 0.0 MiB of at most 256\n"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(("--version",))
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"qdtrace {version('qdtrace')}\n"


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(()) == 0
    listed = capsys.readouterr().out
    commands, developers = listed.split("for work on qdtrace itself:")
    for name in ("demo", "info", "cache"):
        assert re.search(rf"^    {name} +\w+ \w+.*$", commands, re.MULTILINE)
    for name in ("bench", "opt"):
        assert re.search(rf"^  {name} +\w+ \w+.*$", developers, re.MULTILINE)
        assert f"    {name} " not in commands


def test_actions_of_the_cache_have_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(("cache", "--help"))
    assert stopped.value.code == 0
    listed = capsys.readouterr().out
    for name, word in (("info", "size"), ("prune", "offline_cache_limit"), ("clear", "all files")):
        assert re.search(rf"^    {name} [\s\S]*?{word}", listed, re.MULTILINE)


def test_the_counters_print_as_a_table() -> None:
    seen = qd.stats()
    lines = repr(seen).splitlines()
    assert lines[0].split() == ["traces", f"{seen.traces:,}"]
    assert any(line.startswith("bytes_on_disk") and line.endswith(" MiB)") for line in lines)
    assert sum(line.startswith("seconds, ") for line in lines) == len(seen.seconds)


@pytest.mark.parametrize("words", [("fly",), ("cache",), ("cache", "burn"), ("info", "more"), ("--loud",)])
def test_wrong_commands_are_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage: python -m qdtrace" in capsys.readouterr().err
