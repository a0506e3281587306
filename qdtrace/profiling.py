"""`qd.profile`: which task takes the time.

It runs a function a few times while the handlers write down their launches (`qdtrace.launches`), so any function that
calls tasks can be profiled, and the timed code is the code that runs otherwise too.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ParamSpec

import jax
import jax.numpy as jnp
from jax.core import Tracer

from qdtrace.analysis.traffic import Traffic, task_traffic
from qdtrace.api import block_until_ready, jit
from qdtrace.config import current
from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.launches import Listening
from qdtrace.profile_table import Profile, Row
from qdtrace.trace.indexing import is_static_int
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qdtrace.launches import Launch

P = ParamSpec("P")
COPIED = 1 << 24
"""Elements of the copy that tasks are compared with: 64 MiB, more than caches hold."""


@boundary
def profile(f: Callable[P, Any], *, runs: int = 5) -> Callable[P, Profile]:
    """`qd.profile(f)(*args)` runs `f` a few times and measures how long each of its tasks takes.

    `f` is any function that runs tasks: of `qd.jit` or `qd.vmap`, a derivative, a `jax.jit` function around several of
    them, or plain Python. It is called with these arguments once to be compiled, once more, and then `runs` times;
    arguments that it donates are copied before. On a CPU times are those of the thread that runs the call.

    Args:
        f: the function; it may be called several times with equal arguments.
        runs: the number of timed calls; each time in the table is a median.

    Returns a function of the same arguments that returns a `Profile`: print it, or read `rows`.

    Raises:
        TraceTypeError: `f` is no function, or an argument is a traced value.
        TraceValueError: `runs` is no positive integer, or no task ran.

    >>> import jax.numpy as jnp, qdtrace as qd
    >>> @qd.jit
    ... def double(x):
    ...     for i in qd.range(x.shape[0], name="doubling"):
    ...         x[i] = 2 * x[i]
    ...     return x
    >>> profile = qd.profile(double)(jnp.arange(1000.0))
    >>> [(row.name, row.bytes, row.iterations) for row in profile.rows]
    [('doubling', 8000, 1000)]
    """
    if not callable(f):
        raise TraceTypeError.here(f"qd.profile needs a function, got {type(f).__name__}")
    if not is_static_int(runs) or runs < 1:
        raise TraceValueError.here(f"qd.profile needs runs to be a positive integer, got {runs!r}")
    name = getattr(f, "__name__", type(f).__name__)

    @boundary
    @functools.wraps(f)
    def profiled(*args: P.args, **kwargs: P.kwargs) -> Profile:
        if any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))):
            raise TraceTypeError.here(
                f"qd.profile runs `{name}`, so it needs arrays, got a traced value",
                help="call qd.profile around jax.jit, jax.grad and jax.vmap, not inside of them",
            )
        return _profiled(f, name, runs, args, kwargs)

    return profiled


def _profiled(f: Callable[..., Any], name: str, runs: int, args: Any, kwargs: Any) -> Profile:
    again = _arguments(f, args, kwargs)
    times: list[float] = []
    found: list[list[Launch]] = []
    left_out = 0
    for run in range(runs + 1):
        args, kwargs = again()
        jax.block_until_ready((args, kwargs))
        with Listening(devices=True) as listening:
            began = time.perf_counter()
            block_until_ready(f(*args, **kwargs))
            seconds = time.perf_counter() - began
        if run:  # the first one may compile for arguments that are not copies
            times.append(seconds)
            found.append(listening.launches)
            left_out = max(left_out, listening.left_out)
    if not any(found):
        raise TraceValueError.here(
            f"qd.profile: no task ran in `{name}`",
            notes=["with debug=True loops run in the interpreter, which has no tasks"] if current().debug else (),
            help="give a function that runs loops of qd.jit or qd.vmap: a loop without iterations, or one that changes "
            "nothing, is no task; what XLA runs of them (code generator `xla` in Lowered.tasks) is in a trace of "
            "jax.profiler",
        )
    return Profile(name, tuple(_rows(found)), statistics.median(times), runs, _copy_speed(), left_out)


def _arguments(f: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], Any]:
    """Runs the function once on copies; returns a function that makes its arguments, with donated ones copied."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    copies = list(map(_copied, leaves))
    given_args, given_kwargs = jax.tree.unflatten(tree, copies)
    block_until_ready(f(*given_args, **given_kwargs))
    donated = [isinstance(c, jax.Array) and c.is_deleted() for c in copies]

    def again() -> Any:
        fresh = [_copied(x) if gone else x for x, gone in zip(leaves, donated, strict=True)]
        return jax.tree.unflatten(tree, fresh)

    return again


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, jax.Array) else x


def _rows(runs: Sequence[Sequence[Launch]]) -> Iterable[Row]:
    """Groups the launches of each task into a row; times are medians over the runs."""
    groups: dict[tuple[int, int, bool], list[list[Launch]]] = defaultdict(lambda: [[] for _ in runs])
    for number, launches in enumerate(runs):
        for launch in launches:
            groups[id(launch.program), launch.number, launch.is_fill][number].append(launch)
    for each in groups.values():
        first, *_ = one = max(each, key=len)
        whole = [launch for launch in one if not launch.is_further]
        together = range(first.number, first.number + first.together)
        tasks = [] if first.is_fill else [first.program.tasks[k] for k in together]
        filled = Traffic(0, sum(launch.filled for launch in one))
        moved = sum(map(task_traffic, tasks * len(whole)), filled)
        yield Row(
            first.label,
            statistics.median(sum(launch.seconds for launch in run) for run in each),
            len(whole),
            moved.total,
            moved.exact,
            sum(launch.iterations for launch in whole),
            tasks[0].loc if tasks else None,
            tasks[0].name if tasks else "",
            first.program.name,
        )


def _copy(x: Any, out: Any) -> Any:
    for i in qd_range(x.shape[0]).over(_copy):
        out[i] = x[i]
    return out


_copies = jit(_copy, donate_argnames="out")


def _copy_speed() -> float:
    """Returns the speed of a task that copies, in 10**9 bytes per second: the best of a few runs."""
    x, out = jnp.ones(COPIED, jnp.float32), jnp.zeros(COPIED, jnp.float32)
    times: list[float] = []
    for _ in range(6):
        with Listening(devices=True) as listening:
            out = jax.block_until_ready(_copies(x, out))
        times += [launch.seconds for launch in listening.launches if launch.program.name == _copy.__name__]
    return 2 * x.nbytes / min(times, default=math.nan) * 1e-9
