"""Errors that reach the person who runs kvrelay.

KvrelayError
 +- ConfigError      a configuration file or command-line value that cannot work
 +- ModelError       a model that is not there, is damaged or cannot be fetched
 +- LifecycleError   the cluster could not be started, joined, reached or stopped

Every message is one clear line that names what is wrong and the remedy; the CLI prints it as it is.
"""

from __future__ import annotations


class KvrelayError(Exception):
    """Root of the errors that are shown without a traceback.

    Args:
        message: one line, the cause first, then the remedy.

    Picklable (Ray carries it between processes): the message is the only argument.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(KvrelayError):
    """A configuration that cannot work; the message names the path of the field."""


class ModelError(KvrelayError):
    """A model that is missing, damaged or cannot be fetched."""


class LifecycleError(KvrelayError):
    """The cluster could not be started, joined, reached or stopped."""
