"""Modes that need operator permission, with it and without."""

from __future__ import annotations

from typing import Any

import pytest
from calls import complete, prompt_ids, publish, record
from openai import OpenAI, PermissionDeniedError

from kvrelay.bench.settle import StoreWatch

BLOCK = 128
GATED = ["relay", "lookup_only", "pull_and_discard"]


@pytest.mark.parametrize("mode", GATED)
@pytest.mark.parametrize("headers", [{}, {"X-Kvrelay-Operator": "end to"}], ids=["none", "wrong"])
def test_without_permission(client: OpenAI, mode: str, headers: dict[str, str]) -> None:
    with pytest.raises(PermissionDeniedError) as caught:
        complete(client, "b", prompt_ids(70, 10), mode=mode, extra_headers=headers)
    error: Any = caught.value.body
    assert (error["type"], error["code"]) == ("permission_error", "permission_denied")
    assert error["param"] == "kv_transfer_params.kvrelay.mode"


def test_with_permission(client: OpenAI, operator: OpenAI, store: StoreWatch) -> None:
    want = {"relay": "relayed", "lookup_only": "mode_lookup_only"}
    for seed, mode in enumerate(GATED, 71):
        prompt = prompt_ids(seed, 600)
        publish(store, client, "a", prompt)
        content = record(complete(operator, "b", [*prompt, 5000], mode=mode))
        assert (content["mode"], content["reason"]) == (mode, want.get(mode, "mode_discard"))
        held = 600 // BLOCK * BLOCK
        assert content["found_tokens"] >= held
        assert (content["relayed_tokens"] >= held) == (mode == "relay")
        assert (content["num_bytes"] > 0) == (mode != "lookup_only")
        assert content["overhead"]["faults"] == 0
