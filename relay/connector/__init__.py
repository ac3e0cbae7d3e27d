"""RelayConnector: vLLM's door to the node's KV store.

Named in an engine's configuration by `kv_connector_module_path: kvrelay.relay.connector`.
vLLM makes one in EngineCore and one in the worker; each does one half's work, and this
class only says which. It must never make a request wrong or fail: see guard.py.
"""

import logging
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from kvrelay.policies import Reason
from kvrelay.relay.client import StoreLink
from kvrelay.relay.connector.identity import fingerprint, slot_bytes, unsupported
from kvrelay.relay.connector.metadata import RelayMetadata
from kvrelay.relay.connector.metrics import RelayMetrics, RelayStats
from kvrelay.relay.connector.off import OffHalf
from kvrelay.relay.connector.scheduler import SchedulerHalf
from kvrelay.relay.connector.worker import WorkerHalf
from kvrelay.relay.decisions.log import DecisionLog, open_log
from kvrelay.relay.labels import Labels
from kvrelay.relay.settings import RelaySettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)
FIRST_ATTACH_S = 5.0


class RelayConnector(KVConnectorBase_V1, SupportsHMA):
    """Both halves of relay behind vLLM's connector interface (KVConnectorBase_V1)."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        role: KVConnectorRole,
        kv_cache_config: "KVCacheConfig",
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = RelaySettings.from_extra_config(
            self._kv_transfer_config.kv_connector_extra_config
        )
        self._stats = RelayStats()
        self._log: DecisionLog | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._log = open_log(settings)
        self._worker: WorkerHalf | None = None
        self._scheduler: SchedulerHalf | OffHalf = OffHalf(settings, Reason.RELAY_OFF)
        unfit = unsupported(vllm_config, kv_cache_config)
        if unfit is not None:
            self._scheduler = OffHalf(settings, Reason.UNSUPPORTED_MODEL)
        if unfit is not None or settings.store is None:
            if role is KVConnectorRole.SCHEDULER:
                logger.warning("relay is off for this engine: %s", unfit or "no store configured")
            return
        try:
            self._start(settings.store, settings, vllm_config, kv_cache_config)
        except Exception:
            logger.exception("relay is off for this engine")

    def _start(
        self,
        store: str,
        settings: RelaySettings,
        vllm_config: "VllmConfig",
        kv_cache_config: "KVCacheConfig",
    ) -> None:
        block_tokens = vllm_config.cache_config.block_size
        num_bytes = slot_bytes(kv_cache_config)
        if self.role is KVConnectorRole.WORKER:
            link = StoreLink(store, "worker", num_bytes, block_tokens)
            self._worker = WorkerHalf(link, kv_cache_config.num_blocks, num_bytes)
        else:
            digest = fingerprint(vllm_config, kv_cache_config, weight_epoch="").digest()
            link = StoreLink(store, "scheduler", num_bytes, block_tokens, settings.agent)
            self._scheduler = SchedulerHalf(
                settings,
                digest,
                block_tokens,
                link,
                saves_generated=vllm_config.speculative_config is None,
                step_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
            )
        if not link.wait(FIRST_ATTACH_S):
            logger.warning("no store answers at '%s'; relay starts when one does", store)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache, not a hand-off: what is not delivered is recomputed."""
        return False

    # Scheduler half

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        self._scheduler.bind_block_pool(gpu_block_pool)

    def on_new_request(self, request: "Request") -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        block_ids = blocks.get_block_ids()[0]
        self._scheduler.update_state_after_alloc(request, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        return self._scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        self._scheduler.update_connector_output(connector_output)

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        record = self._scheduler.request_finished(request, block_ids)
        if record is None or Labels.of(request.kv_transfer_params).is_probe:
            return False, None
        self._stats.add(record)
        self._stats.add_savings(self._scheduler.take_savings())
        if self._log is not None:
            self._log.offer(record)
            self._stats.add_dropped(self._log.take_dropped())
        return False, {"kvrelay": record}

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0] if block_ids else [])

    def has_pending_push_work(self) -> bool:
        return self._scheduler.has_pending_work

    def reset_cache(self) -> bool | None:
        self._scheduler.reset()
        return True

    # Metrics

    def get_kv_connector_stats(self) -> RelayStats | None:
        """What requests have become since the last step; only the scheduler half knows.

        vLLM asks at the end of every step, which the scheduler half takes as such.
        """
        self._scheduler.step_ended()
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, RelayStats()
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> RelayStats:
        return RelayStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> RelayMetrics:
        return RelayMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Worker half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self._worker is not None:
            self._worker.register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        if self._worker is not None and isinstance(metadata, RelayMetadata):
            self._worker.start_loads(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are never part of a forward pass."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: "AttentionMetadata",
        **kwargs: Any,
    ) -> None:
        """Saves are whole blocks, after the forward pass."""

    def wait_for_save(self) -> None:
        """The scheduler half holds the blocks, so the forward pass waits for nothing."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        metadata = self._get_connector_metadata()
        if self._worker is None or not isinstance(metadata, RelayMetadata):
            return None, None
        return None, self._worker.finish_step(metadata, finished_req_ids) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed_block_ids() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._worker.report() if self._worker is not None else None

    def shutdown(self) -> None:
        self._scheduler.shutdown()
        if self._log is not None:
            self._log.close()
        if self._worker is not None:
            self._worker.shutdown()
