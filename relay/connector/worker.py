"""The worker half: moves blocks between the engine and the arena, off the forward pass."""

import logging
import time

import torch

from kvrelay.policies import Reason
from kvrelay.relay.client import StoreLink
from kvrelay.relay.connector.blocks import BlockMemory, UnsupportedLayout, block_memory
from kvrelay.relay.connector.guard import Breaker, StepCost, guarded
from kvrelay.relay.connector.loads import Loads
from kvrelay.relay.connector.metadata import (
    LoadJob,
    LoadOutcome,
    RelayMetadata,
    WorkerCost,
    WorkerReport,
)
from kvrelay.relay.connector.saves import Saves

logger = logging.getLogger(__name__)
# A step without tokens would spin: one parked request cost two cores in three (measured).
IDLE_WAIT_S = 0.005


class WorkerHalf:
    """Relay in an engine's worker. Every hook runs on the worker's main thread."""

    def __init__(self, link: StoreLink, num_blocks: int, slot_bytes: int) -> None:
        self.breaker = Breaker()
        self.cost = StepCost()
        self._link = link
        self._num_blocks = num_blocks
        self._slot_bytes = slot_bytes
        self._blocks: BlockMemory | None = None
        self._loads: Loads | None = None
        self._saves: Saves | None = None
        self._outcomes: list[LoadOutcome] = []
        self._failed_block_ids: set[int] = set()
        self._unloadable: list[LoadJob] = []
        self._dropped: list[int] = []

    def give_up(self, request_id: str) -> None:
        """Faults here concern no single request."""

    @guarded(lambda: None)
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine's KV memory is there."""
        # vLLM 0.29's AMX attention ends the process with SIGILL where nothing has asked the
        # kernel for AMX yet: an engine without warm-up whose first prompt has under five tokens.
        torch.cpu._init_amx()
        try:
            blocks = block_memory(kv_caches, self._num_blocks)
        except UnsupportedLayout as error:
            logger.warning("relay is off for this engine: %s", error)
            return
        if blocks.slot_bytes != self._slot_bytes:
            logger.warning(
                "relay is off for this engine: a block has %d bytes, not the %d that "
                "its specification says",
                blocks.slot_bytes,
                self._slot_bytes,
            )
            return
        self._blocks = blocks
        self._loads = Loads(blocks, lambda: self._link.current)
        self._saves = Saves(blocks, lambda: self._link.current)

    @guarded(lambda: None)
    def start_loads(self, metadata: RelayMetadata) -> None:
        """Begin the loads of this step; a load that cannot begin is reported as failed."""
        for job in metadata.loads:
            if self._loads is None:
                self._unloadable.append(job)
            else:
                self._loads.submit(job)

    @guarded(set, timed=False)
    def finish_step(self, metadata: RelayMetadata, finished: set[str]) -> set[str]:
        """After the forward pass: hand over saves, wait if there is nothing else to do.

        Returns:
            Requests whose load is over.
        """
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        loads, saves, blocks = self._loads, self._saves, self._blocks
        done = set()
        for job in self._unloadable:
            done.add(job.request_id)
            self._failed_block_ids.update(block.block_id for block in job.blocks)
            fault = LoadOutcome(job.request_id, 0, 0, 0.0, 0.0, Reason.LOAD_FAULT)
            self._outcomes.append(fault)
        self._unloadable.clear()
        if loads is None or saves is None or blocks is None:
            self._dropped += [job.block_id for job in metadata.saves]
            return done
        if metadata.saves:
            blocks.fence()
            saves.submit(metadata.saves)
        if metadata.expected:
            saves.expect(metadata.expected)
        gone = metadata.cancelled | finished
        if gone:
            loads.cancel(gone)
        if not metadata.has_tokens:
            if loads:
                loads.help(IDLE_WAIT_S)
            elif saves.busy:
                saves.wait_idle(IDLE_WAIT_S)
        for load in loads.take_finished():
            done.add(load.outcome.request_id)
            self._outcomes.append(load.outcome)
            self._failed_block_ids.update(load.failed_block_ids)
            corrupt = load.outcome.corrupt_keys
            if corrupt:
                logger.error("%d corrupt blocks were found and will be recomputed", len(corrupt))
                saves.drop_corrupt(corrupt)
        if metadata.has_tokens:
            self.cost.add(time.thread_time() - start_cpu_s, time.perf_counter() - start_s)
            self.cost.end_step()
        return done

    def take_failed_block_ids(self) -> set[int]:
        """Engine blocks whose load failed, since the last call."""
        failed, self._failed_block_ids = self._failed_block_ids, set()
        return failed

    @guarded(lambda: None)
    def report(self) -> WorkerReport | None:
        """What the scheduler half has to know; None if nothing happened."""
        loads, saves = self._loads, self._saves
        outcomes, self._outcomes = self._outcomes, []
        released, self._dropped = self._dropped, []
        if loads is None or saves is None:
            return WorkerReport(released, outcomes) if released or outcomes else None
        released += saves.take_released()
        if not outcomes and not released:
            return None
        cost = WorkerCost(
            self.cost.total_s,
            loads.copy_cpu_s + saves.copy_cpu_s,
            self.cost.worst_step_s,
            self.cost.p99_step_s,
            saves.saved_blocks,
            saves.dropped_blocks,
        )
        return WorkerReport(released, outcomes, cost)

    def shutdown(self) -> None:
        """Stop copying and let go of the store."""
        for part in (self._loads, self._saves):
            if part is not None:
                part.close()
        self._link.close()
