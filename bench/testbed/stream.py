"""Plain TCP, to know what a wire carries: on Python alone, between namespaces or Ray nodes.

    python stream.py send ADDRESS                          prints its port, serves one reader
    python stream.py receive ADDRESS PORT BYTES REPEATS    prints the seconds of each read, as JSON

The reader asks for a number of bytes and times until it has them all, as a store that reads
from another store does. All repeats go over one connection; before them one read warms it up.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time

CHUNK_BYTES = 2**20
TIMEOUT_S = 120.0
_REQUEST = struct.Struct("!Q")


class Sender:
    """The end that is asked for bytes."""

    def __init__(self, address: str) -> None:
        """Listen there, on a port of the system's choice."""
        self._listener = socket.create_server((address, 0))
        self._listener.settimeout(TIMEOUT_S)

    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Serve one connection to its end: for every number that comes, that many bytes."""
        chunk = memoryview(bytes(CHUNK_BYTES))
        with self._listener:
            connection, _ = self._listener.accept()
        connection.settimeout(TIMEOUT_S)
        with connection, connection.makefile("rb") as requests:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request := requests.read(_REQUEST.size):
                (left,) = _REQUEST.unpack(request)
                while left > 0:
                    part = chunk[: min(left, CHUNK_BYTES)]
                    connection.sendall(part)
                    left -= len(part)


def receive(address: str, port: int, num_bytes: int, repeats: int) -> list[float]:
    """Seconds of each read of `num_bytes`."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with socket.create_connection((address, port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _read(connection, buffer, min(num_bytes, CHUNK_BYTES))
        return [_read(connection, buffer, num_bytes) for _ in range(repeats)]


def _read(connection: socket.socket, buffer: memoryview, num_bytes: int) -> float:
    start_s = time.perf_counter()
    connection.sendall(_REQUEST.pack(num_bytes))
    left = num_bytes
    while left > 0:
        count = connection.recv_into(buffer, min(left, CHUNK_BYTES))
        if count == 0:
            raise ConnectionError("the sender has gone")
        left -= count
    return time.perf_counter() - start_s


def main() -> None:
    """Be one end."""
    if sys.argv[1] == "send":
        sender = Sender(sys.argv[2])
        print(sender.port(), flush=True)
        sender.serve()
    else:
        address, port, num_bytes, repeats = sys.argv[2:]
        print(json.dumps(receive(address, int(port), int(num_bytes), int(repeats))))


if __name__ == "__main__":
    main()
