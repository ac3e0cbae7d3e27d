"""In what an engine can differ from another one."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What engine B has otherwise than engine A."""

    SAME = "same"  # nothing: KV of one is KV of the other
    WEIGHTS = "weights"  # the same architecture; one tensor of A's weights, a little changed
    DTYPE = "dtype"
    BLOCK_SIZE = "block_size"  # tokens of an engine block
    ARCHITECTURE = "architecture"  # the same vocabulary, and nothing else
