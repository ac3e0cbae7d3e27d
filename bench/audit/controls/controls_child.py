"""What the controls do inside their engine's process, and nowhere else: see trials.py.

Nothing outside that process and its tests imports this, and no setting leads here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvrelay.policies import Reason

if TYPE_CHECKING:
    from kvrelay.relay.connector.loads import Loads
    from kvrelay.relay.connector.metadata import LoadBlock, LoadJob


def ignore_checksums(loads: Loads) -> None:
    """Force the guard off: bytes that are not what was published count as loaded all the same.

    All else stays as it is: what is copied, and that the slot has not been given away meanwhile.
    """

    def copy(job: LoadJob, block: LoadBlock) -> Reason | None:
        failure = type(loads)._copy(loads, job, block)
        return None if failure is Reason.LOAD_CORRUPT else failure

    loads._copy = copy  # type: ignore[method-assign]


def heed_checksums(loads: Loads) -> None:
    """The guard as it always is."""
    vars(loads).pop("_copy", None)


def kv_shapes(driver: Any) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of the KV tensor of each layer."""
    core = driver.engine.engine_core.engine_core
    caches = core.model_executor.driver_worker.worker.model_runner.kv_caches
    return [(tuple(cache.shape), str(cache.dtype)) for cache in caches]
