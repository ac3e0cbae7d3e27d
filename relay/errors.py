"""Every error of the data plane, in one tree.

RelayError
├── ArenaError         the arena cannot be made or mapped
│   └── OutOfMemory    this machine cannot hold the asked capacity
├── StoreUnavailable   no connection to the node's store, or it did not answer in time
└── ProtocolError      a message that the contract does not allow
"""


class RelayError(Exception):
    """Root of the data plane's errors."""


class ArenaError(RelayError):
    """The arena cannot be made or mapped; the message holds the remedy."""


class OutOfMemory(ArenaError):
    """This machine or container cannot hold an arena of the asked capacity."""


class StoreUnavailable(RelayError):
    """No connection to the node's store, or no answer in time. The caller recomputes."""


class ProtocolError(RelayError):
    """A message between store and client that the contract does not allow."""
