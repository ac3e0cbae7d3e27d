"""The scheduler half of an engine that cannot relay: it only says so in the record."""

from typing import TYPE_CHECKING, Any

from kvrelay.policies import Reason
from kvrelay.policies.decision import recompute
from kvrelay.relay.connector.audit import Savings
from kvrelay.relay.connector.metadata import RelayMetadata
from kvrelay.relay.connector.request import requested_mode
from kvrelay.relay.labels import Labels
from kvrelay.relay.record import RelayRecord
from kvrelay.relay.settings import RelaySettings

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class OffHalf:
    """Same hooks as `SchedulerHalf`, nothing behind them but the local hit's size."""

    has_pending_work = False

    def __init__(self, settings: RelaySettings, reason: Reason) -> None:
        self._settings = settings
        self._reason = reason
        self._local_tokens: dict[str, int] = {}

    def bind_block_pool(self, pool: "BlockPool") -> None:
        """No blocks are held."""

    def on_new_request(self, request: "Request") -> None:
        """Nothing to find out."""

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Nothing comes from outside."""
        self._local_tokens.setdefault(request.request_id, num_computed_tokens)
        return 0, False

    def update_state_after_alloc(
        self, request: "Request", block_ids: list[int], num_external_tokens: int
    ) -> None:
        """Nothing to load."""

    def build_connector_meta(self, output: "SchedulerOutput") -> RelayMetadata:
        """Nothing to do for the worker."""
        return RelayMetadata()

    def update_connector_output(self, output: "KVConnectorOutput") -> None:
        """The worker has nothing to report."""

    def step_ended(self) -> None:
        """Nothing is measured."""

    def request_finished(self, request: "Request", block_ids: list[int]) -> dict[str, Any]:
        """The record: everything beyond the local hit was computed here, and why."""
        local = self._local_tokens.pop(request.request_id, 0)
        return RelayRecord(
            **Labels.of(request.kv_transfer_params).in_record(self._settings.agent),
            policy="never",
            mode=requested_mode(request),
            decision=recompute(self._reason),
            reason=self._reason,
            prompt_tokens=request.num_prompt_tokens,
            local_tokens=local,
            recomputed_tokens=request.num_prompt_tokens - local,
            request_id=request.request_id,
            time_s=request.arrival_time,
            replica=self._settings.replica,
            session_id=request.session_id,
        ).to_dict()

    def take_savings(self) -> Savings:
        """Nothing is saved."""
        return {}

    def reset(self) -> None:
        """Nothing is remembered."""

    def shutdown(self) -> None:
        """Nothing to let go of."""
