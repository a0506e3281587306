"""Turns tasks into addresses: loads code from the cache, or compiles it in parallel and keeps it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from lowering.llvm.modules import parsed
from lowering.llvm.target import Target, optimise
from lowering.llvm.unlocked import emit_object
from lowering.runtime.cache import Artifact, ArtifactCache
from lowering.runtime.handler import FUNCTIONS, LAUNCHER_EXPORTS, TaskShape, launcher_text
from lowering.runtime.info import usable_cores
from lowering.runtime.jit import link
from lowering.runtime.keys import artifact_key, digest
from lowering.runtime.once import Once
from lowering.runtime.sheltered import sheltered
from lowering.runtime.thread_copies import CopyRecord
from qdtrace.counters import count, miss
from qdtrace.frozen import frozen
from qdtrace.progress import doing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    import llvmlite.binding as llvm

    from lowering.simd.emit import TaskCode

T = TypeVar("T")


@frozen
class LinkedTask:
    """The addresses of a task's functions in this process, and its shape."""

    addresses: Mapping[str, int]
    """Addresses by the names of `handler.FUNCTIONS`."""
    shape: TaskShape


_tasks: Once[LinkedTask] = Once()
_codes: Once[bytes] = Once()
_launchers: Once[Mapping[str, int]] = Once()
_maths: Once[int] = Once()


def object_code(text: str, target: Target) -> bytes:
    """Returns the machine code of an LLVM module, after all passes, and counts it."""
    count(compiled=1)
    return machine_code(text, target)


def machine_code(text: str, target: Target) -> bytes:
    """Returns the machine code of an LLVM module, after all passes."""

    def make() -> bytes:
        module, machine = optimised(text, target)
        return emit_object(machine, module)

    return sheltered(make)


def optimised(text: str, target: Target) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Returns the module after LLVM's passes, and the target machine that writes it."""
    machine = target.llvm_machine()
    module = parsed(text)
    module.triple = target.triple
    module.data_layout = target.data_layout
    module.verify()
    optimise(module, machine)
    return module, machine


def load_or_make(key: str, make: Callable[[], Artifact], cache: ArtifactCache | None) -> Artifact:
    """Returns the artifact of the key from the cache, or makes it and puts it there."""
    found = cache.load(key) if cache else None
    if found is not None:
        count(loaded=1)
        return found
    if cache is None:
        miss("code", "off")
    made = make()
    if cache:
        cache.save(key, made)
    return made


def make_runnable(
    name: str, artifact: Artifact, exports: Sequence[str], imports: Mapping[str, int], target: Target
) -> Mapping[str, int]:
    """Links an artifact into the process and returns the addresses of its exports."""
    count(linked=1)
    return link(name, artifact.code, exports, imports, target)


def link_text(
    prefix: str,
    key: str,
    text: Callable[[], str],
    exports: Sequence[str],
    imports: Mapping[str, int],
    target: Target,
    cache: ArtifactCache | None,
) -> Mapping[str, int]:
    """Returns the addresses that a module of the host exports: the launcher, or a handler. It is emitted and compiled
    only if no cache has the key."""
    artifact = load_or_make(key, lambda: Artifact(object_code(text(), target.quick), {}), cache)
    return make_runnable(f"{prefix}_{key}", artifact, exports, imports, target)


def launcher(target: Target, cache: ArtifactCache | None) -> Mapping[str, int]:
    """Returns the addresses that the launcher exports; it is compiled or loaded once per process."""
    key = artifact_key("launcher", target)  # it knows the source of the launcher
    text = partial(launcher_text, target.triple)
    return _launchers.get(key, lambda: link_text("launcher", key, text, LAUNCHER_EXPORTS, {}, target, cache))


def emission() -> ModuleType:
    """Returns the module `lowering.simd.emission`."""
    # Loaded here: a process that finds all its code in the cache never needs the emitter and the maths functions.
    from lowering.simd import emission as module

    return module


def math_function(symbol: str, target: Target, cache: ArtifactCache | None) -> int:
    """Returns the address of a maths function that is never inlined; it is compiled or loaded once per process."""
    key = artifact_key(digest("maths", symbol), target)

    def make() -> int:
        artifact = load_or_make(key, lambda: Artifact(object_code(emission().module_of(symbol), target), {}), cache)
        return make_runnable(f"maths_{key}", artifact, (symbol,), {}, target)[symbol]

    return _maths.get(key, make)


def _shape_of(artifact: Artifact) -> TaskShape:
    names = ("cost", "lanes", "slot_bytes", "updates", "pieces")
    cost, lanes, slot_bytes, updates, pieces = (int(str(artifact.facts[f])) for f in names)
    functions = tuple(cast("list[str]", artifact.facts["functions"]))
    copies = cast("list[tuple[int, int, int, str]]", artifact.facts["copies"])
    records = tuple(CopyRecord(ref, at, nbytes, bytes.fromhex(neutral)) for ref, at, nbytes, neutral in copies)
    return TaskShape(cost, lanes, functions, slot_bytes, updates, records, pieces)


def link_task(content: str, emit: Callable[[], TaskCode], target: Target, cache: ArtifactCache | None) -> LinkedTask:
    """Returns the task of that content key, ready to run. `emit` is called only if no cache has it."""
    key = artifact_key(content, target)

    def compiled() -> Artifact:
        code = emit()
        text, called = emission().without_calls(code.text)
        facts = {"cost": code.cost, "lanes": code.lanes, "slot_bytes": code.slot_bytes, "calls": list(called)}
        facts["functions"] = [name for name in FUNCTIONS if f"void @{name}(" in text]
        numbers = {ref: number for number, ref in enumerate(code.refs)}
        copies = [(numbers[p.ref], p.offset, p.nbytes, p.neutral.value.tobytes().hex()) for p in code.copies.parts]
        facts |= {"updates": code.updates, "copies": copies, "pieces": code.pieces}
        # tasks that differ only in their trip count have the same text
        code_key = artifact_key(digest("code", text), target)
        return Artifact(_codes.get(code_key, lambda: object_code(text, target)), facts)

    def make() -> LinkedTask:
        artifact = load_or_make(key, compiled, cache)
        shape = _shape_of(artifact)
        called = cast("list[str]", artifact.facts["calls"])
        imports = {symbol: math_function(symbol, target, cache) for symbol in called}
        return LinkedTask(make_runnable(f"task_{key}", artifact, shape.functions, imports, target), shape)

    return _tasks.get(key, make)


def in_parallel(jobs: Mapping[str, Callable[[], T]], names: Mapping[str, str]) -> dict[str, T]:
    """Returns the result of each job; the jobs run in threads, and `names` has what users call them."""
    with doing("compiling", "", len(jobs)) as stage:

        def run(key: str) -> T:
            stage.step(names[key])
            return jobs[key]()

        if len(jobs) <= 1:
            return {key: run(key) for key in jobs}
        with ThreadPoolExecutor(min(len(jobs), usable_cores())) as pool:
            futures = {key: pool.submit(run, key) for key in jobs}
            return {key: future.result() for key, future in futures.items()}
