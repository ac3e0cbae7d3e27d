"""Per-request control of relay: `kv_transfer_params: {"kvrelay": {"mode": ...}}`.

The dictionary is untyped on its way through vLLM, which accepts anything in it; it is
checked here, once, so that a typing error is an answer and not a silent default. The ingress
does so: it alone sees who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvrelay.agents.errors import RequestError
from kvrelay.policies.modes import OPEN_MODES, Mode

FIELD = "kv_transfer_params.kvrelay"


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
        if key != "mode":
            raise RequestError(400, f"{FIELD}.{key}: unknown field; known: mode", f"{FIELD}.{key}")
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


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
