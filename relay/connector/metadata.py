"""What the scheduler half and the worker half tell each other, once per engine step."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvrelay.policies import Reason
from kvrelay.relay.protocol import FetchEnded


@dataclass(frozen=True, slots=True)
class LoadBlock:
    """Copy a slot into an engine block; state and checksum are what look-up found.

    Without a slot the block has to come from another node first.
    """

    block_id: int
    slot: int | None
    state: int
    checksum: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Blocks of one request, in order, given up `deadline_s` after the worker has got them.

    Not after the decision: vLLM starts loads behind the forward pass of their step, which on CPUs
    may take longer than any load.

    A load that `discards` is reported as failed with all its blocks once they have come.
    """

    request_id: str
    incarnation: bytes
    deadline_s: float
    blocks: tuple[LoadBlock, ...]
    discards: bool = False


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Publish one engine block; the scheduler half holds it until it is reported."""

    block_id: int
    key: bytes
    parent: bytes
    tokens: bytes


@dataclass(frozen=True, slots=True)
class ExpectJob:
    """Tell the store who is expected to need these blocks next, see `directory.Expected`."""

    agent: str
    probability: float
    prefill_s: float | None
    keys: tuple[bytes, ...]


@dataclass(slots=True)
class RelayMetadata(KVConnectorMetadata):
    """Scheduler half to worker half."""

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    has_tokens: bool = True
    expected: list[ExpectJob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """How a load ended. `num_loaded` blocks from the first on are good; `failure` is None if
    all are. `wait_s` is from the job's arrival to its first copy, `copy_s` to its last.
    The worker has the store forget `corrupt_keys`. `fetched` tells of blocks that came from
    other nodes."""

    request_id: str
    num_loaded: int
    num_bytes: int
    wait_s: float
    copy_s: float
    failure: Reason | None
    corrupt_keys: tuple[bytes, ...] = ()
    fetched: FetchEnded | None = None


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """What relay has cost this worker since it started.

    Attributes:
        hook_s: CPU seconds of the main thread in hooks of steps that computed tokens.
        copy_cpu_s: CPU seconds of the copy threads.
        worst_step_s: longest wall time inside one such step.
        p99_step_s: 99th percentile of the CPU time over the recent steps.
        saved_blocks, dropped_blocks: blocks published, and given up.
    """

    hook_s: float = 0.0
    copy_cpu_s: float = 0.0
    worst_step_s: float = 0.0
    p99_step_s: float = 0.0
    saved_blocks: int = 0
    dropped_blocks: int = 0


@dataclass(slots=True)
class WorkerReport(KVConnectorWorkerMetadata):
    """Worker half to scheduler half."""

    released: list[int] = field(default_factory=list)
    loads: list[LoadOutcome] = field(default_factory=list)
    cost: WorkerCost = field(default_factory=WorkerCost)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerReport":
        """Relay runs on single-rank engines only, so there is never anything to merge."""
        raise NotImplementedError("relay runs on single-rank engines only")
