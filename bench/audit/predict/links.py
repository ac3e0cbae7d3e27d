"""Links that a prediction is made for: given, measured by `kvrelay doctor`, or the usual ones."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from kvrelay.cluster.errors import ConfigError

USUAL_GBIT = (1.0, 10.0, 25.0, 100.0, 200.0)
# A relay asks the source, and then reads.
ROUND_TRIPS = 2
_NODE_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class Wire:
    """What KV would come over.

    Attributes:
        name: for the table.
        bytes_per_s: of one transfer that has it for itself.
        latency_s: what a relay waits for besides: its round trips.
    """

    name: str
    bytes_per_s: float
    latency_s: float = 0.0


def given_wire(gbit: float, rtt_ms: float = 0.0) -> Wire:
    """A link of a rate in 1e9 bits a second and a round-trip time.

    Raises:
        ConfigError: the rate is not positive, or the time negative, or one is not finite.
    """
    if not (math.isfinite(gbit) and gbit > 0):
        raise ConfigError(f"--link-gbit {gbit:g}: give what a TCP stream gets, such as 25")
    if not (math.isfinite(rtt_ms) and rtt_ms >= 0):
        raise ConfigError(f"--rtt-ms {rtt_ms:g}: give the time that `ping` shows, such as 0.2")
    name = f"{gbit:g} Gbit/s" + (f", {rtt_ms:g} ms" if rtt_ms else "")
    return Wire(name, gbit * 1e9 / 8, ROUND_TRIPS * rtt_ms / 1e3)


def usual_wires(rtt_ms: float = 0.0) -> list[Wire]:
    """What one may think of where nothing is known."""
    return [given_wire(gbit, rtt_ms) for gbit in USUAL_GBIT]


def measured_wires(text: str, where: str) -> list[Wire]:
    """The links in what `kvrelay doctor --json` prints, both directions, by each transport.

    Its latency is that of a small read, the asking included: all round trips of a relay.

    Args:
        text: the JSON.
        where: it is from, for errors.

    Raises:
        ConfigError: it is something else, or has no link that works.
    """
    try:
        rows = json.loads(text)["links"]
        wires = [_wire(row) for row in rows if not row["failure"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--links {where}: not what `kvrelay doctor --json` prints ({error!r})"
        ) from None
    if not wires:
        raise ConfigError(
            f"--links {where}: no link that works: a cluster of one node has none; "
            "give --link-gbit and --rtt-ms"
        )
    return wires


def _wire(row: dict[str, Any]) -> Wire:
    ends = " to ".join(str(row[end])[:_NODE_CHARACTERS] for end in ("source", "reader"))
    rate, latency_s = float(row["gb_per_s"]), float(row["latency_s"])
    if not (rate > 0 and latency_s >= 0 and math.isfinite(rate + latency_s)):
        raise ValueError(f"link {ends}: gb_per_s {rate}, latency_s {latency_s}")
    way = str(row["transport"]) + (f", {row['path']}" if row["path"] else "")
    return Wire(f"{ends} ({way})", rate * 1e9, latency_s)
