"""The demo's command at a small size."""

import re
import subprocess
import sys

import pytest

NEEDS = "the demo needs its extra `demo`"


@pytest.mark.full
def test_the_command_prints_and_writes_what_it_says(tmp_path) -> None:
    for name in ("matplotlib", "optax", "tqdm"):
        pytest.importorskip(name, reason=NEEDS)
    command = [
        sys.executable,
        "-m",
        "qdtrace",
        "demo",
        "--starts",
        "300",
        "--iterations",
        "80",
        "--output",
        "small.png",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert (tmp_path / "small.png").stat().st_size > 20_000
    for part in (
        "300 Lotka-Volterra models",
        "gradients a second",
        "optimised graph",
        "while",
        "a lane",
        "wrote small.png after 8 iterations",
        "\nwrote small.png\n",
        "small.png shows the fit",
    ):
        assert part in done.stdout
    said = r"the first of 80 iterations took \d+ ms: about \d+ s for the descent, .*300 --starts"
    assert re.search(said, done.stdout)
    # the picture is there before the table, the graph and the comparison with JAX
    assert done.stdout.index("\nwrote small.png\n") < done.stdout.index("smallest misfit")
    assert "80/80" in done.stderr  # the progress bar at its end
    assert "Reverse-mode differentiation does not work for lax.while_loop" in done.stdout
    rows = dict(re.findall(r"^ +(alpha|beta|gamma|delta|hare|lynx) +([\d.]+)", done.stdout, re.MULTILINE))
    assert len(rows) == 6
    # two digits of what is published: the fit has errors of a tenth
    assert float(rows["alpha"]) == pytest.approx(0.55, rel=0.1)
    assert float(rows["lynx"]) == pytest.approx(5.9, rel=0.1)
    differences = re.findall(r"relative differences (\S+) \(median\), (\S+) \(99 %\)", done.stdout)
    assert len(differences) == 2
    # float32 of a solver with a tolerance of 1e-5
    assert all(float(middle) < 1e-4 and float(most) < 0.1 for middle, most in differences)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util

    from qdtrace.tools.demo import main

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optax" else find(name))
    with pytest.raises(SystemExit):
        main([])
    assert "needs optax: install qdtrace with its extra `demo`" in capsys.readouterr().err
