"""`Lowered` and `make_graph`: stages, tasks, texts, memory, compiled objects, and what is refused."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

X = np.arange(8, dtype=np.float32)


def two_programs(x, y):
    total = qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0], name="first"):
        x[i] = x[i] * 2 + y[i]
        total[()] += x[i]
    middle = jnp.sort(x[...])
    for i in qd.range(x.shape[0]):
        x[i] = middle[i] + total[()]
    return x, total


@pytest.fixture(scope="module")
def lowered() -> qd.Lowered:
    return qd.jit(two_programs).lower(X, X)


def test_graph_of_the_trace(lowered: qd.Lowered) -> None:
    first, second = lowered.graph("trace").split("program ")[1:]
    assert first == (
        "two_programs(x: ref[f32,8], y: ref[f32,8])\n"
        "  buffer total: ref[f32] = 0.0:f32\n"
        "  range_for i in 0:i32 : 8:i32 @first\n"
        "    v0: f32 = load x i\n"
        "    v1: f32 = mul v0 2.0:f32\n"
        "    v2: f32 = load y i\n"
        "    v3: f32 = add v1 v2\n"
        "    store x v3 i\n"
        "    v4: f32 = load x i\n"
        "    accum[op=add] total v4\n"
        "  return x, total\n"
    )
    assert second.startswith("two_programs(c: ref[f32,8], total: ref[f32], x: ref[f32,8])\n")
    assert qd.make_graph(qd.jit(two_programs))(X, X).__str__() == lowered.graph("trace")
    assert repr(lowered) == "<Lowered two_programs: 2 programs for cpu>"


def test_every_named_stage_is_a_graph(lowered: qd.Lowered) -> None:
    with pytest.raises(qd.BackendError) as caught:
        lowered.graph("nope")
    match = re.fullmatch(r"needs a stage out of (.*); got 'nope'", str(caught.value))
    assert match is not None
    stages = match[1].split(", ")
    assert stages[:2] == ["trace", "final"] or {"trace", "final"} <= set(stages)
    assert {"simplify", "dead_code", "loop_invariant", "common_subexpressions"} <= set(stages)
    for stage in stages:
        assert lowered.graph(stage).startswith("program two_programs(")
    assert lowered.graph() == lowered.graph("final") == lowered.as_text() == lowered.as_text("graph")


def test_stages_of_the_pipeline_have_names_too(lowered: qd.Lowered) -> None:
    canonical, joined = lowered.graph("canonical"), lowered.graph("joined")
    assert canonical.count("load x") > joined.count("load x")
    assert "buffer total: ref[f32] = 0.0:f32\n" in joined
    assert "buffer total: ref[f32] = 0.0:f32\n" in lowered.graph("final")


def test_a_stage_shows_what_its_pass_does() -> None:
    def f(x):
        for i in qd.range(x.shape[0]):
            a = x[i] * 3.0
            b = x[i] * 3.0
            x[i] = a + b
        return x

    lowered = qd.jit(f).lower(X)
    assert lowered.graph("trace").count("mul") == 2
    assert lowered.graph("common_subexpressions").count("mul") == 1
    with qd.options(opt_level=0):
        assert qd.jit(f).lower(X).graph().count("mul") == 2


def test_tasks(lowered: qd.Lowered) -> None:
    assert [(t.name, t.bounds, t.codegen) for t in lowered.tasks] == [
        ("first", (0, 8), "llvm"),
        ("two_programs.0", (0, 8), "llvm"),
    ]
    assert all(re.match(r"\d+ lanes of 32 bits", t.reason) for t in lowered.tasks)


def test_bounds_known_at_run_time_only() -> None:
    def f(x, n):
        for i in qd.range(1, n):
            x[i] = 1
        return x

    (task,) = qd.jit(f).lower(X, 3).tasks
    assert task.bounds == (1, None)


def test_zeros_are_no_launch(lowered: qd.Lowered) -> None:
    assert "  buffer total: ref[f32] = 0.0:f32\n" in lowered.graph()
    alone = qd.jit(lambda: (qd.zeros((3, 4), jnp.int32), qd.full((2,), 1.5, jnp.float32))).lower()
    assert alone.tasks == []
    full = np.full((3, 4), 0, np.int32), np.full((2,), 1.5, np.float32)
    for got, want in zip(alone.compile()(), full, strict=True):
        np.testing.assert_array_equal(got, want)


def test_texts(lowered: qd.Lowered) -> None:
    assert lowered.as_text("llvm").count("define void @qd_task(") == 2
    assert lowered.as_text("asm").count("\nqd_task:") == 2
    for dialect in ("ptx", "triton", "amdgcn", "nonsense"):
        with pytest.raises(qd.BackendError) as caught:
            lowered.as_text(dialect)
        assert str(caught.value) == f"needs a dialect out of graph, llvm, asm for target 'cpu', got {dialect!r}"


def test_memory_and_cost() -> None:
    def f(x):
        scratch = qd.zeros((100,), jnp.float32)
        out = qd.zeros((8,), jnp.float32)
        for i in qd.range(100):
            scratch[i] = x[i % 8]
        for i in qd.range(8):
            out[i] = scratch[99 - i]
        return out

    lowered = qd.jit(f).lower(X)
    none = {"stack_per_lane": 0, "stacks": 0, "kernel_scratch": 0}
    assert lowered.memory_analysis() == {"arguments": 32, "results": 32, "temporaries": 400, **none}
    assert "bytes accessed" in lowered.cost_analysis()


def test_compiled(lowered: qd.Lowered) -> None:
    compiled = lowered.compile()
    x, total = compiled(X, X)
    np.testing.assert_array_equal(x, 3 * X + 84)
    assert float(total) == 84
    with pytest.raises(TypeError, match="Argument types differ"):
        compiled(X[:3], X[:3])


@pytest.mark.parametrize("how", ["shape", "numpy", "jax", "keyword"])
def test_what_it_is_lowered_with(how: str) -> None:
    y: Any = {"shape": jax.ShapeDtypeStruct((8,), np.float32), "numpy": X, "jax": jnp.asarray(X), "keyword": X}[how]
    f = qd.jit(two_programs)
    lowered = f.lower(X, y=y) if how == "keyword" else f.lower(X, y)
    assert len(lowered.tasks) == 2


def test_static_arguments() -> None:
    def f(n, x):
        for i in qd.range(n):
            x[i] += n
        return x

    lowered = qd.jit(f, static_argnums=0).lower(3, X)
    assert [t.bounds for t in lowered.tasks] == [(0, 3)]
    np.testing.assert_array_equal(lowered.compile()(X), X + 3 * (np.arange(8) < 3))


@pytest.mark.full
def test_nothing_to_compile() -> None:
    lowered = qd.jit(lambda x: x[...] + 1).lower(X)
    assert lowered.tasks == []
    assert lowered.graph() == lowered.graph("trace") == lowered.as_text("llvm") == ""
    assert set(lowered.memory_analysis().values()) == {0}
    np.testing.assert_array_equal(lowered.compile()(X), X + 1)


@pytest.mark.full
def test_transformations_inside_count() -> None:
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = 2 * x[i] + 1
        return x

    rows = X.reshape(2, 4)
    many = qd.jit(jax.vmap(qd.jit(f)))
    assert [t.bounds for t in many.lower(rows).tasks] == [(0, 8)]  # the batch is one more axis
    np.testing.assert_array_equal(many(rows), 2 * rows + 1)
    again = qd.jit(jax.checkpoint(jax.jit(qd.jit(f))))
    assert len(again.lower(X).tasks) == 1
    np.testing.assert_array_equal(again(X), 2 * X + 1)
    carried = qd.jit(lambda x: jax.lax.scan(lambda c, r: (c + qd.jit(f)(r), None), jnp.zeros(4), x[...])[0])
    assert len(carried.lower(rows).tasks) == 1
    np.testing.assert_array_equal(carried(rows), (2 * rows + 1).sum(0))


@pytest.mark.full
def test_transformations_of_buffers() -> None:
    """A buffer given to a transformation stands for its content."""
    rows = X.reshape(2, 4)
    np.testing.assert_array_equal(qd.jit(jax.vmap(lambda r: r[0] + r.sum()))(rows), rows[:, 0] + rows.sum(1))
    np.testing.assert_array_equal(qd.jit(jax.vmap(lambda r: r[1], in_axes=1))(rows), rows[1])
    np.testing.assert_array_equal(qd.jit(jax.vmap(lambda r, k: r[k]))(rows, np.array([1, 2])), [1, 6])
    np.testing.assert_array_equal(qd.jit(jax.grad(lambda x: jnp.sum(x * x) + 5 * x[2]))(X), 2 * X + 5 * (X == 2))
    np.testing.assert_array_equal(qd.jit(jax.jacfwd(lambda x: x[...] ** 2))(X[:3]), np.diag(2 * X[:3]))
    value, slope = qd.jit(jax.value_and_grad(lambda x: x[3] * x[2]))(X)
    assert float(value) == 6
    np.testing.assert_array_equal(slope, [0, 0, 3, 2, 0, 0, 0, 0])


def test_lower_inside_another_program() -> None:
    f = qd.jit(two_programs)
    text = jax.jit(lambda x: f(x, x)).lower(X).as_text()
    assert len(set(re.findall(r"@(qdtrace_two_programs_\w+)", text))) == 2


def test_names_of_arguments_in_graphs() -> None:
    def f(state, *rest, scale, **more):
        for i in qd.range(8):
            state["x"][i] = state["x"][i] * scale[i] + rest[0][i] + more["extra"][i]
        return state

    text = str(qd.make_graph(f)({"x": X}, X, scale=X, extra=X))
    (parameters,) = re.findall(r"^program f\((.*)\)$", text, re.MULTILINE)
    assert {p.split(":")[0] for p in parameters.split(", ")} == {"state_x", "arg1", "scale", "extra"}


def test_make_graph_takes_plain_and_compiled_functions() -> None:
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = -x[i]
        return x

    assert str(qd.make_graph(f)(X)) == str(qd.make_graph(qd.jit(f))(X))
    graph = qd.make_graph(f)(X)
    assert repr(graph) == str(graph)
    assert [len(p.tasks) for p in graph.programs] == [1]


def test_the_report_says_which_accesses_are_proven(tmp_path: Path) -> None:
    def gathered(x, e):
        out = qd.zeros(e.shape, x.dtype)
        for i in qd.range(e.shape[0]):
            out[i] = x[e[i]] + x[i]
        return out

    low = qd.jit(gathered).lower(jnp.zeros(9), jnp.zeros(9, jnp.int32))
    low.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<p>2 of 4 accesses are proven to be in range</p>" in page
    line = gathered.__code__.co_firstlineno + 3
    assert f"<td>x</td><td>2</td><td>checked: axis 0</td><td>test_lowered.py:{line}</td>" in page
    assert f"<td>e</td><td>1</td><td>proven</td><td>test_lowered.py:{line}</td>" in page
