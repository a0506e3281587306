"""Pictures of docs/how-it-works.md: `python docs/pictures/graphs.py` in the source tree; needs Graphviz' `dot`.

Each is drawn from the program of that page, so none shows what does not happen.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qdtrace.ir.program import Eqn, Program, Task, Var
    from qdtrace.lowered import Lowered

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "how-it-works.md"
STYLE = """
  graph [fontname="Helvetica", fontsize=12, rankdir=TB, nodesep=0.2, ranksep=0.28, bgcolor=white, pad=0.1, labeljust=l]
  node [fontname="Helvetica", fontsize=11, shape=box, style="rounded,filled", fillcolor="#eef2f7", color="#607d8b",
        height=0.26, margin="0.08,0.03"]
  edge [color="#607d8b", arrowsize=0.6]
"""
MEMORY = 'shape=cylinder, style=filled, fillcolor="#ffe0b2", color="#e65100"'
WORDS = {"gt": ">", "lt": "<", "mul": "x", "add": "+", "sub": "-"}


def number(value: Any) -> str:
    """A constant as the pictures show it."""
    return f"{value:g}" if abs(value) < 1e6 else f"2^{math.log2(value):.0f}"


class Drawing:
    """A graph in the language of `dot`: a node an equation, a frame a task, loop or branch, a drum a buffer."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.made_by: dict[Var, str] = {}
        self.count = 0

    def node(self, label: str, more: str = "") -> str:
        self.count += 1
        name = f"n{self.count}"
        self.lines.append(f'{name} [label="{label}"{", " + more if more else ""}]')
        return name

    def edge(self, source: Any, target: str, more: str = "") -> None:
        if name := self.made_by.get(source):
            self.lines.append(f"{name} -> {target} [{more}]")

    def program(self, program: Program, names: dict[Var, str]) -> str:
        for var in names:
            self.made_by[var] = self.node(names[var], MEMORY)
        for number, task in enumerate(program.tasks, 1):
            self.lines.append(f'subgraph cluster_t{number} {{ label="task {number}"; style=rounded; color="#1565c0"')
            self.task(task)
            self.lines.append("}")
        return "digraph {" + STYLE + "\n".join(self.lines) + "\n}"

    def task(self, task: Task) -> None:
        if task.index is not None:
            self.made_by[task.index] = self.node("i", 'shape=circle, fillcolor="#e3f2fd"')
        self.equations(task.head)
        self.equations(task.body.eqns)

    def equations(self, eqns: Sequence[Eqn]) -> None:
        for eqn in eqns:
            self.equation(eqn)

    def equation(self, eqn: Eqn) -> None:
        word = eqn.primitive.name
        if word == "cell":
            self.made_by[eqn.outvar] = self.node("cell", MEMORY)
        elif eqn.blocks:
            self.control(eqn)
        else:
            constants = "".join(f" {number(a.value)}" for a in eqn.invars if isinstance(a, Literal))
            name = self.node(WORDS.get(word, word) + constants)
            writes = word in ("store", "accum")
            for k, var in enumerate(eqn.invars):
                if writes and not k:
                    self.lines.append(f'{name} -> {self.made_by[var]} [color="#e65100"]')  # type: ignore[index]
                else:
                    self.edge(var, name)
            for var in eqn.outvars:
                self.made_by[var] = name

    def control(self, eqn: Eqn) -> None:
        self.count += 1
        self.lines.append(f'subgraph cluster_l{self.count} {{ label="{eqn.primitive.name}"; style="rounded,dashed"')
        blocks = [b for b in eqn.blocks if b.params or b.eqns or b.results]
        heads = [self.node("carried", 'fillcolor="#c8e6c9"') for _ in eqn.outvars]
        for name, var in zip(heads, eqn.invars[len(eqn.invars) - len(heads) :], strict=True):
            self.edge(var, name)
        for block in blocks:
            for name, var in zip(heads, block.params[len(block.params) - len(heads) :], strict=False):
                self.made_by[var] = name
            self.equations(block.eqns)
        test, body = blocks[0], blocks[-1]
        if test is not body and test.results:
            name = self.node("test", 'shape=diamond, fillcolor="#fff9c4"')
            self.edge(test.results[0], name)
        for name, var in zip(heads, body.results, strict=False):
            self.edge(var, name, 'style=dashed, constraint=false, color="#2e7d32"')
        self.lines.append("}")
        for name, var in zip(heads, eqn.outvars, strict=True):
            self.made_by[var] = name


def graph_of(low: Lowered, stage: str) -> str:
    """The graph after a stage."""
    program = parse_program(low.graph(stage))
    names = {var: {"c": "limit"}.get(var.hint, var.hint) for var in program.params}
    names |= {var: "out" if var in program.results else "jump" for var in program.buffers}
    names = {var: name.replace("b_bar", "adjoint of out") for var, name in names.items()}
    if "adjoint of out" in names.values():
        names |= {program.results[0]: "adjoint of u"}
    return Drawing().program(program, names)


def flow_of(text: str) -> str:
    """Blocks of the functions of a task in LLVM text, and the branches between them; not those that end a call."""
    lines: list[str] = []
    for function, body in re.findall(r"^define [^@]*@qd_(\w+)\([^{]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        if function in ("task", "masked", "refilled"):
            lines.append(f'subgraph cluster_{function} {{ label="{function}"; style=rounded; color="#1565c0"')
            lines += branches(function, body)
            lines.append("}")
    return "digraph {" + STYLE + "\n".join(lines) + "\n}"


def branches(function: str, body: str) -> Iterator[str]:
    """Nodes and edges of one function."""
    block = "entry"
    for line in body.splitlines():
        if label := re.match(r"(\w+):", line):
            block = label[1]
            if not block.startswith("fail"):
                yield f'{function}_{block} [label="{block.rstrip("0123456789")}"]'
        elif re.match(r"\s+(br|switch) ", line):
            for target in re.findall(r"label %(\w+)", line):
                if not target.startswith("fail"):
                    yield f"{function}_{block} -> {function}_{target}"


def draw(name: str, dot: str) -> None:
    """Writes docs/pictures/NAME.svg."""
    done = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, text=True, check=True)
    svg = re.sub(r"<!DOCTYPE.*?>|<!--.*?-->\n?|<title>.*?</title>\n?", "", done.stdout, flags=re.DOTALL)
    (HERE / f"{name}.svg").write_text(svg)


CALL = f"""
  subgraph cluster_a {{ label="once, while XLA compiles"; style=rounded; color="#1565c0"
    python [label="Python function"]; graph_ [label="graph"]; code [label="machine code"]
    cache [label="cache on disk", {MEMORY}]
    python -> graph_ -> code; code -> cache [dir=both] }}
  subgraph cluster_b {{ label="every call, no Python"; style=rounded; color="#2e7d32"
    xla [label="XLA executable"]; handler; pool [label="XLA's threads"]; arrays [label="arrays of JAX", {MEMORY}]
    xla -> handler [label="call frame", fontsize=10]; handler -> pool [label="chunks of a task", fontsize=10]
    pool -> arrays [dir=both] }}
  code -> handler [style=dashed]
"""


def main() -> None:
    """Draws all of them."""
    codes = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for k, code in enumerate(codes):
            script = Path(folder) / f"block{k}.py"
            script.write_text(code)
            exec(compile(code, str(script), "exec"), names)
    for stage in ("trace", "canonical", "final"):
        draw(stage, graph_of(names["low"], stage))
    draw("reverse", graph_of(names["reverse"], "final"))
    draw("flow", flow_of(names["low"].as_text("llvm")))
    draw("call", "digraph {" + STYLE + CALL + "}")


if __name__ == "__main__":
    main()
