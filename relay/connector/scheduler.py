"""The scheduler half: decides, plans loads and saves, keeps leases and held blocks.

Runs on EngineCore's scheduler thread, so nothing here waits: look-ups read shared memory,
and everything that takes time happens in the worker half.

Blocks that are being saved are held by their reference count in vLLM's block pool, taken
when the save is planned and given back when the worker reports it. So a preempted or
finished request's blocks stay whole until they are read, without delaying the request.
"""

import logging
import time
from typing import TYPE_CHECKING, Any

from kvrelay.policies import Arm, Candidate, Costs, Reason, parse_policy
from kvrelay.policies.decision import Decision, recompute
from kvrelay.policies.modes import Mode, decide_in_mode
from kvrelay.relay import index
from kvrelay.relay.blocks import BlockChain, Match, match
from kvrelay.relay.client import StoreLink
from kvrelay.relay.connector.audit import Audit, Savings
from kvrelay.relay.connector.calibration import calibration_of
from kvrelay.relay.connector.expecting import expect_job
from kvrelay.relay.connector.guard import Breaker, StepCost, guarded
from kvrelay.relay.connector.identity import AdapterDigests
from kvrelay.relay.connector.metadata import (
    ExpectJob,
    LoadBlock,
    LoadJob,
    RelayMetadata,
    SaveJob,
    WorkerCost,
    WorkerReport,
)
from kvrelay.relay.connector.reporting import record_of
from kvrelay.relay.connector.request import (
    LeasedMatch,
    Tracked,
    correct_prefill_stats,
    load_deadline_s,
    load_job,
    multimodal_extras,
    requested_mode,
    unsupported_request,
)
from kvrelay.relay.connector.steps import Steps
from kvrelay.relay.connector.view import candidates, draw_for, relay_view
from kvrelay.relay.keys import BlockKey, child_key, pack_tokens, root_key
from kvrelay.relay.labels import Labels
from kvrelay.relay.record import RelayRecord
from kvrelay.relay.settings import RelaySettings

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)
# A load begins behind the step that is running, which on CPUs may take many seconds. A long lease
# harms nobody: it is given back when the load is reported, and ends with its owner.
LEASE_GRACE_NS = 60_000_000_000


class SchedulerHalf:
    """Relay in EngineCore. Hooks in the order in which vLLM calls them."""

    def __init__(
        self,
        settings: RelaySettings,
        fingerprint: bytes,
        block_tokens: int,
        link: StoreLink,
        *,
        saves_generated: bool = True,
        step_tokens: int = 2048,
    ) -> None:
        """Start.

        Args:
            saves_generated: False where accepted tokens may not be what was computed.
            step_tokens: most tokens that the engine computes in a step.
        """
        self.breaker = Breaker()
        self.cost = StepCost()
        self._settings = settings
        self._policy = parse_policy(
            settings.policy, Costs(step_tokens), settings.exploration, settings.queue_weight
        )
        self._calibration = calibration_of(self._policy, fingerprint, settings.agent)
        self._audit = Audit(self._policy, settings)
        self._fingerprint = fingerprint
        self._block_tokens = block_tokens
        self._link = link
        self._saves_generated = saves_generated
        self._adapters = AdapterDigests()
        self._tracked: dict[str, Tracked] = {}
        self._steps = Steps(self._tracked)
        self._loading: dict[str, Tracked] = {}
        self._loads: list[LoadJob] = []
        self._saves: list[SaveJob] = []
        self._expected: list[ExpectJob] = []
        self._cancelled: set[str] = set()
        self._held: dict[int, int] = {}
        self._corrupt: set[bytes] = set()  # proven bad, to be published anew
        self._pool: BlockPool | None = None
        self._worker_cost = WorkerCost()
        self._dropped_saves = 0

    def bind_block_pool(self, pool: "BlockPool") -> None:
        """Take the pool whose reference counts hold blocks that are being saved."""
        self._pool = pool

    def give_up(self, request_id: str) -> None:
        """After a fault: this request goes on without relay."""
        tracked = self._tracked.get(request_id)
        if tracked is not None:
            tracked.refusal = Reason.FAULT
            tracked.saves = False

    @guarded(lambda: None)
    def on_new_request(self, request: "Request") -> None:
        """A request has come in."""
        labels = Labels.of(request.kv_transfer_params)
        tracked = Tracked(request, requested_mode(request), time.perf_counter(), labels)
        self._tracked[request.request_id] = tracked
        tracked.draw = draw_for(request.session_id, self._fingerprint)
        if labels.is_probe or unsupported_request(request):
            tracked.refusal = Reason.UNSUPPORTED_REQUEST
            tracked.saves = False
        elif tracked.mode is Mode.RECOMPUTE:
            tracked.refusal = Reason.MODE_RECOMPUTE

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int, bool]:
        """How many tokens beyond the local hit to load; called at every admission attempt."""
        tracked = self._tracked[request.request_id]
        tracked.release_plan()
        tracked.note(None, 0)
        start_s = time.perf_counter()
        decision = self._decide(tracked, num_computed_tokens)
        now_s = time.perf_counter()
        if not tracked.admitted:
            tracked.decision = decision
            tracked.local_tokens = num_computed_tokens
            tracked.decided_s = start_s
            tracked.lookup_s = now_s - start_s
        return decision.num_tokens, decision.arm is Arm.RELAY

    @guarded(lambda: None)
    def update_state_after_alloc(
        self, request: "Request", block_ids: list[int], num_external_tokens: int
    ) -> None:
        """Blocks have been allocated: the request is admitted, or its load begins."""
        tracked = self._tracked[request.request_id]
        tracked.block_ids = block_ids
        if num_external_tokens == 0:
            tracked.admitted = True
            return
        # vLLM parks the request now, so whatever happens here, the worker must report it.
        count = -(-num_external_tokens // self._block_tokens)
        try:
            job = load_job(tracked, block_ids[-count:])
        except Exception:
            unread = tuple(LoadBlock(block_id, 0, 0, b"", b"") for block_id in block_ids[-count:])
            job = LoadJob(request.request_id, b"", 0, unread)
            logger.exception("relay fault while planning a load")
            self.breaker.record()
        self._loads.append(job)
        self._loading[request.request_id] = tracked
        tracked.loading = True
        if not tracked.admitted:  # after a preemption the record stays the first admission's
            tracked.admitted = True
            tracked.planned_tokens = num_external_tokens
            tracked.tail_tokens = tracked.plan.match.tail_tokens if tracked.plan else 0
            tracked.ahead_tokens = tracked.plan.match.ahead_tokens if tracked.plan else 0

    def build_connector_meta(self, output: "SchedulerOutput") -> RelayMetadata:
        """Everything the worker half has to do in this step."""
        self._begin_step(output)
        self._plan_saves(output)
        metadata = RelayMetadata(
            self._loads,
            self._saves,
            self._cancelled,
            output.total_num_scheduled_tokens > 0,
            self._expected,
        )
        self._loads, self._saves, self._cancelled, self._expected = [], [], set(), []
        self.cost.end_step()
        return metadata

    @guarded(lambda: None)
    def _begin_step(self, output: "SchedulerOutput") -> None:
        self._steps.begin(output)

    @guarded(lambda: None)
    def step_ended(self) -> None:
        """vLLM has taken in what a step has brought."""
        step = self._steps.end()
        if self._calibration is not None:
            self._calibration.step_ended(step)

    @guarded(lambda: None)
    def update_connector_output(self, output: "KVConnectorOutput") -> None:
        """The worker half's report of the last step."""
        report = output.kv_connector_worker_meta
        if not isinstance(report, WorkerReport):
            return
        self._worker_cost = report.cost
        for block_id in report.released:
            self._release(block_id)
        for outcome in report.loads:
            tracked = self._loading.pop(outcome.request_id, None)
            if tracked is None:
                continue
            tracked.loading = False
            if tracked.outcome is None:
                tracked.outcome = outcome
                tracked.load_s = time.perf_counter() - tracked.decided_s
                if self._calibration is not None:
                    self._calibration.load_ended(tracked, outcome, self._steps.computed)
            tracked.release_plan()
            self._corrupt.update(outcome.corrupt_keys)
            if outcome.failure is not None:
                tracked.refusal = outcome.failure
                loaded_tokens = outcome.num_loaded * self._block_tokens
                correct_prefill_stats(tracked.request, tracked.local_tokens, loaded_tokens)
                if outcome.failure is Reason.LOAD_FAULT:
                    self.breaker.record()

    @guarded(lambda: None)
    def request_finished(self, request: "Request", block_ids: list[int]) -> dict[str, Any] | None:
        """A request is over: publish its rest and its tail, answer its record."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return None
        tracked.see_output(time.perf_counter())
        if tracked.loading:
            # vLLM keeps its blocks until the worker reports the load; so do the leases.
            self._cancelled.add(request.request_id)
        else:
            tracked.release_plan()
            tracked.block_ids = block_ids
            computed = request.num_computed_tokens - request.num_in_flight_tokens
            self._save_blocks(tracked, computed)
            self._save_tail(tracked, computed)
            self._expect(tracked)
        record = self._record(tracked).to_dict()
        self._audit.observe(record)
        return record

    def take_savings(self) -> Savings:
        """What relay saves, as far as that has changed since it was asked last."""
        return self._audit.take()

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine must step once more to hand over or take back blocks."""
        return bool(self._saves or self._held or self._cancelled or self._expected)

    def reset(self) -> None:
        """The engine's weights may have changed: nothing older may be met again."""
        self._fingerprint = root_key(self._fingerprint, salt=f"{time.time_ns()}")
        for tracked in self._tracked.values():
            tracked.saves = False  # part of its KV may be of either weights

    def shutdown(self) -> None:
        """Let go of the store."""
        for tracked in [*self._tracked.values(), *self._loading.values()]:
            tracked.plan = None
        if self._calibration is not None:
            self._calibration.close()
        self._adapters.close()
        self._link.close()

    # Deciding

    def _decide(self, tracked: Tracked, num_local: int) -> Decision:
        request = tracked.request
        attachment = self._link.current
        if tracked.refusal is not None:
            return recompute(tracked.refusal)
        if self.breaker.is_open:
            return recompute(Reason.BREAKER_OPEN)
        if attachment is None:
            return recompute(Reason.STORE_UNAVAILABLE)
        chain = self._chain(tracked)
        if chain is None:
            return recompute(Reason.UNSUPPORTED_REQUEST)
        found = match(
            (attachment.slab, attachment.catalog),
            chain,
            request.all_token_ids,
            num_local,
            request.num_tokens - 1,
        )
        if not tracked.admitted:
            tracked.shared_tokens = found.num_tokens if found is not None else num_local
            tracked.candidate, tracked.deadline_s = None, 0.0
            tracked.steps_before = self._steps.computed
        if found is None or found.num_tokens <= num_local:
            return recompute(Reason.LOCAL_HIT if num_local else Reason.NO_SOURCE)
        slot_bytes = attachment.slab.geometry.slot_bytes
        num_bytes = len(found.headers) * slot_bytes
        tracked.note(Candidate(found.place, found.num_tokens - num_local, num_bytes), 0)
        if len(self._loading) >= self._settings.max_loads_in_flight:
            return recompute(Reason.LOADS_IN_FLIGHT)
        plans: dict[int, Match] = {}
        for plan in found.parts(num_local, self._block_tokens):
            plans.setdefault(plan.num_tokens - num_local, plan)
        loading = self._loading.values()
        offered = candidates(plans, slot_bytes, loading)
        view = relay_view(
            tracked,
            num_local,
            offered,
            others=self._tracked.values(),
            loading=loading,
            running=self._steps.work,
        )
        advice = self._audit.decide(view, request.arrival_time)
        tracked.note(tracked.found, advice.num_tokens)
        decision = decide_in_mode(tracked.mode, advice, offered[0])
        if decision.arm is not Arm.RELAY:
            return decision
        if decision.num_tokens not in plans:
            raise RuntimeError(f"{self._policy.name} asks for {decision.num_tokens} tokens")
        chosen = plans[decision.num_tokens]
        tracked.candidate = next(c for c in offered if c.num_tokens == decision.num_tokens)
        now_ns = time.monotonic_ns()
        tracked.deadline_s = load_deadline_s(decision, self._settings)
        until_ns = now_ns + int(tracked.deadline_s * 1e9) + LEASE_GRACE_NS
        for depth, header in enumerate(chosen.local):
            attachment.leases.take(header.slot, until_ns)
            # Deeper blocks count as older, so that eviction never takes a parent first.
            attachment.slab.accesses[header.slot] = now_ns - depth
        tracked.plan = LeasedMatch(attachment, chosen)
        if any(attachment.slab.state(h.slot) != h.state for h in chosen.local):
            tracked.release_plan()  # evicted between look-up and lease
            return recompute(Reason.LOAD_EVICTED)
        return decision

    def _chain(self, tracked: Tracked) -> BlockChain | None:
        if tracked.chain is None:
            request = tracked.request
            lora = b""
            if request.lora_request is not None:
                digest = self._adapters.get(request.lora_request)
                if digest is None:
                    return None
                lora = digest
            root = root_key(self._fingerprint, request.cache_salt, lora)
            extras = multimodal_extras(request, self._block_tokens)
            tracked.chain = BlockChain(root, self._block_tokens, extras)
        return tracked.chain

    # Saving

    @guarded(lambda: None)
    def _plan_saves(self, output: "SchedulerOutput") -> None:
        """Offer every block that this step completes.

        The worker saves after the step's forward pass, so a block counts whose tokens are
        all known and, this step included, all computed. Under asynchronous scheduling the
        newest output tokens are not known yet; their block comes a step later.
        """
        snapshot = output.kv_connector_block_state
        block_ids = snapshot.block_ids if snapshot is not None else {}
        cached = output.scheduled_cached_reqs
        before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, num_scheduled in output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is None or request_id not in before:
                continue
            if request_id in block_ids:
                tracked.block_ids = block_ids[request_id][0]
            self._save_blocks(tracked, before[request_id] + num_scheduled)

    def _known_tokens(self, tracked: Tracked) -> int:
        request = tracked.request
        return int(request.num_tokens if self._saves_generated else request.num_prompt_tokens)

    def _save_blocks(self, tracked: Tracked, num_computed: int) -> None:
        """Plan saves of whole blocks up to `num_computed` tokens that the store lacks."""
        attachment = self._link.current
        if not tracked.saves or attachment is None or self.breaker.is_open:
            return
        num_full = min(num_computed, self._known_tokens(tracked)) // self._block_tokens
        if num_full <= tracked.next_save:
            return
        chain = self._chain(tracked)
        if chain is None:
            return
        chain.extend(tracked.request.all_token_ids, num_full)
        now_ns = time.monotonic_ns()
        for number in range(tracked.next_save, num_full):
            key = chain.key(number)
            held = None if key in self._corrupt else index.find(attachment.slab, key)
            if held is not None:
                attachment.slab.accesses[held.slot] = now_ns - number
            else:
                self._corrupt.discard(key)
                parent = chain.parent(number) if not chain.extra(number) else BlockKey(bytes(32))
                self._save(tracked.block_ids[number], key, parent, chain.tokens(number))
        tracked.next_save = num_full

    def _save_tail(self, tracked: Tracked, num_computed: int) -> None:
        """Plan the save of a finished request's last, partial block."""
        attachment = self._link.current
        if not tracked.saves or attachment is None or self.breaker.is_open:
            return
        num_tokens = min(num_computed, self._known_tokens(tracked))
        number, rest = divmod(num_tokens, self._block_tokens)
        chain = self._chain(tracked)
        if not rest or chain is None or chain.extra(number) or number > tracked.next_save:
            return
        tokens = pack_tokens(
            tracked.request.all_token_ids[number * self._block_tokens : num_tokens]
        )
        parent = chain.parent(number)
        key = child_key(parent, tokens)
        tracked.tail_key = key
        if index.find(attachment.slab, key) is None:
            self._save(tracked.block_ids[number], key, parent, tokens)

    @guarded(lambda: None, timed=False)
    def _expect(self, tracked: Tracked) -> None:
        """Have the store told who is expected to need what a request has published."""
        job = expect_job(tracked, self._policy)
        if job is not None:
            self._expected.append(job)

    def _save(self, block_id: int, key: BlockKey, parent: BlockKey, tokens: bytes) -> None:
        pool = self._pool
        if pool is None:
            return
        limit = self._settings.max_held_fraction * pool.num_gpu_blocks
        if len(self._held) >= limit:
            self._dropped_saves += 1
            return
        pool.touch([pool.blocks[block_id]])
        self._held[block_id] = self._held.get(block_id, 0) + 1
        self._saves.append(SaveJob(block_id, key, parent, tokens))

    def _release(self, block_id: int) -> None:
        count = self._held.get(block_id, 0)
        if not count or self._pool is None:
            raise RuntimeError(f"block {block_id} is not held")
        if count == 1:
            del self._held[block_id]
        else:
            self._held[block_id] = count - 1
        self._pool.free_blocks([self._pool.blocks[block_id]])

    # Reporting

    def _record(self, tracked: Tracked) -> RelayRecord:
        cost = self._worker_cost
        overhead = {
            "scheduler_s": self.cost.total_s,
            "scheduler_worst_step_s": self.cost.worst_step_s,
            "scheduler_p99_step_s": self.cost.p99_step_s,
            "worker_s": cost.hook_s,
            "worker_worst_step_s": cost.worst_step_s,
            "worker_p99_step_s": cost.p99_step_s,
            "copy_cpu_s": cost.copy_cpu_s,
            "saved_blocks": cost.saved_blocks,
            "dropped_blocks": cost.dropped_blocks + self._dropped_saves,
            "faults": self.breaker.faults,
        }
        return record_of(tracked, self._settings, self._policy.name, self._block_tokens, overhead)
