"""`qd.torch`: a function of arrays as one of tensors. This module goes without torch."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from qdtrace import tracebacks
from qdtrace.errors import BackendError, TraceTypeError, boundary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qdtrace.tensors.layer import Layer


@boundary
def torch(
    f: Callable[..., Any], *, static_argnums: int | Sequence[int] = (), static_argnames: str | Iterable[str] = ()
) -> Layer:
    """Makes a function of torch tensors from one of arrays, differentiable and mapped as torch's own are.

    Tensors of a CPU, or of one GPU, are read where they lie, and results are tensors on the memory of JAX's results.
    Gradients are those of `jax.vjp`, of any order; `torch.func.vmap` maps by `jax.vmap`, and `torch.func.jvp` is
    `jax.jvp`. To `torch.compile` a call is a graph break.

    >>> layer = qd.torch(lambda x, k: (x ** k).sum())  # doctest: +SKIP
    >>> x = torch.ones(3, requires_grad=True)  # doctest: +SKIP
    >>> layer(x, 2).backward()  # doctest: +SKIP
    >>> x.grad  # doctest: +SKIP
    tensor([2., 2., 2.])

    Args:
        f: a function that `qd.jit`, `qd.vmap` or `jax.jit` made, or one that becomes `qd.jit(f)`. Its arguments are
            pytrees of tensors of any rank, of arrays of JAX and NumPy and of Python numbers; it returns a pytree of
            arrays. Gradients are by float and complex tensors.
        static_argnums: positions of arguments that are compile-time values (hashable), as in `qd.jit`. Those of a
            function that `qd.jit` made are known.
        static_argnames: the same by name.

    Returns:
        The function. Its results are tensors; those of integers and bools have no gradient.

    Raises:
        BackendError: torch is not installed; by the call, tensors are on several devices.
        TraceTypeError: by the call, of a tensor of 64 bits while JAX's x64 mode is off, of one that is not dense, and
            of an argument that is no array or number.
    """
    if not callable(f):
        raise TraceTypeError.here(f"qd.torch needs a function, got {type(f).__name__}")
    if importlib.util.find_spec("torch") is None:
        raise BackendError.here("qd.torch needs torch, which is not installed", help="pip install torch")
    from qdtrace.tensors.layer import Layer  # only here: it imports torch

    tracebacks.look_for_libraries()
    return Layer(f, static_argnums, static_argnames)
