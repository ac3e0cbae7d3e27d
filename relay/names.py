"""Names by which the parts of one cluster find each other.

They carry kvrelay's version: stores of different versions do not meet.
"""

from importlib.metadata import version

NAMESPACE = "kvrelay"


def directory_name() -> str:
    """The directory's actor."""
    return f"directory-{version('kvrelay')}"


def store_prefix() -> str:
    """What the name of every store's actor begins with; its node follows."""
    return f"store-{version('kvrelay')}-"


def store_name(node_id: str) -> str:
    """The actor of a node's store."""
    return store_prefix() + node_id


def store_address(node_id: str) -> str:
    """The socket of a node's store."""
    return f"kvrelay-{version('kvrelay')}-{node_id}"
