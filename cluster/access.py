"""Who may ask what, told from a request's headers.

Only the ingress sees them, so only it decides; behind it no field says what a request may, and
there is nothing for a client to forge. It is given digests, never a token or a key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers

from kvrelay.agents.errors import RequestError
from kvrelay.cluster.config import ClusterConfig, OperatorConfig
from kvrelay.cluster.errors import ConfigError

logger = logging.getLogger(__name__)
OPERATOR_HEADER = "x-kvrelay-operator"
KEY_VARIABLE = "OPENAI_API_KEY"  # of the environment; OpenAI's own clients read it
NO_KEY = "none"  # OpenAI's clients want a key, also where the endpoint does not
_WANTED = "API key; send it as 'Authorization: Bearer KEY'"
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
        tenant_keys: names of tenants by SHA-256 of their API keys, in hex.
        tenant_header: instead, the header in which a gateway names the tenant, in lower case.
    """

    operator_sha256: str | None = field(default=None, repr=False)
    operator_open: bool = False
    tenant_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    tenant_header: str | None = None

    @property
    def withheld_headers(self) -> frozenset[bytes]:
        """Names, in lower case, of headers that are for the ingress alone."""
        names = {OPERATOR_HEADER, "authorization", self.tenant_header}
        return frozenset(name.encode() for name in names if name is not None)

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

    def tenant(self, headers: Headers) -> str | None:
        """Whose request this is; None where there is one tenant only.

        Raises:
            RequestError: 401, it is nobody's.
        """
        if self.tenant_header is not None:
            return _single(headers, self.tenant_header, f"{self.tenant_header} from the gateway")
        if not self.tenant_keys:
            return None
        scheme, _, key = _single(headers, "authorization", _WANTED).partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized(f"no {_WANTED}")
        name = self.tenant_keys.get(_sha256(_header_bytes(key.strip())))
        if name is None:
            raise _unauthorized("unknown API key")
        return name


def make_access(config: ClusterConfig) -> Access:
    """What the configuration allows; warns if it opens everything.

    Raises:
        ConfigError: it names an environment variable that is not there.
    """
    if config.operator.open:
        logger.warning(OPEN_WARNING)
    keys = config.tenants.api_keys if config.tenants else []
    header = config.tenants.trusted_header if config.tenants else None
    return Access(
        operator_sha256=_operator_sha256(config.operator),
        operator_open=config.operator.open,
        tenant_keys={key.api_key_sha256: key.name for key in keys},
        tenant_header=header.lower() if header else None,
    )


def client_key(config: ClusterConfig) -> str:
    """The API key that commands send to an endpoint with this configuration, from the environment.

    Raises:
        ConfigError: their requests would be refused with 401; with the remedy.
    """
    tenants = config.tenants
    if tenants is None:
        return NO_KEY
    if tenants.trusted_header is not None:
        raise ConfigError(
            "tenants.trusted_header: this command does not come by the gateway that sets "
            f"{tenants.trusted_header}; give a configuration without tenants, or with api_keys"
        )
    key = os.environ.get(KEY_VARIABLE, "")
    if _sha256(key.encode()) not in {each.api_key_sha256 for each in tenants.api_keys}:
        what = "is no key of any tenant" if key else "is not set"
        raise ConfigError(
            f"tenants.api_keys: {KEY_VARIABLE} {what}, so requests would be refused with 401; "
            "set it in the environment to an API key whose SHA-256 stands there"
        )
    return key


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


def _single(headers: Headers, name: str, wanted: str) -> str:
    """The value of a header; of two, one may be the client's and one the gateway's."""
    values = headers.getlist(name)
    if len(values) > 1:
        raise _unauthorized(f"header {name} is there {len(values)} times")
    if not values or not values[0].strip():
        raise _unauthorized(f"no {wanted}")
    return values[0].strip()


def _unauthorized(message: str) -> RequestError:
    return RequestError(401, message, None)


def _header_bytes(value: str) -> bytes:
    """What was sent: servers read headers as Latin-1."""
    return value.encode("latin-1", "replace")


def _sha256(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
