"""Makes a failing program smaller: leaves out tasks, equations, results and conditions as long as it still fails.

    small = reduced(failed, lambda case: not agrees(case))

Greedy removal, from large pieces to small ones (Zeller and Hildebrandt 2002, simplified). A smaller program that is no
valid program is skipped, so `fails` sees valid ones only.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from qdtrace.errors import VerifyError
from qdtrace.ir.program import Block, Eqn, Program, Task
from qdtrace.ir.verify import verify_program
from tests.differential.corpus import Case, case


def reduced(failed: Case, fails: Callable[[Case], bool]) -> Case:
    """A smaller case that fails as well; the same one when there is none."""
    while True:
        for program in _smaller(failed.program):
            try:
                verify_program(program)
            except VerifyError:
                continue
            tried = case(program, failed.kind, failed.seed)
            if fails(tried):
                failed = tried
                break
        else:
            return failed


def _smaller(program: Program) -> Iterator[Program]:
    tasks = program.tasks
    for k in range(len(tasks)):
        yield replace(program, tasks=(*tasks[:k], *tasks[k + 1 :]))
    for k in range(len(program.results) if len(program.results) > 1 else 0):
        yield replace(program, results=(*program.results[:k], *program.results[k + 1 :]))
    for k, task in enumerate(tasks):
        for made in _smaller_tasks(task):
            yield replace(program, tasks=(*tasks[:k], made, *tasks[k + 1 :]))
    used = {v for e in program.all_eqns for v in e.invars}
    kept = tuple(b for b in program.buffers if b in used or b in program.results)
    if kept != program.buffers:
        yield replace(program, buffers=kept, initial={b: v for b, v in program.initial.items() if b in kept})


def _smaller_tasks(task: Task) -> Iterator[Task]:
    for body in _smaller_blocks(task.body):
        yield replace(task, body=body)
    for k in range(len(task.head)):
        yield replace(task, head=(*task.head[:k], *task.head[k + 1 :]))
    if task.hints:
        yield replace(task, hints={})


def _smaller_blocks(block: Block) -> Iterator[Block]:
    for k in reversed(range(len(block.eqns))):
        before, eqn, after = block.eqns[:k], block.eqns[k], block.eqns[k + 1 :]
        yield replace(block, eqns=(*before, *after))
        for made in _smaller_eqns(eqn):
            yield replace(block, eqns=(*before, *made, *after))


def _smaller_eqns(eqn: Eqn) -> Iterator[tuple[Eqn, ...]]:
    if eqn.primitive.name == "if":
        yield from (side.eqns for side in eqn.blocks)
    for k, block in enumerate(eqn.blocks):
        for made in _smaller_blocks(block):
            yield (replace(eqn, blocks=(*eqn.blocks[:k], made, *eqn.blocks[k + 1 :])),)
