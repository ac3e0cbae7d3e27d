"""How a read is cut: small pieces first, so that the first blocks can be used early."""

from collections.abc import Sequence


def growing_batches(sizes: Sequence[int], limit_bytes: int) -> list[int]:
    """Cut spans of these sizes into consecutive batches; how many spans each has.

    The first is one span, each further one at most twice as many bytes as the one before it and
    at most `limit_bytes`; each has at least one span.
    """
    batches: list[int] = []
    filled = allowed = 0
    for size in sizes:
        if batches and filled + size <= allowed:
            batches[-1] += 1
            filled += size
        else:
            allowed = min(2 * filled, limit_bytes)  # 0 at first: one span only
            batches.append(1)
            filled = size
    return batches
