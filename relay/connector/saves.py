"""Saves of a worker: one thread that publishes blocks to the node's store. Sans vLLM."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from kvrelay.relay.client import Attachment
from kvrelay.relay.connector.blocks import BlockMemory
from kvrelay.relay.connector.metadata import ExpectJob, SaveJob
from kvrelay.relay.errors import RelayError
from kvrelay.relay.protocol import Expect
from kvrelay.relay.store import Entry, Refusal

logger = logging.getLogger(__name__)
BATCH = 16


class Saves:
    """Publishes what it is given in order; whatever goes wrong costs a future hit only."""

    def __init__(self, blocks: BlockMemory, attachment: Callable[[], Attachment | None]) -> None:
        self.copy_cpu_s = 0.0
        self.saved_blocks = 0
        self.dropped_blocks = 0
        self._blocks = blocks
        self._attachment = attachment
        self._lock = threading.Condition()
        self._jobs: deque[SaveJob] = deque()
        self._corrupt: list[bytes] = []
        self._expected: list[ExpectJob] = []
        self._released: list[int] = []
        self._busy = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvrelay-save", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[SaveJob]) -> None:
        """Publish blocks whose KV has been computed."""
        with self._lock:
            self._jobs.extend(jobs)
            self._lock.notify_all()

    def drop_corrupt(self, keys: Sequence[bytes]) -> None:
        """Have the store forget blocks whose bytes were proven corrupt."""
        with self._lock:
            self._corrupt.extend(keys)
            self._lock.notify_all()

    def expect(self, jobs: Sequence[ExpectJob]) -> None:
        """Tell the store who is expected next, once all that was submitted before is published."""
        with self._lock:
            self._expected.extend(jobs)
            self._lock.notify_all()

    def take_released(self) -> list[int]:
        """Engine blocks that are no longer read, since the last call."""
        with self._lock:
            released, self._released = self._released, []
        return released

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until something is released or nothing is left to do."""
        with self._lock:
            if not self._released and (self._jobs or self._busy):
                self._lock.wait(timeout_s)

    @property
    def busy(self) -> bool:
        """Whether blocks are held for saves that are not reported yet."""
        return bool(self._jobs or self._busy or self._released)

    def close(self) -> None:
        """Stop after the batch under way."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._thread.join(5)

    def _run(self) -> None:
        # A batch thread does not preempt whoever wakes it, which here is the forward pass.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))
        while True:
            with self._lock:
                while not (self._closing or self._jobs or self._corrupt or self._expected):
                    self._lock.wait()
                if self._closing:
                    return
                batch = [self._jobs.popleft() for _ in range(min(BATCH, len(self._jobs)))]
                corrupt, self._corrupt = self._corrupt, []
                expected: list[ExpectJob] = []
                if not self._jobs:
                    expected, self._expected = self._expected, []
                self._busy = True
            saved, dropped = 0, len(batch)
            try:
                saved, dropped = self._publish(batch, corrupt)
                self._tell(expected)
            except RelayError as error:
                logger.warning("blocks were not published: %s", error)
            except Exception:
                logger.exception("blocks were not published")
            self.copy_cpu_s = time.thread_time()
            with self._lock:
                self.saved_blocks += saved
                self.dropped_blocks += dropped
                self._released += [job.block_id for job in batch]
                self._busy = False
                self._lock.notify_all()

    def _tell(self, expected: list[ExpectJob]) -> None:
        attachment = self._attachment()
        if attachment is not None:
            for job in expected:
                told = (job.agent, job.probability, job.prefill_s, list(job.keys))
                attachment.client.expect(Expect(attachment.slab_id, *told))

    def _publish(self, batch: list[SaveJob], corrupt: list[bytes]) -> tuple[int, int]:
        """Write a batch; how many blocks were written, and how many found no room."""
        attachment = self._attachment()
        if attachment is None:
            return 0, len(batch)
        client, slab = attachment.client, attachment.slab
        if corrupt:
            client.drop(corrupt)
        if not batch:
            return 0, 0
        jobs = {job.key: job for job in batch}
        reserved = client.reserve(attachment.slab_id, list(jobs))
        granted = reserved.granted
        entries = []
        try:
            for key, slot in granted:
                job = jobs[key]
                checksum = self._blocks.save(job.block_id, slab.address(slot))
                entries.append(Entry(slot, key, job.parent, job.tokens, checksum))
        except BaseException:
            client.abort(attachment.slab_id, [slot for _, slot in granted])
            raise
        if entries:
            client.commit(attachment.slab_id, entries)
        return len(entries), reserved.refused.get(Refusal.FULL, 0)
