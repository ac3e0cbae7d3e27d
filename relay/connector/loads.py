"""Loads under way in a worker: copied block by block by whoever has time.

A thread copies, and the engine's main thread helps while it has nothing to compute. Sans
vLLM. A load is reported once nobody is copying for it any more: complete, failed, past its
deadline or cancelled, and never later than one block's copy after its deadline.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvrelay.policies import Reason
from kvrelay.relay.arena import Slab
from kvrelay.relay.connector.blocks import BlockMemory
from kvrelay.relay.connector.metadata import LoadBlock, LoadJob, LoadOutcome


@dataclass(slots=True)
class _Load:
    job: LoadJob
    arrived_s: float
    started_s: float | None = None
    next: int = 0
    copying: int = 0
    loaded: set[int] = field(default_factory=set)
    failure: Reason | None = None
    corrupt: list[bytes] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Nobody may start another copy."""
        return self.failure is not None or self.next == len(self.job.blocks)


@dataclass(frozen=True, slots=True)
class FinishedLoad:
    """A load that needs no more work: its outcome, and the engine blocks that are not good."""

    outcome: LoadOutcome
    failed_block_ids: list[int]


class Loads:
    """All loads of one worker."""

    def __init__(
        self,
        blocks: BlockMemory,
        slab: Callable[[], Slab | None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`slab` gives the slab that is mapped now, None while there is no store."""
        self.copy_cpu_s = 0.0
        self._blocks = blocks
        self._slab = slab
        self._clock_ns = clock_ns
        self._lock = threading.Condition()
        self._active: deque[_Load] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvrelay-load", daemon=True)
        self._thread.start()

    def submit(self, job: LoadJob) -> None:
        """Start a load."""
        with self._lock:
            self._active.append(_Load(job, time.perf_counter()))
            self._lock.notify_all()

    def cancel(self, request_ids: set[str]) -> None:
        """Give up the loads of these requests; they are still reported."""
        with self._lock:
            for load in self._active:
                if load.job.request_id in request_ids and not load.over:
                    load.failure = Reason.LOAD_CANCELLED
            self._lock.notify_all()

    def help(self, timeout_s: float) -> None:
        """Copy, or wait for others who do, until a load is over or the time is up."""
        end = time.perf_counter() + timeout_s
        while True:
            with self._lock:
                self._expire()
                if not self._active or any(load.over and not load.copying for load in self._active):
                    return
            left = end - time.perf_counter()
            if left <= 0:
                return
            if not self._copy_one():
                with self._lock:
                    self._lock.wait(min(left, 0.001))

    def take_finished(self) -> list[FinishedLoad]:
        """Loads that are over since the last call."""
        with self._lock:
            self._expire()
            finished = [load for load in self._active if load.over and not load.copying]
            for load in finished:
                self._active.remove(load)
        return [self._finish(load) for load in finished]

    def __len__(self) -> int:
        return len(self._active)

    def close(self) -> None:
        """Stop the thread; loads under way are abandoned."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._closing and all(load.over for load in self._active):
                    self._lock.wait()
                if self._closing:
                    return
            self._copy_one()
            self.copy_cpu_s = time.thread_time()

    def _expire(self) -> None:
        now_ns = self._clock_ns()
        for load in self._active:
            if not load.over and now_ns > load.job.deadline_ns:
                load.failure = Reason.LOAD_DEADLINE

    def _copy_one(self) -> bool:
        """Copy the next block of the oldest load that has one; False if there is none."""
        with self._lock:
            self._expire()
            load = next((load for load in self._active if not load.over), None)
            if load is None:
                return False
            number = load.next
            load.next += 1
            load.copying += 1
            if load.started_s is None:
                load.started_s = time.perf_counter()
        block = load.job.blocks[number]
        try:
            failure = self._copy(load.job, block)
        except Exception:
            failure = Reason.LOAD_FAULT
        with self._lock:
            load.copying -= 1
            if failure is None:
                load.loaded.add(number)
            else:
                load.failure = load.failure or failure
                if failure is Reason.LOAD_CORRUPT:
                    load.corrupt.append(block.key)
            self._lock.notify_all()
        return True

    def _copy(self, job: LoadJob, block: LoadBlock) -> Reason | None:
        """Copy one block and verify what arrived; why it is not good, or None."""
        slab = self._slab()
        if slab is None or slab.incarnation != job.incarnation:
            return Reason.STORE_UNAVAILABLE
        if slab.state(block.slot) != block.state:
            return Reason.LOAD_EVICTED
        checksum = self._blocks.load(block.block_id, slab.address(block.slot))
        if slab.state(block.slot) != block.state:
            return Reason.LOAD_EVICTED
        return None if checksum == block.checksum else Reason.LOAD_CORRUPT

    def _finish(self, load: _Load) -> FinishedLoad:
        blocks = load.job.blocks
        num_loaded = next((n for n in range(len(blocks)) if n not in load.loaded), len(blocks))
        now_s = time.perf_counter()
        started_s = now_s if load.started_s is None else load.started_s
        outcome = LoadOutcome(
            request_id=load.job.request_id,
            num_loaded=num_loaded,
            num_bytes=len(load.loaded) * self._blocks.slot_bytes,
            wait_s=started_s - load.arrived_s,
            copy_s=now_s - started_s,
            failure=load.failure,
            corrupt_keys=tuple(load.corrupt),
        )
        failed = [block.block_id for block in blocks[num_loaded:]]
        return FinishedLoad(outcome, failed)
