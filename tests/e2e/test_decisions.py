"""The decision log of the running app: a stream's record by its id, and the log summed up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from calls import OPERATOR, complete, prompt_ids, record
from openai import OpenAI


def decisions(app: Any, answer: str) -> httpx.Response:
    url = f"{app.url}/kvrelay/decisions/{answer}"
    return httpx.get(url, headers=OPERATOR, timeout=30, trust_env=False)


def test_only_operators_read_it(app: Any) -> None:
    url = f"{app.url}/kvrelay/decisions/cmpl-1"
    assert httpx.get(url, timeout=30, trust_env=False).status_code == 403


def cli(app: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvrelay.cluster.cli", "decisions", *words],
        env={**os.environ, "XDG_RUNTIME_DIR": str(app.runtime_dir)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_the_record_of_a_stream(app: Any, client: OpenAI) -> None:
    stream = client.completions.create(
        model="b",
        prompt=prompt_ids(60, 200),
        max_tokens=3,
        stream=True,
        extra_headers={"X-Session-ID": "a session"},
    )
    (answer,) = {chunk.id for chunk in stream}
    told = decisions(app, answer)
    assert told.status_code == 200, told.text
    (one,) = told.json()["data"]
    assert (one["agent"], one["reason"], one["decision"]["arm"]) == ("b", "no_source", "recompute")
    assert one["prompt_tokens"] == one["recomputed_tokens"] == 200
    assert one["session_id"] == "a session"
    assert one["replica"]
    assert one["schema_version"] == 1
    rows = cli(app, "tail", "--no-follow", "--json", "--session", "a session").stdout.splitlines()
    assert [json.loads(row)["response_id"] for row in rows] == [answer]


def test_a_chat_stream(app: Any, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Count to ten."}]
    stream = client.chat.completions.create(model="a", messages=messages, stream=True)
    (answer,) = {chunk.id for chunk in stream}
    told = decisions(app, answer)
    assert told.status_code == 200, told.text
    assert [each["agent"] for each in told.json()["data"]] == ["a"]


def test_the_record_is_the_one_in_the_answer(app: Any, client: OpenAI) -> None:
    answer = complete(client, "a", prompt_ids(61, 150))
    (one,) = decisions(app, answer.id).json()["data"]
    assert one == record(answer)


def test_an_answer_of_several_requests(app: Any, client: OpenAI) -> None:
    prompts: Any = [prompt_ids(62, 40), prompt_ids(63, 50)]
    answer = client.completions.create(
        model="b", prompt=prompts, n=2, max_tokens=2, temperature=0.5
    )
    records = decisions(app, answer.id).json()["data"]
    assert sorted(each["prompt_tokens"] for each in records) == [40, 40, 50, 50]


def test_an_unknown_id(app: Any) -> None:
    told = decisions(app, "cmpl-nobody")
    assert told.status_code == 404
    error = told.json()["error"]
    assert error["code"] == "decision_not_found"
    assert "cmpl-nobody" in error["message"]


def test_the_summary_counts_what_was_asked(app: Any, client: OpenAI) -> None:
    def count(reason: str) -> int:
        content = json.loads(cli(app, "summary", "--agent", "b", "--json").stdout)
        assert content["skipped"] == 0
        return sum(each["requests"] for each in content["groups"] if each["reason"] == reason)

    before = count("mode_recompute")
    answer = complete(client, "b", prompt_ids(64, 60), mode="recompute")
    assert decisions(app, answer.id).status_code == 200  # it is in the log then
    assert count("mode_recompute") == before + 1


def test_records_are_found_once_their_file_is_full(
    app: Any, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session,) = app.sessions(monkeypatch)
    directory = Path(session.decisions)
    first = complete(client, "b", [7], max_tokens=1)
    known = set(directory.glob("b--*.parquet"))
    for _ in range(100):  # a sixteenth of the log's bytes is some 40 records
        complete(client, "b", [7], max_tokens=1)
        if set(directory.glob("b--*.parquet")) - known:
            break
    else:
        pytest.fail(f"no file became full: {sorted(directory.iterdir())}")
    (one,) = decisions(app, first.id).json()["data"]
    assert one == record(first)
    assert json.loads(cli(app, "summary", "--json").stdout)["skipped"] == 0
