"""The wire between the two nodes: how fast and how long it is, and the command for its rate."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvrelay.cluster.errors import ConfigError

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_LINK = re.compile(rf"(?:{_NUMBER}([kmg])bit|unshaped)(?:-{_NUMBER}ms)?")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}
# The bucket must hold a segment as the stack hands it down (64 KiB) and what flows between two
# of the kernel's timer ticks; what it holds passes unshaped, so no more than that.
_MIN_BURST_BYTES = 2**17
_BURST_S = 0.002
_MIN_QUEUE_BYTES = 2**18
_QUEUE_S = 0.02
# A slow wire holds less of both, and the kernel cuts segments up. Otherwise packets would take
# seconds, and TCP, which learns that, would wait seconds after a loss once the wire is fast again.
_MAX_HELD_S = 0.25
_PACKET_BYTES = 2**12
MAX_RTT_S = 0.5


@dataclass(frozen=True, slots=True)
class Link:
    """How the wire is.

    Attributes:
        name: as it was asked for, `1gbit` or `100mbit-5ms`.
        bits_per_s: its rate; None leaves it as fast as the machine copies.
        rtt_s: what it adds to a round trip, half in each direction.
    """

    name: str
    bits_per_s: int | None
    rtt_s: float = 0.0

    def shape_command(self, namespace: str, device: str) -> list[str]:
        """Give one end of the wire this rate for what it sends; works while traffic flows.

        Source: tc-tbf(8).
        """
        command = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root"]
        if self.bits_per_s is None:
            return [*command, "noqueue"]
        bytes_per_s = self.bits_per_s / 8
        most_bytes = max(_PACKET_BYTES, int(bytes_per_s * _MAX_HELD_S))
        burst_bytes = min(most_bytes, max(_MIN_BURST_BYTES, int(bytes_per_s * _BURST_S)))
        queue_bytes = min(most_bytes, max(_MIN_QUEUE_BYTES, int(bytes_per_s * _QUEUE_S)))
        rate = ["tbf", "rate", f"{self.bits_per_s}bit"]
        return [*command, *rate, "burst", str(burst_bytes), "limit", str(queue_bytes)]


UNSHAPED = Link("unshaped", None)


def parse_link(text: str) -> Link:
    """`unshaped`, or a rate such as `1gbit`, `200mbit`; and a round-trip time, `100mbit-5ms`.

    Raises:
        ConfigError: none of these.
    """
    match = _LINK.fullmatch(text)
    bits_per_s = int(float(match[1]) * _UNITS[match[2]]) if match and match[1] else None
    rtt_s = float(match[3]) / 1000 if match and match[3] else 0.0
    if match is None or bits_per_s == 0 or rtt_s > MAX_RTT_S:
        raise ConfigError(
            f"link '{text}': give {UNSHAPED.name} or a rate such as 1gbit, 40mbit; then, if it "
            f"is to be long, the round-trip time: 100mbit-5ms, at most {MAX_RTT_S * 1000:.0f}ms"
        )
    return Link(text, bits_per_s, rtt_s)
