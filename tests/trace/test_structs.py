"""`qd.dataclass`: a tree for JAX and for optree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest

import qdtrace as qd
from qdtrace.trace.trace import trace_function


@qd.dataclass(frozen=True)
class State:
    x: Any
    v: Any
    name: str = dataclasses.field(default="s", metadata={"static": True})


@qd.dataclass
class Particle:
    pos: Any
    vel: Any = 0.0

    def moved(self, dt):
        return Particle(self.pos + dt * self.vel, self.vel)


@pytest.mark.parametrize("tree", [jax.tree, optree])
def test_leaves_and_mapping(tree) -> None:
    flatten = jax.tree.flatten if tree is jax.tree else optree.tree_flatten
    mapped = jax.tree.map if tree is jax.tree else optree.tree_map
    state = State(1, {"a": 2}, name="n")
    assert flatten(state)[0] == [1, 2]
    assert mapped(lambda a: a * 10, state) == State(10, {"a": 20}, name="n")
    assert mapped(lambda a, b: a + b, Particle(1, 2), Particle(3, 4)) == Particle(4, 6)


def test_static_fields_are_part_of_the_structure() -> None:
    assert jax.tree.structure(State(1, 2, "a")) != jax.tree.structure(State(1, 2, "b"))
    assert jax.tree.structure(State(1, 2, "a")) == jax.tree.structure(State(3, 4, "a"))


def test_paths_name_the_fields() -> None:
    paths, _ = jax.tree_util.tree_flatten_with_path(State(1, [2]))
    assert [jax.tree_util.keystr(p) for p, _ in paths] == [".x", ".v[0]"]


def test_no_init_on_unflatten() -> None:
    @qd.dataclass
    class Checked:
        n: Any

        def __post_init__(self):
            assert isinstance(self.n, int)

    assert jax.tree.map(lambda n: "text", Checked(1)).n == "text"


def test_frozen_and_keyword_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        State(1, 2).x = 3

    @qd.dataclass(kw_only=True)
    class Named:
        a: Any

    with pytest.raises(TypeError, match="positional"):
        Named(1)
    assert Named(a=1).a == 1


def test_in_a_trace() -> None:
    def step(state: State, p: Particle, dt):
        assert state.name == "n"
        for i in qd.range(4):
            q = Particle(state.x[i], state.v[i]).moved(dt)
            q = jax.lax.cond(q.pos > 0, lambda q: q, lambda q: q.moved(1.0), q)
            state.x[i] = q.pos + p.pos
        return state

    x = np.ones(4, np.float32)
    traced = trace_function(step, (State(x, x, "n"), Particle(1.0, jnp.ones(3)), 0.1))
    assert traced.names == ("state.x", "state.v", "p.pos", "p.vel", "dt")
    out = jax.tree.unflatten(traced.out_tree, ["x", "v"])
    assert out == State("x", "v", "n")
