"""What the nodes of a simulated cluster hold, and the links between them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice


class Blocks:
    """Blocks up to a limit: the least recently used goes, of one prompt the deepest first."""

    def __init__(self, limit: int) -> None:
        """Take how many there is room for."""
        self._limit = limit
        self._held: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._held

    def leading(self, blocks: Sequence[int]) -> int:
        """How many from the first one on are held."""
        for count, block in enumerate(blocks):
            if block not in self._held:
                return count
        return len(blocks)

    def use(self, blocks: Sequence[int]) -> None:
        """They, or those of them that are held, have been used."""
        for block in reversed(blocks):
            if block in self._held:
                self._held.move_to_end(block)

    def add(self, blocks: Sequence[int]) -> list[int]:
        """Hold them all, as used now; what has to go for them."""
        for block in reversed(blocks):
            self._held[block] = None
            self._held.move_to_end(block)
        excess = list(islice(self._held, max(0, len(self._held) - self._limit)))
        for block in excess:
            del self._held[block]
        return excess


class Stores:
    """The store of every node, and who holds what."""

    def __init__(self, num_nodes: int, limit: int) -> None:
        """Take how many blocks a node has room for."""
        self._of_node = [Blocks(limit) for _ in range(num_nodes)]
        self._holders: dict[int, set[int]] = {}

    def of(self, node: int) -> Blocks:
        """What a node holds; to add to it is `add`'s job."""
        return self._of_node[node]

    def holders(self, block: int) -> set[int]:
        """The nodes that hold a block."""
        return self._holders.get(block, set())

    def add(self, node: int, blocks: Sequence[int]) -> None:
        """A node holds these too from now on."""
        for block in blocks:
            self._holders.setdefault(block, set()).add(node)
        for block in self._of_node[node].add(blocks):
            self._holders[block].discard(node)


class Links:
    """A way into the network for each node: one transfer at a time out, and one in.

    Transfers wait in the order in which they are asked for, for both ends; they go as fast as
    the slower end.
    """

    def __init__(self, bytes_per_s: Sequence[float], fixed_s: Sequence[float]) -> None:
        """Take rate and time to begin of each node's."""
        self._bytes_per_s = bytes_per_s
        self._fixed_s = fixed_s
        self._sends_until_s = [0.0] * len(bytes_per_s)
        self._receives_until_s = [0.0] * len(bytes_per_s)
        self.busy_s = 0.0

    def sends_until_s(self, node: int) -> float:
        """When a node could begin to send something else."""
        return self._sends_until_s[node]

    def send(
        self, source: int, target: int, num_bytes: int, now_s: float, slowdown: float
    ) -> tuple[float, float]:
        """Queue a transfer; when its first byte comes, and its last one."""
        begin_s = max(now_s, self._sends_until_s[source], self._receives_until_s[target])
        begin_s += max(self._fixed_s[source], self._fixed_s[target])
        rate = min(self._bytes_per_s[source], self._bytes_per_s[target])
        duration_s = slowdown * num_bytes / rate
        end_s = begin_s + duration_s
        self._sends_until_s[source] = self._receives_until_s[target] = end_s
        self.busy_s += duration_s
        return begin_s, end_s
