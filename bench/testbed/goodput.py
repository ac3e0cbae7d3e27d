"""What plain TCP makes of the wire: what a stream carries, and how long a round trip is."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrelay.bench.errors import BenchError
from kvrelay.bench.testbed import stream
from kvrelay.bench.testbed.link import Link
from kvrelay.bench.testbed.network import Node

MIN_BYTES, MAX_BYTES = 4 * 2**20, 96 * 2**20
REPEATS = 3
ROUND_TRIPS = 11
_AIM_S = 0.8
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """One measurement.

    Attributes:
        bits_per_s: of each read, payload only.
        num_bytes: how long a read was.
    """

    bits_per_s: tuple[float, ...]
    num_bytes: int

    @property
    def median_bits_per_s(self) -> float:
        """The figure that counts."""
        return statistics.median(self.bits_per_s)


def read_bytes(link: Link) -> int:
    """How long a read is to be: most of a second where the rate is known, else the longest."""
    if link.bits_per_s is None:
        return MAX_BYTES
    return min(MAX_BYTES, max(MIN_BYTES, int(link.bits_per_s / 8 * _AIM_S)))


def command(node: Node, words: Sequence[str]) -> list[str]:
    """One end of the stream, inside the node's network; -I -S: nothing but Python's own."""
    program = [sys.executable, "-I", "-S", str(Path(stream.__file__))]
    return ["ip", "netns", "exec", node.namespace, *program, *words]


def measure(source: Node, reader: Node, num_bytes: int, repeats: int = REPEATS) -> Goodput:
    """Read from another node a few times.

    Raises:
        BenchError: the stream broke off.
    """
    times_s = _read(source, reader, num_bytes, repeats)
    return Goodput(tuple(8 * num_bytes / seconds for seconds in times_s), num_bytes)


def round_trips_s(source: Node, reader: Node, repeats: int = ROUND_TRIPS) -> list[float]:
    """Ask another node for a byte and wait for it, a few times.

    Raises:
        BenchError: the stream broke off.
    """
    return _read(source, reader, 1, repeats)


def _read(source: Node, reader: Node, num_bytes: int, repeats: int) -> list[float]:
    with subprocess.Popen(
        command(source, ["send", source.address]), stdout=subprocess.PIPE, text=True
    ) as sender:
        try:
            assert sender.stdout is not None
            port = sender.stdout.readline().strip()
            done = subprocess.run(
                command(reader, ["receive", source.address, port, str(num_bytes), str(repeats)]),
                capture_output=True,
                text=True,
                check=True,
                timeout=_TIMEOUT_S,
            )
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise BenchError(f"the plain TCP stream broke off: {reason}") from None
        except subprocess.TimeoutExpired:
            raise BenchError(f"the plain TCP stream took over {_TIMEOUT_S:.0f} s") from None
        finally:
            sender.kill()
    return list(json.loads(done.stdout))
