"""Programs whose tasks are made by Triton where it can make them, and by LLVM where it refuses."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from lowering.gpu.emission import Emission
from lowering.triton.choice import Choice
from qdtrace.config import Options
from qdtrace.errors import BackendError
from qdtrace.ir.program import Task


@contextmanager
def triton_where_it_can() -> Iterator[None]:
    """A block in which `codegen="triton"` leaves to LLVM what Triton refuses."""

    strict = Emission.choice

    def choice(emission: Emission, task: Task, options: Options) -> Choice:
        try:
            return strict(emission, task, options)
        except BackendError:
            return Choice("llvm", "Triton refuses")

    with mock.patch.object(Emission, "choice", choice):
        yield
