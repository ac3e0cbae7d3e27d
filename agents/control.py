"""Per-request control of relay: `kv_transfer_params: {"kvrelay": {"mode": ..., "next": AGENT}}`.

The dictionary is untyped on its way through vLLM, which accepts anything in it; it is
checked here, once, so that a typing error is an answer and not a silent default. The ingress
does so: it alone sees who asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kvrelay.agents.errors import RequestError
from kvrelay.policies.modes import OPEN_MODES, Mode

FIELD = "kv_transfer_params.kvrelay"
NEXT_FIELD = f"{FIELD}.next"
_KNOWN = ("mode", "next")


def parse_mode(kv_transfer_params: Mapping[str, Any] | None, is_operator: bool) -> Mode:
    """The mode that a request asks for; `auto` if it does not say.

    Raises:
        RequestError: 400 if malformed, 403 if the mode needs operator permission.
    """
    if not kv_transfer_params or "kvrelay" not in kv_transfer_params:
        return Mode.AUTO
    control = kv_transfer_params["kvrelay"]
    if not isinstance(control, Mapping):
        raise RequestError(400, f"{FIELD} must be an object, got {_kind(control)}", FIELD)
    for key in control:
        if key not in _KNOWN:
            message = f"{FIELD}.{key}: unknown field; known: {', '.join(_KNOWN)}"
            raise RequestError(400, message, f"{FIELD}.{key}")
    value = control.get("mode", Mode.AUTO)
    field = f"{FIELD}.mode"
    try:
        mode = Mode(value)
    except ValueError:
        allowed = ", ".join(sorted(Mode if is_operator else OPEN_MODES))
        message = f"{field} must be one of {allowed}; got {value!r}"
        raise RequestError(400, message, field) from None
    if mode not in OPEN_MODES and not is_operator:
        raise RequestError(403, f"{field}: '{mode}' needs operator permission", field)
    return mode


def parse_next(kv_transfer_params: Mapping[str, Any] | None, agents: Collection[str]) -> str | None:
    """The agent that a request says will go on with its prompt; None if it does not say.

    Args:
        kv_transfer_params: which `parse_mode` has found to be well formed.
        agents: that there are.

    Raises:
        RequestError: 400, it is none of them.
    """
    name = (kv_transfer_params or {}).get("kvrelay", {}).get("next")
    if name is None:
        return None
    if not isinstance(name, str) or name not in agents:
        known = ", ".join(sorted(agents))
        raise RequestError(400, f"{NEXT_FIELD} must be one of {known}; got {name!r}", NEXT_FIELD)
    return name


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
