"""What a scrape of the running app's Ray says about relays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest
from calls import complete, prompt_ids, record
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

WAIT_S = 60.0  # Ray's processes report every 10 s
# A process of its own: this one must not join a Ray.
PORT = """
import ray

ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
(node,) = ray.nodes()
print(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics")
"""


def metrics_url(app: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    (session,) = app.sessions(monkeypatch)
    environment = {
        **os.environ,
        "RAY_ADDRESS": session.ray_address,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": session.ray_token,
    }
    command = [sys.executable, "-c", PORT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def counts(url: str, name: str, agent: str, label: str) -> dict[str, float]:
    """Values of a counter of an agent, by one of its labels."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.name == f"ray_{name}" and sample.labels["model_name"] == agent:
                key = sample.labels[label]
                found[key] = found.get(key, 0.0) + sample.value
    return found


def test_relays_by_reason_and_bytes_by_path(
    app: Any, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = metrics_url(app, monkeypatch)
    before = counts(url, "kvrelay_requests_total", "b", "reason")
    prompt = prompt_ids(77, 600)
    complete(client, "a", prompt)
    num_bytes, num_relayed = 0, 0
    deadline_s = time.monotonic() + WAIT_S
    while not num_relayed:  # a's blocks are saved in the background
        prompt = [*prompt[:-1], prompt[-1] + 1]
        content = record(complete(client, "b", prompt))
        num_bytes += content["num_bytes"]
        num_relayed += content["reason"] == "relayed"
        assert time.monotonic() < deadline_s
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
    deadline_s = time.monotonic() + WAIT_S
    while True:
        reasons = counts(url, "kvrelay_requests_total", "b", "reason")
        if reasons.get("mode_recompute", 0) > before.get("mode_recompute", 0):
            break
        assert time.monotonic() < deadline_s, reasons
        time.sleep(0.5)
    assert reasons["relayed"] - before.get("relayed", 0) >= num_relayed
    assert counts(url, "kvrelay_transfer_bytes_total", "b", "path")["arena"] >= num_bytes
    assert counts(url, "kvrelay_requests_total", "plain", "reason") == {}
