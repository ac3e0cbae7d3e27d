"""What a scrape of the running app's Ray says about relays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from calls import complete, prompt_ids, publish, record
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from kvrelay.bench.settle import StoreWatch
from kvrelay.relay import metric_names as names

WAIT_S = 60.0  # Ray's processes report every 10 s


def counts(url: str, name: str, label: str, agent: str | None = None) -> dict[str, float]:
    """Values of a metric by one of its labels, those of an agent if one is given."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.name == f"ray_{name}" and sample.labels.get("model_name") == agent:
                key = sample.labels.get(label, "")
                found[key] = found.get(key, 0.0) + sample.value
    return found


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.5)
    return value


def status(app: Any) -> dict[str, Any]:
    """What `kvrelay status` tells of the app."""
    command = [sys.executable, "-m", "kvrelay.cluster.cli", "status", "--json"]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(app.runtime_dir)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["clusters"]
    return dict(row)


def test_what_a_scrape_and_status_say(
    app: Any, client: OpenAI, store: StoreWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session,) = app.sessions(monkeypatch)
    (url,) = session.metrics

    def of_b(name: str, label: str) -> dict[str, float]:
        return counts(url, name, label, "b")

    before = of_b(names.REQUESTS, "reason")
    prompt = prompt_ids(77, 600)
    publish(store, client, "a", prompt)
    content = record(complete(client, "b", [*prompt, 7]))
    assert content["reason"] == "relayed"
    assert content["similarity_band"] == "high"
    assert content["first_token_s"] > 0
    # A stream carries no record, and is counted all the same.
    complete(client, "a", unseen := prompt_ids(78, 300))
    stream = client.completions.create(
        model="b",
        prompt=[*unseen, 7],
        max_tokens=1,
        stream=True,
        extra_body={"kv_transfer_params": {"kvrelay": {"mode": "recompute"}}},
    )
    for _ in stream:
        pass
    refused = before.get("mode_recompute", 0)
    wait_for(lambda: of_b(names.REQUESTS, "reason").get("mode_recompute", 0) > refused)
    reasons = of_b(names.REQUESTS, "reason")
    assert reasons["relayed"] > before.get("relayed", 0)
    assert of_b(names.DECISIONS, "arm")["relay"] >= reasons["relayed"]
    assert of_b(names.DECISIONS, "reason")["mode_recompute"] >= reasons["mode_recompute"]
    assert of_b(names.BAND_REQUESTS, names.BAND_LABEL)["high"] >= 1
    assert of_b(names.BAND_HITS, names.BAND_LABEL)["high"] >= 1
    tokens = of_b(names.BAND_TOKENS, names.BAND_LABEL)["high"]
    assert tokens >= content["relayed_tokens"]
    assert of_b(names.TRANSFER_BYTES, "path")["arena"] >= content["num_bytes"]
    assert of_b(names.TRANSFER_SECONDS, "path")["arena"] > 0
    assert counts(url, names.REQUESTS, "reason", "plain") == {}

    room, used = names.STORE_CAPACITY_BYTES, names.STORE_USED_BYTES
    wait_for(lambda: counts(url, used, "place").get("arena", 0) >= content["num_bytes"])
    assert counts(url, room, "place") == {"arena": 512 << 20, "encoded": 0}
    assert counts(url, names.STORE_BLOCKS, "place")["arena"] > 0
    assert counts(url, names.STORE_LEASES, "place").keys() == {""}

    row = status(app)
    assert row["silent_metrics"] == []
    told = row["metrics"]
    assert told["requests"]["relayed"] >= reasons["relayed"]
    assert told["band_relayed_tokens"]["high"] >= tokens
    assert told["store_capacity_bytes"] == {"arena": 512 << 20, "encoded": 0}
    assert told["store_used_bytes"]["arena"] >= content["num_bytes"]
