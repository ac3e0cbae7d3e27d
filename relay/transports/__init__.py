"""The ways of reading from another node's store, best first."""

import logging
from collections.abc import Callable

from kvrelay.relay.transports.base import Transport

logger = logging.getLogger(__name__)


def _nixl() -> Transport:
    from kvrelay.relay.transports.isolated import IsolatedTransport

    return IsolatedTransport()


def _plasma() -> Transport:
    from kvrelay.relay.transports.plasma import PlasmaTransport

    return PlasmaTransport()


_MAKERS: dict[str, Callable[[], Transport]] = {"nixl": _nixl, "plasma": _plasma}


def make_transports() -> dict[str, Transport]:
    """All that work on this machine, warm; what does not work is said once and left out."""
    made: dict[str, Transport] = {}
    for name, make in _MAKERS.items():
        try:
            transport = make()
            transport.warm_up()
            made[name] = transport
        except Exception as error:
            logger.warning("no transport '%s' on this node: %s", name, error)
    return made
