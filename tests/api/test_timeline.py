"""Launches stand on the timeline of `jax.profiler`, under their names, on their threads."""

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd
from qdtrace import timeline
from qdtrace.launches import Launch, Part
from qdtrace.timeline import space_of


@qd.jit
def two(x: Any) -> Any:
    for i in qd.range(x.shape[0], name="first"):
        x[i] = jnp.sin(x[i])
    out = qd.zeros(3, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i * i % 3] += x[x.shape[0] - 1 - i]
    return out


LABELS = ["first", f"fill before two:{two.__wrapped__.__code__.co_firstlineno + 5}"]
LABELS.append(LABELS[1].removeprefix("fill before "))


def traced(folder: Path, x: Any) -> dict[str, list[Any]]:
    """Events of this package, by line."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options), jax.profiler.TraceAnnotation("around"):
        two(x).block_until_ready()
    (file,) = folder.rglob("*.xplane.pb")
    plane = jax.profiler.ProfileData.from_file(str(file)).find_plane_with_name("/host:CPU")
    assert plane is not None
    lines = {line.name: list(line.events) for line in plane.lines}
    around = next(e for events in lines.values() for e in events if e.name == "around")
    ours = {name: events for name, events in lines.items() if name.startswith("qdtrace ")}
    for event in (e for events in ours.values() for e in events):
        assert around.start_ns <= event.start_ns <= event.end_ns <= around.end_ns
    return ours


@pytest.mark.full
def test_names_are_on_the_timeline(tmp_path: Path) -> None:
    for folder, size in (("a", 10), ("b", 1 << 18)):
        x = jnp.ones(size)
        two(x)
        lines = traced(tmp_path / folder, x)
        assert max(([e.name for e in events] for events in lines.values()), key=len) == LABELS


def test_the_first_call_is_there_too(tmp_path: Path) -> None:
    (events,) = traced(tmp_path, jnp.ones(11)).values()
    assert [e.name for e in events] == LABELS


def test_each_thread_has_a_line() -> None:
    program = two.lower(jnp.ones(3)).programs[0].program
    own = threading.get_ident()
    launches = [
        Launch(program, 0, False, 1000, 5000, 3, 0, own, (Part(77, 2000, 3000),)),
        Launch(program, 0, False, 7000, 7000, 3, 0, own),
    ]
    (plane,) = jax.profiler.ProfileData.from_serialized_xspace(space_of(launches, 10**6)).planes
    found = {line.name: [(e.name, e.start_ns, e.duration_ns) for e in line.events] for line in plane.lines}
    assert found == {
        f"qdtrace {threading.current_thread().name}": [("first", 10**6 + 1000, 4000), ("first", 10**6 + 7000, 0)],
        "qdtrace thread 2": [("first", 10**6 + 2000, 1000)],
    }
    assert space_of([], 0) == b""


def test_registered_once() -> None:
    kept = len(timeline._kept)
    timeline.register()
    assert len(timeline._kept) == kept
