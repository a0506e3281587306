"""`python -m tests.replay.worker FOLDER CLAIMS PATTERN`, in the folder of a tree: writes the texts of programs.

Several of them share the work: who makes the file of a program in CLAIMS first has it.
"""

import sys
import warnings
from pathlib import Path

from tests.replay import store
from tests.replay.normalise import normalised

FAILED = "failed"
"""A claim that nobody has: one of the processes has ended with an error, so the others need not go on."""
FREE_MEMORY = 1 << 34
"""Bytes. What is kept of loops depends on how much memory is free, which changes from run to run."""


def main(folder: str, claims: str, pattern: str) -> None:
    """Writes what there is not yet. Raises whatever the package raises that is no QdError."""
    warnings.simplefilter("ignore")
    import jax

    from qdtrace.compose import stack_budget
    from tests.replay.programs import collected
    from tests.replay.texts import texts_of

    assert callable(stack_budget.free_memory)
    stack_budget.free_memory = lambda: FREE_MEMORY
    root = str(Path.cwd())
    for name, make in collected().items():
        path = store.path_in(Path(folder), name)
        if pattern not in name or path.exists() or not _claimed(Path(claims), name):
            continue
        jax.clear_caches()  # else texts would depend on which programs this process had before
        try:
            texts = texts_of(make)
        except Exception as error:
            error.add_note(f"in the texts of {name}")
            raise
        store.save(path, {stage: normalised(text, root) for stage, text in texts.items()})


def _claimed(claims: Path, name: str) -> bool:
    try:
        (claims / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return not (claims / FAILED).exists()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        (Path(sys.argv[2]) / FAILED).touch()
        raise
