"""Loads under way in a worker: copied block by block by whoever has time.

A thread copies, and the engine's main thread helps while it has nothing to compute. Blocks of
other nodes are copied as they land in this node's arena, while later ones are on the wire.
Sans vLLM. A load is reported once nobody is copying for it any more: complete, failed, past its
deadline or cancelled, and never later than one block's copy after its deadline.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvrelay.policies import Reason
from kvrelay.relay.client import Attachment
from kvrelay.relay.connector.blocks import BlockMemory
from kvrelay.relay.connector.fetches import Fetches
from kvrelay.relay.connector.metadata import LoadBlock, LoadJob, LoadOutcome
from kvrelay.relay.protocol import FetchEnded, LandedBlock


@dataclass(slots=True)
class _Load:
    job: LoadJob
    deadline_ns: int
    number: int
    blocks: list[LoadBlock]
    ready: deque[int]
    absent: dict[bytes, int]  # what has to come from other nodes: key to block number
    arrived_s: float
    is_remote: bool
    started_s: float | None = None
    ended_s: float | None = None  # of the last copy, or the last news of a fetch
    copying: int = 0
    fetched: FetchEnded | None = None
    loaded: set[int] = field(default_factory=set)
    failure: Reason | None = None
    shortfall: Reason | None = None  # why not all came; what did come is still copied
    corrupt: list[bytes] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Nobody may start another copy."""
        if self.failure is not None:
            return True
        return not self.ready and (self.fetched is not None or not self.is_remote)


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
        attachment: Callable[[], Attachment | None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`attachment` gives the store's as it is now, None while there is none."""
        self.copy_cpu_s = 0.0
        self._blocks = blocks
        self._attachment = attachment
        self._clock_ns = clock_ns
        self._lock = threading.Condition()
        self._active: deque[_Load] = deque()
        self._next_number = 0
        self._fetches = Fetches(self._on_landed, self._on_ended)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvrelay-load", daemon=True)
        self._thread.start()

    def submit(self, job: LoadJob) -> None:
        """Start a load."""
        ready = deque(n for n, block in enumerate(job.blocks) if block.slot is not None)
        absent = {block.key: n for n, block in enumerate(job.blocks) if block.slot is None}
        deadline_ns = self._clock_ns() + round(job.deadline_s * 1e9)
        with self._lock:
            self._next_number += 1
            load = _Load(
                job,
                deadline_ns,
                self._next_number,
                list(job.blocks),
                ready,
                absent,
                time.perf_counter(),
                bool(absent),
            )
            self._active.append(load)
            self._lock.notify_all()
        if absent:
            attachment = self._attachment()
            if attachment is None:
                self._on_ended(load.number, FetchEnded(load.number, str(Reason.STORE_UNAVAILABLE)))
            else:
                self._fetches.start(attachment, load.number, list(absent), deadline_ns)

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
        for load in finished:
            if load.is_remote:
                self._fetches.end(load.number)
        return [self._finish(load) for load in finished]

    def __len__(self) -> int:
        return len(self._active)

    def close(self) -> None:
        """Stop the thread; loads under way are abandoned."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._fetches.close()
        self._thread.join(5)

    def _on_landed(self, number: int, blocks: Sequence[LandedBlock]) -> None:
        with self._lock:
            load = next((load for load in self._active if load.number == number), None)
            for block in blocks if load is not None else ():
                at = load.absent.pop(block.key, None) if load is not None else None
                if at is not None and load is not None:
                    load.blocks[at] = replace(
                        load.blocks[at],
                        slot=block.slot,
                        state=block.state,
                        checksum=block.checksum,
                    )
                    load.ready.append(at)
            self._lock.notify_all()

    def _on_ended(self, number: int, ended: FetchEnded) -> None:
        with self._lock:
            load = next((load for load in self._active if load.number == number), None)
            if load is not None:
                load.fetched = ended
                load.ended_s = time.perf_counter()
                if load.absent and load.failure is None:
                    load.shortfall = _reason(ended.failure)
            self._lock.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._closing and not any(self._copyable(load) for load in self._active):
                    self._lock.wait()
                if self._closing:
                    return
            self._copy_one()
            self.copy_cpu_s = time.thread_time()

    def _expire(self) -> None:
        now_ns = self._clock_ns()
        for load in self._active:
            if not load.over and now_ns > load.deadline_ns:
                load.failure = Reason.LOAD_DEADLINE

    @staticmethod
    def _copyable(load: _Load) -> bool:
        return not load.over and bool(load.ready)

    def _copy_one(self) -> bool:
        """Copy the next block of the oldest load that has one; False if there is none."""
        with self._lock:
            self._expire()
            load = next((load for load in self._active if self._copyable(load)), None)
            if load is None:
                return False
            number = load.ready.popleft()
            load.copying += 1
            if load.started_s is None:
                load.started_s = time.perf_counter()
        block = load.blocks[number]
        try:
            failure = self._copy(load.job, block)
        except Exception:
            failure = Reason.LOAD_FAULT
        with self._lock:
            load.copying -= 1
            load.ended_s = time.perf_counter()
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
        attachment = self._attachment()
        slab = attachment.slab if attachment is not None else None
        if slab is None or slab.incarnation != job.incarnation or block.slot is None:
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
        failure = load.failure or load.shortfall
        if load.job.discards:
            num_loaded, failure = 0, failure or Reason.MODE_DISCARD
        ended_s = time.perf_counter() if failure or load.ended_s is None else load.ended_s
        started_s = ended_s if load.started_s is None else load.started_s
        outcome = LoadOutcome(
            request_id=load.job.request_id,
            num_loaded=num_loaded,
            num_bytes=len(load.loaded) * self._blocks.slot_bytes,
            wait_s=started_s - load.arrived_s,
            copy_s=ended_s - started_s,
            failure=failure,
            corrupt_keys=tuple(load.corrupt),
            fetched=load.fetched,
        )
        failed = [block.block_id for block in blocks[num_loaded:]]
        return FinishedLoad(outcome, failed)


def _reason(name: str) -> Reason:
    try:
        return Reason(name)
    except ValueError:
        return Reason.TRANSFER_FAILED
