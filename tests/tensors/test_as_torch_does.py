"""`qd.torch` against the same function in torch: layouts, changes between the passes, modes, and what is kept."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

torch: Any = pytest.importorskip("torch", reason="qd.torch needs torch")
grad: Any = torch.autograd.grad


@jax.jit
def kinked(x, y):
    return jnp.where(x > 0.3, x * x, x * y)


def kinked_of_torch(x, y):
    return torch.where(x > 0.3, x * x, x * y)


def leaf(*shape: int, dtype: Any = None) -> Any:
    return torch.rand(*shape).to(dtype or torch.float32).requires_grad_()


def gradients(out: Any, *by: Any) -> Any:
    return out.detach(), *grad(out.sum(), by)


def of_gaps(f: Any) -> Any:
    x, y = leaf(6, 8), leaf(6, 8)
    return gradients(f(x[::2, 1::3], y[1::2, ::3]), x, y)


def of_rows_in_columns(f: Any) -> Any:
    x, y = leaf(4, 5), leaf(4, 5)
    out = f(x.T, y.T)
    return grad(out, (x, y), torch.rand(4, 5).T)


def of_nothing(f: Any) -> Any:
    x, y = leaf(0), leaf(0)
    return gradients(f(x, y), x, y)


def of_views_of_each_other(f: Any) -> Any:
    x = leaf(9)
    return gradients(f(x[:8], x[1:]), x)


def of_one_twice(f: Any) -> Any:
    x = leaf(9)
    return gradients(f(x, x), x)


def of_one_row_for_all(f: Any) -> Any:
    x, y = leaf(3, 4), leaf(4)
    return gradients(f(x, y.expand(3, 4)), x, y)


def of_dtype(dtype: Any) -> Callable[[Any], Any]:
    def of(f: Any) -> Any:
        x, y = leaf(9, dtype=dtype), leaf(9, dtype=dtype)
        return [t.float() for t in gradients(f(x, y), x, y)]

    return of


def again_with_gradients_changed(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    out = f(x, y).sum()
    first = grad(out, (x, y), retain_graph=True)
    kept = [g.clone() for g in first]
    for g in first:
        g.mul_(5)
    return *kept, *grad(out, (x, y))


def a_second_time(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    out = f(x, y).sum()
    out.backward()
    out.backward()


def after_a_change_of(which: int) -> Callable[[Any], Any]:
    def after(f: Any) -> Any:
        x = leaf(9)
        given = [x * 1, torch.rand(9)]
        out = f(*given)
        given[which].mul_(2)
        return grad(out.sum(), x)

    return after


def after_a_change_unseen(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    out = f(x, y)
    x.data.mul_(0.5)
    return grad(out.sum(), y)


def of_third_order(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    (once,) = grad(f(x, y).sum(), x, create_graph=True)
    (twice,) = grad((once**2).sum(), x, create_graph=True)
    return once.detach(), twice.detach(), *grad((twice**2).sum(), (x, y))


def by_the_cotangent(f: Any) -> Any:
    x, y, cotangent = leaf(5), leaf(5), leaf(5)
    (g,) = grad(f(x, y), x, cotangent, create_graph=True)
    return grad((g**2).sum(), (x, cotangent))


def by_one_alone(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    return grad(f(x, y).sum(), y)


def without_a_graph(mode: Any) -> Callable[[Any], Any]:
    def without(f: Any) -> Any:
        with mode():
            out = f(leaf(9), leaf(9))
        assert not out.requires_grad
        return [out]

    return without


def of_a_tensor_without_versions(f: Any) -> Any:
    with torch.inference_mode():
        y = torch.rand(9)
    f(leaf(9), y)


def with_arguments_kept_elsewhere(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    with torch.autograd.graph.save_on_cpu():
        out = f(x, y)
    return gradients(out, x, y)


def recomputed_from_within(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    return torch.utils.checkpoint.checkpoint(f, x, y, use_reentrant=True).sum().backward(), x.grad, y.grad


def in_another_thread(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    out = f(x, y).sum()
    thread = threading.Thread(target=out.backward)
    thread.start()
    thread.join()
    return x.grad, y.grad


def added_up(f: Any) -> Any:
    x, y = leaf(9), leaf(9)
    x.register_hook(lambda g: g * 3)
    for _ in range(3):
        f(x, y).sum().backward()
    return x.grad, y.grad


CALLS: dict[str, Callable[[Any], Any]] = {
    "gaps": of_gaps,
    "rows in columns": of_rows_in_columns,
    "no elements": of_nothing,
    "views of each other": of_views_of_each_other,
    "one tensor twice": of_one_twice,
    "one row for all": of_one_row_for_all,
    "float16": of_dtype(torch.float16),
    "bfloat16": of_dtype(torch.bfloat16),
    "gradients changed, and once more": again_with_gradients_changed,
    "a change that torch does not see": after_a_change_unseen,
    "third order": of_third_order,
    "by the cotangent": by_the_cotangent,
    "by one alone": by_one_alone,
    "no_grad": without_a_graph(torch.no_grad),
    "inference_mode": without_a_graph(torch.inference_mode),
    "save_on_cpu": with_arguments_kept_elsewhere,
    "checkpoint that is entered again": recomputed_from_within,
    "another thread": in_another_thread,
    "added up, with a hook": added_up,
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_those_of_the_same_function_in_torch(name: str) -> None:
    found = []
    for f in (qd.torch(kinked), kinked_of_torch):
        torch.manual_seed(1)
        found.append([t for t in CALLS[name](f) if t is not None])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no graph any more": (a_second_time, "backward through the graph a second time"),
    "changed": (after_a_change_of(0), "modified by an inplace operation"),
    "changed without a gradient": (after_a_change_of(1), "modified by an inplace operation"),
    "without versions": (of_a_tensor_without_versions, "Inference tensors cannot be saved"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused(name: str) -> None:
    call, text = REFUSED[name]
    for f in (qd.torch(kinked), kinked_of_torch):
        with pytest.raises(RuntimeError, match=text):
            call(f)


# --- arguments beside tensors, and what is kept between the passes
@pytest.mark.parametrize("create_graph", [False, True])
def test_arrays_of_numpy_may_change_before_backward(create_graph: bool) -> None:
    factors = np.full(3, 2.0, np.float32)
    x = leaf(3)
    out = qd.torch(jax.jit(lambda x, a: x**2 * a))(x, factors)
    factors *= 7
    (g,) = grad(out.sum(), x, create_graph=create_graph)
    torch.testing.assert_close(g, 4 * x)
    if create_graph:
        assert grad(g.sum(), x)[0].tolist() == [4, 4, 4]


def test_numbers_between_tensors_with_gradients() -> None:
    layer = qd.torch(lambda a, scale, b, *, c: jnp.sin(a) * scale * b + c)
    for scale in (2, 2.5):
        x, y = leaf(4), leaf(4)
        _, by_x, by_y = gradients(layer(x, scale, y, c=torch.ones(4)), x, y)
        torch.testing.assert_close(by_x, x.detach().cos() * scale * y.detach())
        torch.testing.assert_close(by_y, x.detach().sin() * scale)


def test_gradients_through_one_of_several_results() -> None:
    layer = qd.torch(jax.jit(lambda x: (jnp.sin(x), x**2, jnp.argmax(x))))
    x = leaf(5)
    waves, squares, place = layer(x)
    assert not place.requires_grad
    torch.testing.assert_close(grad(squares.sum(), x, retain_graph=True)[0], 2 * x.detach())
    torch.testing.assert_close(grad(waves.sum(), x)[0], x.detach().cos())


@pytest.mark.parametrize("residual", [jnp.sin, lambda x: x])
def test_a_gradient_that_is_a_residual_may_change(residual: Callable[..., Any]) -> None:
    @jax.custom_vjp
    def doubled(x):
        return x * 2

    doubled.defvjp(lambda x: (x * 2, residual(x)), lambda kept, _: (kept,))
    x = leaf(5)
    out = qd.torch(jax.jit(doubled))(x).sum()
    (first,) = grad(out, x, retain_graph=True)
    kept = first.clone()
    first.mul_(9)
    torch.testing.assert_close(grad(out, x)[0], kept)


def test_two_results_that_are_one_array_without_jit_have_memory_each() -> None:
    with jax.disable_jit():
        first, second = qd.torch(jax.jit(lambda x: (lambda y: (y, y))(x * 2)))(torch.ones(5))
    first.mul_(5)
    assert second.tolist() == [2] * 5


def test_arguments_and_constants_are_not_kept() -> None:
    from qdtrace.tensors.derived import Derived

    weights = np.linspace(0, 1, 5, dtype=np.float32)

    @qd.jit
    def products(x, y):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = x[i] * y[i]
        return out

    def weighted(x, y):
        return jnp.exp(products(x, y)) * weights

    x, y = jnp.arange(5.0), jnp.ones(5)
    values, kept, rule = Derived(weighted).values_and_rule((0, 1))(x, y)
    assert (len(kept), rule.again) == (1, (0, 1))
    found = rule.gradients(x, y, *kept, jnp.ones(5))
    for ours, theirs in zip(found, jax.vjp(weighted, x, y)[1](jnp.ones(5)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(values, weighted(x, y), rtol=1e-6)
