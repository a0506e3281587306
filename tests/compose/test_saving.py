"""Exported functions and saved executables: in another process, of another version or machine, and damaged."""

import json
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import serialize_executable

import qdtrace as qd
from lowering.runtime import abi, saved
from qdtrace import saved_calls
from qdtrace.backend import backend
from tests import fresh

pytest.importorskip("flatbuffers")  # of jax.export
pytestmark = pytest.mark.cpu
ALLOWED = [export.DisabledSafetyCheck.custom_call("qdtrace_program")]
X, K = jnp.arange(1.0, 5.0), jnp.arange(4)


def root(a):
    return jax.lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-6 * a, lambda s: 0.5 * (s + a / s), a + 1)


def roots(x):
    return qd.vmap(root)(x)


@qd.jit
def tasks(x, k):
    out, total = qd.zeros_like(x), qd.zeros(())
    for i in qd.range(x.shape[0]):
        total[()] += x[i]
    for i in qd.range(x.shape[0]):
        out[i] = x[k[i]] / total[()]
    return out


def exported(f: Any, *args: Any, vjp_order: int = 0) -> bytearray:
    return export.export(jax.jit(f), disabled_checks=ALLOWED)(*args).serialize(vjp_order=vjp_order)


def run_child(name: str, *args: str, **environment: str) -> Any:
    here = Path(__file__).parent
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    command = [sys.executable, "-W", "error", str(here / name), *args]
    done = fresh.run(command, env=variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_another_process(tmp_path: Path) -> None:
    (tmp_path / "roots").write_bytes(exported(roots, X, vjp_order=1))
    (tmp_path / "grad").write_bytes(exported(jax.grad(lambda x: roots(x).sum()), X))
    (tmp_path / "tasks").write_bytes(exported(tasks, X, K))
    with qd.options(portable=True):
        compiled = jax.jit(lambda x: qd.vmap(lambda a: root(a) * 2)(x)).lower(X).compile()
    (tmp_path / "executable").write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))
    found = run_child("saved_child.py", str(tmp_path))
    wanted = np.sqrt(X)
    assert found["loaded"] == []
    np.testing.assert_allclose(found["value"], wanted, rtol=1e-5)
    np.testing.assert_allclose(found["again"], 2 * wanted, rtol=1e-5)
    np.testing.assert_allclose(found["executable"], 2 * wanted, rtol=1e-5)
    slope = jax.grad(lambda x: roots(x).sum())(X)
    np.testing.assert_allclose(found["grad"], slope, rtol=1e-6)
    np.testing.assert_allclose(found["grad alone"], slope, rtol=1e-6)
    np.testing.assert_allclose(found["tasks"], X / 10, rtol=1e-6)
    assert "index 4 is out of bounds for axis 0 of `x` with shape (4,)" in found["fault"]
    assert "out[i] = x[k[i]]" in found["fault"]
    assert "a saved program is damaged" in found["damaged"]
    assert found["here"] == [2, 4, 6, 8]


@pytest.mark.full
def test_an_export_is_loaded_where_it_was_made() -> None:
    again = export.deserialize(exported(tasks, X, K))
    np.testing.assert_allclose(again.call(X, K[::-1]), X[::-1] / 10, rtol=1e-6)
    with pytest.raises(ValueError, match="custom calls whose targets have no compatibility guarantees"):
        export.export(jax.jit(tasks))(X, K)


def test_any_number_of_rows() -> None:
    """A dimension without a size is JAX's matter: a program has sizes."""
    (n,) = export.symbolic_shape("n")
    with pytest.raises(Exception, match="n") as caught:
        export.export(jax.jit(roots), disabled_checks=ALLOWED)(jax.ShapeDtypeStruct((n,), jnp.float32))
    assert isinstance(caught.value, qd.QdError | TypeError | jax.errors.JAXTypeError | ValueError)


def test_a_damaged_file() -> None:
    data = exported(lambda x: qd.vmap(lambda a: a * 3)(x), X)
    (content,) = re.finditer(rb"[A-Za-z0-9+/=]{200,}", data)
    data[content.start() + 20] ^= 1
    with pytest.raises(qd.BackendError, match="a saved program is damaged: its hash is another one"):
        export.deserialize(data).call(X)


def test_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(qd, "__version__", "0.0.7")
        data = exported(lambda x: qd.vmap(lambda a: a * 5)(x), X)
    with pytest.raises(qd.BackendError, match=f"needs qdtrace 0.0.7, which saved it, got {qd.__version__}") as caught:
        export.deserialize(data).call(X)
    assert "help: save it again with this version" in str(caught.value)


def _attributes(f: Any, machine: str = "") -> dict[str, str]:
    staged = qd.jit(lambda x: qd.vmap(f)(x)).lower(X).programs[0]
    compiler = backend("cpu")
    program = staged.optimised_for(compiler.machine)
    layout = compiler.compile(program, staged.options).layout
    return saved.attributes_of(program, staged.options, layout, machine, shared=False)


def test_what_is_refused_when_it_is_loaded() -> None:
    load = backend("cpu").load
    good = _attributes(lambda a: a * 7)
    assert load(good)[1] is False

    def signed(**changes: str) -> dict[str, str]:
        made = good | changes
        return made | {"digest": saved._digest(made)}

    with pytest.raises(qd.BackendError, match="damaged"):
        load(good | {"digest": "0" * 64})
    with pytest.raises(qd.BackendError, match="damaged"):
        load({k: v for k, v in good.items() if k != "version"})
    with pytest.raises(qd.BackendError, match="needs a processor of the kind on which it was compiled") as caught:
        load(signed(machine="another"))
    assert "jax.export" in str(caught.value)
    with pytest.raises(qd.BackendError, match="a saved program cannot be read"):
        load(signed(content="AAAA"))
    with pytest.raises(qd.BackendError, match="a saved program cannot be read"):
        load(signed(content=good["content"][:-8]))


def test_a_call_of_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(saved, "layout_key", lambda layout: "another")
        attributes = _attributes(lambda a: a * 9)
    with pytest.raises(qd.BackendError, match="called in another way"):
        backend("cpu").load(attributes)


def test_structures_are_those_of_the_handlers() -> None:
    frame = saved_calls._Frame
    places = {
        abi.FRAME_EXTENSION: frame.extension.offset, abi.FRAME_API: frame.api.offset,
        abi.FRAME_ARG_COUNT: frame.operands.offset + saved_calls._List.count.offset,
        abi.FRAME_ATTRIBUTE_COUNT: frame.attributes.offset + saved_calls._List.count.offset,
        abi.API_ERROR_CREATE: saved_calls._ERROR_CREATE,
        abi.EXTENSION_METADATA: saved_calls._Extension.metadata.offset,
        abi.METADATA_VERSION_MAJOR: saved_calls._Metadata.major.offset,
        abi.METADATA_TRAITS: saved_calls._Metadata.traits.offset,
        abi.METADATA_STATE_TYPE: saved_calls._Metadata.state.offset,
    }  # fmt: skip
    assert list(places) == list(places.values())
    assert saved_calls.TARGET == saved.TARGET


def test_the_cache_of_jax(tmp_path: Path) -> None:
    """A second process finds what JAX keeps on disk; its own trace registers what that calls."""
    first = run_child("cached_child.py", JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    second = run_child("cached_child.py", JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    assert first == {"value": [2.0, 4.0], "grad": [2.0, 2.0], "hits": 0}
    assert second["hits"] >= 2
    assert {k: second[k] for k in ("value", "grad")} == {k: first[k] for k in ("value", "grad")}
