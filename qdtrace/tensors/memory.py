"""Tensors as arrays of JAX and back, on the same memory.

Memory is handed over by DLPack. On a CPU the capsules are made and taken without JAX's checks, which take longer than
a small kernel; elsewhere both libraries' own functions say which stream waits for which. What a compiled function of
JAX on a CPU only reads it is given as an array of NumPy, whose memory it reads, too: that takes half of the time.
"""

from __future__ import annotations

import functools
import operator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax

from qdtrace.errors import TraceTypeError
from qdtrace.tensors.capsules import array_of_capsule, capsule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

torch: Any = import_module("torch")
dlpack: Any = import_module("torch.utils.dlpack")
_WIDE = {
    torch.float64: ("float()", "float32"),
    torch.int64: ("int()", "int32"),
    torch.uint64: ("to(torch.uint32)", "uint32"),
    torch.complex128: ("to(torch.complex64)", "complex64"),
}
"""Dtypes that JAX has in x64 mode alone, with what a user calls in place of it and gets."""
_OF_NUMPY = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip
"""Dtypes that NumPy has."""
_placing = operator.attrgetter(
    "jax_default_device", "jax_disable_jit", "jax_transfer_guard", "jax_transfer_guard_host_to_device"
)


def takes_numpy() -> bool:
    """Returns whether compiled functions read arrays of NumPy where they lie: on a CPU, if no setting forbids it."""
    return _is_on_cpu() and not any(x for x in _placing(jax.config) if x != "allow")


@functools.cache
def _is_on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def array_of(tensor: Any, *, by_numpy: bool = False) -> jax.Array | np.ndarray:
    """Returns an array on the memory of a tensor, or of a contiguous copy where its strides leave gaps.

    With `by_numpy` it is one of NumPy, if the tensor is on the host and NumPy has its dtype. Raises
    TraceTypeError for a dtype that JAX would narrow, and for what DLPack does not hand over.
    """
    if tensor.dtype in _WIDE and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        call, narrow = _WIDE[tensor.dtype]
        raise TraceTypeError.here(
            f"a tensor of {str(tensor.dtype).removeprefix('torch.')} needs JAX's x64 mode, which is off",
            help=f'jax.config.update("jax_enable_x64", True) before the first call, or t.{call} for {narrow}',
        )
    try:
        tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        if tensor.is_cpu:
            if by_numpy and tensor.dtype in _OF_NUMPY:
                return tensor.numpy()
            return array_of_capsule(dlpack.to_dlpack(tensor))
        return jax.dlpack.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        is_batch = "Batching rule" in str(error)  # of the older `vmap`, which knows nothing of functions like this one
        raise TraceTypeError.here(
            f"a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device} cannot be read: "
            f"{str(error).splitlines()[0]}",
            help="torch.func.vmap or torch.func.jacrev in place of is_grads_batched and vectorize"
            if is_batch
            else "hand over a dense tensor of the CPU or of a GPU that JAX sees (`jax.devices()`)",
        ) from None


def tensor_of(array: jax.Array, is_on_host: bool, given: Sequence[int]) -> Any:
    """Returns a tensor on the memory of an array; a copy if it is that of an argument, by the addresses in `given`.

    Torch may write into what it gets, and JAX may have given back an argument as it is.
    """
    try:
        tensor = dlpack.from_dlpack(capsule_of(array) if is_on_host else array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TraceTypeError.here(
            f"a result of {array.dtype} cannot become a tensor: {str(error).splitlines()[0]}",
            help="return numbers, such as jax.random.key_data(key) of a key",
        ) from None
    return tensor.clone() if tensor.data_ptr() in given and tensor.numel() else tensor
