"""Who may ask what, told from a request's headers.

Only the ingress sees them, so only it decides; behind it no field says what a request may, and
there is nothing for a client to forge. It is given digests, never a token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvrelay.cluster.config import ClusterConfig, OperatorConfig
from kvrelay.cluster.errors import ConfigError

logger = logging.getLogger(__name__)
OPERATOR_HEADER = "x-kvrelay-operator"
OPEN_WARNING = (
    "operator.open: whoever reaches this endpoint may see what others have asked and spend the "
    "cluster's bandwidth; this is for demonstrations only"
)


@dataclass(frozen=True, slots=True)
class Access:
    """What the headers of a request allow.

    Attributes:
        operator_sha256: of the operator's token, in hex; None if there is no operator.
        operator_open: everybody is an operator.
    """

    operator_sha256: str | None = field(default=None, repr=False)
    operator_open: bool = False

    @property
    def withheld_headers(self) -> frozenset[bytes]:
        """Names, in lower case, of headers that are for the ingress alone."""
        return frozenset({OPERATOR_HEADER.encode()})

    def operator_allowed(self, headers: Mapping[str, str]) -> bool:
        """Whether this request may use what is for operators only.

        Args:
            headers: by names in lower case, or without regard to case as Starlette's are.
        """
        if self.operator_open:
            return True
        token = headers.get(OPERATOR_HEADER)
        if token is None or self.operator_sha256 is None:
            return False
        return hmac.compare_digest(_sha256(_header_bytes(token)), self.operator_sha256)


def make_access(config: ClusterConfig) -> Access:
    """What the configuration allows; warns if it opens everything.

    Raises:
        ConfigError: it names an environment variable that is not there.
    """
    if config.operator.open:
        logger.warning(OPEN_WARNING)
    return Access(_operator_sha256(config.operator), config.operator.open)


def _operator_sha256(operator: OperatorConfig) -> str | None:
    if operator.token_env is None:
        return operator.token_sha256
    token = os.environ.get(operator.token_env)
    if not token:
        raise ConfigError(
            f"operator.token_env: the environment has no {operator.token_env}; "
            "set it where the application is built, or give operator.token_sha256"
        )
    return _sha256(token.encode())


def _header_bytes(value: str) -> bytes:
    """What was sent: servers read headers as Latin-1."""
    return value.encode("latin-1", "replace")


def _sha256(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
