"""Makes the texts of a tree: the package of a commit, or of the checkout as it is, with the programs of the checkout.

Processes of their own do it, in a folder that has the package of that tree and links to tests and benchmarks. They take
program after program.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

from tests.replay import store
from tests.replay.normalise import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
SHARED = ("tests", "benchmarks")


class NoTextsError(Exception):
    """Texts could not be made."""


def git(*arguments: str) -> str:
    """What a command of git says of the checkout. Raises NoTextsError with its message."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoTextsError(done.stderr.strip())
    return done.stdout.strip()


def commit_of(name: str) -> str:
    """The short hash of a commit. Raises NoTextsError where there is none of that name."""
    return git("rev-parse", "--short", "--verify", f"{name}^{{commit}}")


def usual_reference() -> str:
    """What is compared with: `HEAD` where the package has changes that are not committed, else its parent."""
    return "HEAD" if git("status", "--porcelain", "--", *PACKAGES) else "HEAD~1"


@contextmanager
def tree_of(commit: str | None) -> Iterator[Path]:
    """A folder with the package of a commit, or of the checkout where that is None. All have paths of one length."""
    with tempfile.TemporaryDirectory(prefix="replay-") as name:
        folder = Path(name).resolve()
        if commit is None:
            for package in PACKAGES:
                copytree(ROOT / package, folder / package)
        else:
            packed = folder / "packed.tar"
            git("archive", "--output", str(packed), commit, *PACKAGES)
            subprocess.run(["tar", "-xf", str(packed), "-C", str(folder)], check=True)
            packed.unlink()
        for shared in SHARED:
            (folder / shared).symlink_to(ROOT / shared)
        yield folder


def make_texts(commit: str | None, pattern: str, processes: int) -> Path:
    """The folder with the texts of all programs whose names have the pattern in them; those that it has stay.

    Raises NoTextsError where they cannot be made, such as for a package that lacks what the texts are made with.
    """
    with tree_of(commit) as tree:
        folder = store.folder_of(tree, ROOT)
        folder.mkdir(parents=True, exist_ok=True)
        store.tidy(folder)
        claims = tree / "claims"
        claims.mkdir()
        command = [sys.executable, "-m", "tests.replay.worker", str(folder), str(claims), pattern]
        workers = [
            subprocess.Popen(command, cwd=tree, env=_environment(tree), stderr=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        said = [worker.communicate()[1] for worker in workers]
        failed = [text for worker, text in zip(workers, said, strict=True) if worker.returncode]
        if failed:
            who = "this tree" if commit is None else commit
            raise NoTextsError(f"the texts of {who} cannot be made by tests/replay of this tree:\n{failed[0].strip()}")
    return folder


def _environment(tree: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("QD_", "JAX_", "XLA_"))}
    return {**kept, "PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0", "QD_OFFLINE_CACHE": "0"}
