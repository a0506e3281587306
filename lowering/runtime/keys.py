"""Names for content, on which two processes, and two programs with an equal task, agree.

A *content* key identifies the meaning of a graph; it names foreign-function targets, so that programs that JAX keeps on
disk or exports find their target again. An *artifact* key adds the other inputs of machine code: the processor, LLVM,
and the source of the compiler itself.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import llvmlite

import lowering
import qdtrace.analysis
import qdtrace.ir
from lowering.llvm.target import LLVM_VERSION
from lowering.runtime.cache import VERSION_LENGTH
from qdtrace.ir import memory
from qdtrace.ir.printer import print_task
from qdtrace.ir.program import ref_type
from qdtrace.sources import version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.legalize.share_code import SharedCode
    from lowering.llvm.target import Target
    from lowering.runtime.layout import Layout
    from qdtrace.ir.program import Task

_LENGTH = 32


def digest(*parts: object) -> str:
    """Returns a hash of values with faithful `repr`."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:_LENGTH]


def task_content(task: Task, emit_options: object) -> str:
    """Returns the content key of a task: equal for equal bodies over references of equal types, despite their names."""
    return digest("task", print_task(task, canonical=True), emit_options, memory.LARGE)


def task_contents(shared: SharedCode, emit_options: object) -> list[str]:
    """Returns the content keys of a program's tasks; equal tasks are printed once."""
    tasks = shared.program.tasks
    first = [shared.equal.get(k, k) for k in range(len(tasks))]
    known = {k: task_content(tasks[k], emit_options) for k in dict.fromkeys(first)}
    return [known[k] for k in first]


def target_name(name: str, content: str, target: Target) -> str:
    """Returns the name of the foreign-function target of a program with that name and content key."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII)
    return f"qdtrace_{plain}_{content}_{target.key}"


def program_content(layout: Layout, tasks: Sequence[str], max_threads: int) -> str:
    """Returns the content key of a program, from its tasks' content keys, its clears and its operands and results.

    The texts of its errors are no part of it: they name source lines (`told_apart`).
    """
    program = layout.program
    refs = [[(place.slot, place.offset) for place in places] for places in layout.task_places]
    params = [(v.hint, str(ref_type(v))) for v in program.params]
    written = [(v.hint, str(ref_type(v))) for v in layout.written]
    aliases = sorted(layout.aliases.items())
    called = (params, written, aliases, layout.scratch_bytes, layout.clears, layout.constants)
    names = [task.name for task in program.tasks]  # errors have the names
    return digest(program.name, names, called, list(tasks), refs, max_threads)


_texts: dict[str, Sequence[Sequence[str]]] = {}
"""The texts of errors of the first program of each content."""


def told_apart(content: str, texts: Sequence[Sequence[str]]) -> str:
    """Returns the key of the target of a program with that content key and those texts of errors.

    It is the content key for the first program of the process, and for those that have the same texts. So
    programs on other lines than in an earlier process have the same name, and two of one process are told apart.
    """
    return content if _texts.setdefault(content, texts) == texts else digest(content, texts)


def artifact_key(content: str, target: Target) -> str:
    """Returns the key of the machine code for a content key."""
    return versioned(digest(content, target.key, llvmlite.__version__, LLVM_VERSION, compiler_version()))


def versioned(key: str) -> str:
    """Returns the key of a file of the cache, with the version by which it is shown and pruned at its end."""
    return f"{key}_{compiler_version()[:VERSION_LENGTH]}"


def compiler_version() -> str:
    """Returns a hash of the source that code depends on: the graph, its analyses and the lowering."""
    return version_of(*(folder for package in (qdtrace.ir, qdtrace.analysis, lowering) for folder in package.__path__))
