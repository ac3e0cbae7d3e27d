"""A store in a process of its own, to be killed or stopped by a test."""

import sys
import threading
import time

from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore

server = StoreServer(StoreCore(int(sys.argv[2]), time.monotonic_ns), sys.argv[1])
print("ready", flush=True)
threading.Event().wait()
