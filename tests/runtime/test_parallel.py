"""The parallel loop, called directly with a pool made of Python threads."""

import ctypes
import threading

import pytest

from lowering.llvm.target import Target
from lowering.runtime import abi
from lowering.runtime.compile import launcher
from lowering.runtime.parallel import slot_limit

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
COMBINE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
API = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_INT64 = ctypes.c_int64
_LOOP = (ctypes.c_void_p, TASK, ctypes.c_void_p, _INT64, _INT64, _INT64, _INT64, _INT64)
PARALLEL_FOR = ctypes.CFUNCTYPE(None, *_LOOP)
PARALLEL_REDUCE = ctypes.CFUNCTYPE(None, *_LOOP, COMBINE, _INT64, _INT64)


def word(address: int, offset: int) -> int:
    """The pointer-sized number at an address."""
    return ctypes.c_int64.from_address(address + offset).value


class Pool:
    """A call frame whose functions use Python threads; `refuse` makes scheduling fail."""

    def __init__(self, threads: int, refuse: bool = False, late: bool = False) -> None:
        self.threads, self.refuse, self.late = threads, refuse, late
        self.started: list[threading.Thread] = []
        self.asked = self.dropped = 0
        self.functions = {
            abi.API_POOL_THREADS: API(self.count),
            abi.API_POOL_SCHEDULE: API(self.schedule),
            abi.API_ERROR_DESTROY: API(self.drop),
        }
        self.api = (ctypes.c_int64 * 32)()
        for offset, function in self.functions.items():
            self.api[offset // 8] = ctypes.cast(function, ctypes.c_void_p).value
        self.frame = (ctypes.c_int64 * 32)()
        self.frame[abi.FRAME_API // 8] = ctypes.addressof(self.api)
        self.frame[abi.FRAME_CONTEXT // 8] = 77

    def count(self, args: int) -> int:
        assert (word(args, 0), word(args, 16)) == (abi.POOL_THREADS_SIZE, 77)
        self.asked += 1
        ctypes.c_int64.from_address(word(args, 24)).value = self.threads
        return 0

    def schedule(self, args: int) -> int:
        assert (word(args, 0), word(args, 16)) == (abi.POOL_SCHEDULE_SIZE, 77)
        if self.refuse:
            return 1234
        work = WORK(word(args, 24))
        self.started.append(threading.Thread(target=work, args=(word(args, 32),)))
        if not self.late:
            self.started[-1].start()
        return 0

    def drop(self, args: int) -> int:
        assert (word(args, 0), word(args, 16)) == (abi.ERROR_DESTROY_SIZE, 1234)
        self.dropped += 1
        return 0

    def run(self, start: int, stop: int, grain: int, lanes: int, max_threads: int = 0) -> list[tuple[int, int]]:
        """The chunks that were run, in no order."""
        chunks: list[tuple[int, int]] = []
        task = TASK(lambda refs, lo, hi, slot: chunks.append((lo, hi)))
        code = PARALLEL_FOR(launcher(Target.host(), None)["qd_parallel_for"])
        code(ctypes.addressof(self.frame), task, None, start, stop, grain, lanes, max_threads)
        seen = len(chunks)
        for thread in self.started:
            if self.late:
                thread.start()
            thread.join()
        assert len(chunks) == seen, "a chunk ran after the loop had ended"
        return chunks


def check_cover(chunks: list[tuple[int, int]], start: int, stop: int, lanes: int) -> None:
    """Every index once, and borders at multiples of the lanes from the start."""
    ordered = sorted(chunks)
    assert all(lo < hi for lo, hi in ordered)
    assert [lo for lo, _ in ordered] == [start, *[hi for _, hi in ordered[:-1]]]
    assert ordered[-1][1] == stop
    assert all((lo - start) % lanes == 0 for lo, _ in ordered)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("lanes", [1, 4, 64])
def test_every_index_runs_once(threads, lanes):
    for n in (1, 2, lanes - 1 or 1, lanes, lanes + 1, 5 * lanes + 3, 1000, 4097):
        for grain in (lanes, 2 * lanes, 10 * lanes):
            for start in (0, -7, 13):
                chunks = Pool(threads).run(start, start + n, grain, lanes)
                check_cover(chunks, start, start + n, lanes)
                if threads > 1 and n >= 2 * grain and n > lanes:
                    assert len(chunks) > 1
                assert len(chunks) <= 16 * threads


def test_a_small_loop_runs_on_the_caller_without_asking_the_pool():
    pool = Pool(8)
    assert pool.run(5, 204, 100, 4) == [(5, 204)]
    assert pool.asked == 0
    check_cover(pool.run(5, 205, 100, 4), 5, 205, 4)
    assert pool.asked == 1


def test_a_limit_of_threads_is_kept():
    pool = Pool(8)
    check_cover(pool.run(0, 10000, 10, 1, max_threads=3), 0, 10000, 1)
    assert len(pool.started) == 2
    alone = Pool(8)
    check_cover(alone.run(0, 10000, 10, 1, max_threads=1), 0, 10000, 1)
    assert not alone.started


def test_a_pool_that_refuses_leaves_the_work_to_the_caller():
    pool = Pool(4, refuse=True)
    check_cover(pool.run(0, 1000, 10, 1), 0, 1000, 1)
    assert pool.dropped == 3


def test_helpers_that_come_late_find_nothing_left():
    pool = Pool(4, late=True)
    check_cover(pool.run(0, 1000, 10, 1), 0, 1000, 1)
    assert len(pool.started) == 3


def test_a_loop_inside_a_loop():
    inner: list[list[tuple[int, int]]] = []
    pool = Pool(3)
    task = TASK(lambda refs, lo, hi, slot: inner.append(Pool(3).run(lo, hi, 5, 1)))
    code = PARALLEL_FOR(launcher(Target.host(), None)["qd_parallel_for"])
    code(ctypes.addressof(pool.frame), task, None, 0, 300, 30, 1, 0)
    for thread in pool.started:
        thread.join()
    check_cover([chunk for chunks in inner for chunk in chunks], 0, 300, 1)
    assert len(inner) > 1


def test_loops_from_many_threads():
    results: dict[int, list[tuple[int, int]]] = {}

    def outer(k: int) -> None:
        results[k] = Pool(3).run(k, 500 + k, 10, 2)

    threads = [threading.Thread(target=outer, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, chunks in results.items():
        check_cover(chunks, k, 500 + k, 2)
    assert len(results) == 6


# Loops that reduce


def reduce(pool: Pool, start: int, stop: int, grain: int, lanes: int = 1, most: int = 256, slot_bytes: int = 64,
           max_threads: int = 0) -> list[tuple[int, int]]:  # fmt: skip
    """The chunks in the order of their slots: each writes its bounds into its slot, from end to end."""
    found: list[tuple[int, int]] = []
    words = slot_bytes // 8

    def run(refs: int, lo: int, hi: int, slot: int) -> None:
        assert slot % 64 == 0
        (ctypes.c_int64 * words).from_address(slot)[:] = [lo] * (words - 1) + [hi]

    def combine(refs: int, slots: int, count: int) -> None:
        assert not found
        for k in range(count):
            slot = (ctypes.c_int64 * words).from_address(slots + k * slot_bytes)
            assert set(slot[:-1]) == {slot[0]}
            found.append((slot[0], slot[words - 1]))

    code = PARALLEL_REDUCE(launcher(Target.host(), None)["qd_parallel_reduce"])
    frame = ctypes.addressof(pool.frame)
    code(frame, TASK(run), None, start, stop, grain, lanes, max_threads, COMBINE(combine), slot_bytes, most)
    for thread in pool.started:
        if pool.late:
            thread.start()
        thread.join()
    return found


@pytest.mark.parametrize("n", [1, 7, 64, 1000, 4097])
@pytest.mark.parametrize("slot_bytes", [64, 4096, 1 << 16])
def test_chunks_of_a_reduction_do_not_depend_on_the_threads(n: int, slot_bytes: int):
    for grain, lanes in ((1, 1), (8, 4), (100, 16)):
        wanted = reduce(Pool(1), 3, 3 + n, grain, lanes, slot_bytes=slot_bytes)
        check_cover(wanted, 3, 3 + n, lanes)
        assert wanted == sorted(wanted)
        for pool in (Pool(2), Pool(8), Pool(8, refuse=True), Pool(3, late=True)):
            assert reduce(pool, 3, 3 + n, grain, lanes, slot_bytes=slot_bytes) == wanted
        assert reduce(Pool(8), 3, 3 + n, grain, lanes, slot_bytes=slot_bytes, max_threads=2) == wanted


def test_a_reduction_has_no_more_slots_than_allowed():
    assert len(reduce(Pool(4), 0, 10_000, 1, most=256)) == 250
    assert len(reduce(Pool(4), 0, 10_000, 1, most=16)) == 16
    assert len(reduce(Pool(4), 0, 10_000, 1000, most=16)) == 10


def test_a_small_reduction_runs_on_the_caller_without_asking_the_pool():
    pool = Pool(8)
    assert reduce(pool, 5, 204, 100) == [(5, 204)]
    assert pool.asked == 0
    reduce(pool, 5, 205, 100)
    assert pool.asked == 1
    assert len(pool.started) == 1


def test_a_limit_of_threads_is_kept_by_reductions():
    pool = Pool(8)
    reduce(pool, 0, 10_000, 10, max_threads=3)
    assert len(pool.started) == 2


def test_few_slots_where_they_are_large():
    assert slot_limit(64) == 256
    assert slot_limit(1 << 14) == 64
    assert slot_limit(1 << 18) == 16
