"""Tensors as arrays of JAX and back, on the same memory.

Memory is handed over by DLPack. On a CPU the capsules are made and taken without JAX's checks, which take longer than
a small kernel; elsewhere both libraries' own functions say which stream waits for which. What a compiled function of
JAX on a CPU only reads it is given as an array of NumPy, whose memory it reads, too: that takes half of the time.
"""

from __future__ import annotations

import functools
import itertools
from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax

from qdtrace.errors import BackendError, TraceTypeError
from qdtrace.tensors.capsules import array_of_capsule, capsule_of
from qdtrace.trace import jax_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

torch: Any = import_module("torch")
dlpack: Any = import_module("torch.utils.dlpack")
python_dispatch: Any = import_module("torch.utils._python_dispatch")
_count_of_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_tracing = getattr(torch._C, "_get_tracing_state", lambda: None)
_RECORDERS = {
    "ProxyTorchDispatchMode": "make_fx (of torch.func.linearize, torch.export)",
    "FakeTensorMode": "FakeTensorMode (of torch.export)",
    "FunctionalTensorMode": "FunctionalTensorMode (of torch.export)",
}
"""Modes in which operations are recorded, or computed without elements, by the names of their classes."""
_of_capsule = getattr(torch._C, "_from_dlpack", dlpack.from_dlpack)
"""Returns the tensor of a capsule; the public function looks for more than capsules first."""
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
_settings = jax_settings.reader(
    "jax_enable_x64", "jax_default_device", "jax_disable_jit", "jax_transfer_guard", "jax_transfer_guard_host_to_device"
)
_READ_BY: dict[tuple[object, ...], frozenset[Any]] = {
    (is_wide, None, False, *guards): _OF_NUMPY if is_wide else _OF_NUMPY - _WIDE.keys()
    for is_wide in (False, True)
    for guards in itertools.product((None, "allow"), repeat=2)
}
"""Dtypes that compiled functions on a CPU read in arrays of NumPy where these lie, by the settings that allow it."""


@functools.cache
def _is_on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def arrays_of(tensors: Sequence[Any]) -> Sequence[jax.Array | np.ndarray]:
    """Returns arrays on the memory of tensors, for operands of a compiled function; see `array_of`.

    Raises BackendError if they are on several devices, and TraceTypeError while torch records its operations.
    """
    if _count_of_modes() or _tracing() is not None:
        _refuse_recording()
    read = _READ_BY.get(_settings(), ()) if _is_on_cpu() else ()
    found: list[np.ndarray] = []
    try:
        for tensor in tensors:
            if tensor.dtype not in read or not tensor.is_cpu:
                break
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            found.append(tensor.numpy())
    except (RuntimeError, TypeError):  # it is lazily conjugated or negated, or `array_of` says what is wrong
        pass
    if len(found) == len(tensors):
        return found
    if len({t.device for t in tensors}) > 1:
        names = ", ".join(sorted({str(t.device) for t in tensors}))
        raise BackendError.here(
            f"qd.torch needs all tensors on one device, got {names}", help="move them with t.to(device)"
        )
    return [array_of(t) for t in tensors]


def _refuse_recording() -> None:
    """Raises TraceTypeError while torch records operations, of which a call is none: its result would be a constant."""
    names = [type(mode).__name__ for mode in python_dispatch._get_current_dispatch_mode_stack()]
    recorder = next((_RECORDERS[name] for name in names if name in _RECORDERS), None)
    recorder = recorder or (_tracing() is not None and "torch.jit.trace")
    if recorder:
        raise TraceTypeError.here(
            f"qd.torch: {recorder} records operations of torch, and a call of a layer is none: its result would be a "
            "constant",
            help="torch.func.jvp in place of torch.func.linearize; call the layer outside of what is recorded, or use "
            "torch.compile, which breaks its graph there",
        )


def array_of(tensor: Any) -> jax.Array:
    """Returns an array on the memory of a tensor, or of a contiguous copy where its strides leave gaps.

    Raises TraceTypeError for a dtype that JAX would narrow, and for what DLPack does not hand over.
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
            is_fake = tensor.untyped_storage().device.type == "meta"  # its address would be told with a warning
            if is_fake or (tensor.numel() and not tensor.data_ptr()):  # DLPack would read at that address
                raise BufferError("it has no memory")
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


def tensors_of(arrays: Sequence[jax.Array], is_on_host: bool, given: list[int]) -> tuple[Any, ...]:
    """Returns tensors on the memory of arrays; a copy where it is that of an argument, by the addresses in `given`.

    Torch may write into what it gets, and JAX may have given back an argument as it is, or one array twice.
    """
    made: list[Any] = []
    for array in arrays:
        try:
            tensor = _of_capsule(capsule_of(array)) if is_on_host else dlpack.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TraceTypeError.here(
                f"a result of {array.dtype} cannot become a tensor: {str(error).splitlines()[0]}",
                help="return numbers, such as jax.random.key_data(key) of a key",
            ) from None
        address = tensor.data_ptr()
        made.append(tensor.clone() if address in given and tensor.numel() else tensor)
        given.append(address)
    return tuple(made)
