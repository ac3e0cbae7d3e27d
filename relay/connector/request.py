"""One request as the scheduler half sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvrelay.policies import Candidate, Decision, Reason
from kvrelay.policies.decision import recompute
from kvrelay.policies.modes import Mode
from kvrelay.relay.blocks import BlockChain, Match
from kvrelay.relay.client import Attachment
from kvrelay.relay.connector.metadata import LoadBlock, LoadJob, LoadOutcome
from kvrelay.relay.keys import BlockKey, digest_fields
from kvrelay.relay.labels import Labels
from kvrelay.relay.settings import RelaySettings

if TYPE_CHECKING:
    from vllm.v1.request import Request

# No prediction makes a load give up earlier: engines hand loads over between their steps.
DEADLINE_FLOOR_S = 2.0


@dataclass(slots=True)
class LeasedMatch:
    """A match whose slots on this node are leased until it is released."""

    attachment: Attachment
    match: Match

    def release(self) -> None:
        """Give the leases back."""
        for header in self.match.local:
            self.attachment.leases.release(header.slot)


@dataclass(slots=True)
class Tracked:
    """What the scheduler half knows about a live request.

    Attributes:
        request: vLLM's request, read only.
        labels: what the ingress told of it.
        refusal: a reason that holds for the request's whole life; None if there is none.
        saves: whether its blocks may be published.
        chain: its block keys; None while its root is not known.
        plan: slots leased for it, from look-up until the load is reported.
        loading: a load has been handed to the worker and not been reported.
        block_ids: its engine blocks, as last told.
        next_save: first block that has not been offered to the store.
        tail_key: of the started block behind its whole ones, once that is published.
        ahead_tokens: of its plan, those that had come ahead of the request.
        found: all that is held beyond the local hit; None if nothing is, or nobody has looked.
        advised_tokens: how many of those tokens the policy would relay.
        candidate: what is being loaded, as the policy saw it.
        shared_tokens: those that are cached here or can be had; None if nobody looked.
        deadline_s: after how long its load is given up, once the worker has it.
        steps_before: steps that the engine had computed at the decision.
        draw: what chance says of it, in [0, 1), however often it is decided.
        first_token_s: from the decision to the first token; None before.
    """

    request: "Request"
    mode: Mode
    arrived_s: float
    labels: Labels = field(default_factory=Labels)
    refusal: Reason | None = None
    saves: bool = True
    chain: BlockChain | None = None
    plan: LeasedMatch | None = None
    loading: bool = False
    admitted: bool = False
    block_ids: Sequence[int] = ()
    next_save: int = 0
    tail_key: BlockKey | None = None
    ahead_tokens: int = 0
    found: Candidate | None = None
    advised_tokens: int = 0
    decision: Decision = field(default_factory=lambda: recompute(Reason.NO_SOURCE))
    local_tokens: int = 0
    planned_tokens: int = 0
    tail_tokens: int = 0
    candidate: Candidate | None = None
    shared_tokens: int | None = None
    steps_before: int = 0
    draw: float = 0.5
    deadline_s: float = 0.0
    first_token_s: float | None = None
    outcome: LoadOutcome | None = None
    decided_s: float = 0.0
    lookup_s: float = 0.0
    load_s: float = 0.0

    def note(self, found: Candidate | None, advised_tokens: int) -> None:
        """What a look-up has brought; after a preemption the record stays the first admission's."""
        if not self.admitted:
            self.found, self.advised_tokens = found, advised_tokens

    def see_output(self, now_s: float) -> None:
        """Note when the first token has come, from the decision on."""
        if self.first_token_s is None and self.request.num_output_tokens:
            self.first_token_s = now_s - self.decided_s

    @property
    def shared_prefix_fraction(self) -> float | None:
        """Of the prompt, what the engine had and what could be had; None if nobody looked."""
        if self.shared_tokens is None:
            return None
        return float(self.shared_tokens / self.request.num_prompt_tokens)

    def release_plan(self) -> None:
        """Give back leases, if any."""
        plan, self.plan = self.plan, None
        if plan is not None:
            plan.release()


def load_deadline_s(decision: Decision, settings: RelaySettings) -> float:
    """After how long a load is given up: what it is predicted to take, times a patience, if that
    is less than the setting."""
    if decision.load_p95_s is None:
        return settings.load_deadline_s
    patience_s = max(DEADLINE_FLOOR_S, settings.load_patience * decision.load_p95_s)
    return min(settings.load_deadline_s, patience_s)


def load_job(tracked: Tracked, block_ids: Sequence[int]) -> LoadJob:
    """The job that loads what is leased for a request into these engine blocks."""
    plan = tracked.plan
    if plan is None:
        raise RuntimeError("vLLM loads tokens that were not offered")
    absent = plan.match.absent
    blocks = tuple(
        LoadBlock(
            block_id,
            None if number in absent else header.slot,
            header.state,
            header.checksum,
            header.key,
        )
        for number, (block_id, header) in enumerate(zip(block_ids, plan.match.headers, strict=True))
    )
    incarnation = plan.attachment.slab.incarnation
    discards = tracked.mode is Mode.PULL_AND_DISCARD
    return LoadJob(tracked.request.request_id, incarnation, tracked.deadline_s, blocks, discards)


def unsupported_request(request: "Request") -> bool:
    """Requests whose KV is neither relayed nor published.

    prompt_logprobs need every position computed; embeddings have all-zero token ids, which
    collide; a resumable request's tokens may still change; the weights of an adapter that is
    replaced in place change under its number and name.
    """
    sampling, adapter = request.sampling_params, request.lora_request
    return (
        sampling is None
        or sampling.prompt_logprobs is not None
        or request.skip_reading_prefix_cache
        or request.prompt_embeds is not None
        or request.prompt_is_token_ids is not None
        or request.resumable
        or (adapter is not None and adapter.load_inplace)
    )


def requested_mode(request: "Request") -> Mode:
    """The request's `kv_transfer_params.kvrelay.mode`; `auto` if it does not say.

    The ingress has answered malformed ones with 400 and those without permission with 403; what
    comes here otherwise is on the safe side: whatever is no mode recomputes.
    """
    params = request.kv_transfer_params
    ours = params.get("kvrelay") if isinstance(params, dict) else None
    if ours is None:
        return Mode.AUTO
    mode: Any = ours.get("mode", Mode.AUTO) if isinstance(ours, dict) else None
    try:
        return Mode(mode)
    except ValueError:
        return Mode.RECOMPUTE


def correct_prefill_stats(request: "Request", local_tokens: int, loaded_tokens: int) -> None:
    """Have vLLM count as external what has been loaded, and the rest as computed.

    vLLM counts a load's tokens when it begins and does not take them back if it fails. After a
    preemption its figures stay those of the first admission.
    """
    stats = request.prefill_stats
    if stats is not None and request.num_preemptions == 0:
        stats.set(request.num_prompt_tokens, local_tokens, loaded_tokens)


def multimodal_extras(request: "Request", block_tokens: int) -> dict[int, bytes]:
    """Digest of the multimodal items in each block, by block number."""
    fields: dict[int, list[bytes]] = {}
    for feature in request.mm_features:
        position = feature.mm_position
        first = position.offset // block_tokens
        last = (position.offset + position.length - 1) // block_tokens
        for number in range(first, last + 1):
            offset = position.offset - number * block_tokens
            fields.setdefault(number, []).append(f"{feature.identifier}@{offset}".encode())
    return {number: digest_fields(parts, b"kvrelay.mm") for number, parts in fields.items()}


def adapter_folder(path: str) -> Path:
    """Where an adapter's files are.

    Raises:
        FileNotFoundError: not on this machine.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no adapter folder {path}")
    return folder
