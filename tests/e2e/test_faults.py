"""Parts of the running app are killed: every request to a living agent is answered, rightly."""

from __future__ import annotations

import time
from typing import Any

import psutil
from calls import complete, prompt_ids, publish, record
from openai import OpenAI

from kvrelay.bench.settle import StoreWatch


def processes(app: Any, title: str) -> list[psutil.Process]:
    """The app's processes whose title begins so, of agent `a` first."""
    tree = psutil.Process(app.process.pid).children(recursive=True)
    return [process for process in tree if "".join(process.cmdline()[:1]).startswith(title)]


def tokens(answer: Any) -> list[int]:
    return answer.choices[0].token_ids


def test_the_store_is_killed_and_comes_back(app: Any, client: OpenAI) -> None:
    prompt = prompt_ids(5050, 400)
    want = tokens(complete(client, "plain", prompt))
    complete(client, "a", prompt[:390])
    time.sleep(0.5)
    (store,) = processes(app, "ray::KVStore")
    store.kill()
    store.wait(10)
    answer = complete(client, "b", prompt)
    assert tokens(answer) == want
    assert record(answer)["reason"] in ("store_unavailable", "no_source")
    # Ray starts it again, empty; relay goes on by itself.
    deadline_s = time.monotonic() + 60
    seed = 5000  # prompts of no other test, which b would hold itself
    while time.monotonic() < deadline_s:
        prompt = prompt_ids(seed, 300)
        seed += 1
        complete(client, "a", prompt)
        time.sleep(0.5)
        content = record(complete(client, "b", [*prompt, 7]))
        if content["relayed_tokens"] == 300:  # fewer if a's saves were not over
            break
    assert (content["reason"], content["relayed_tokens"]) == ("relayed", 300)


def test_the_producers_engine_is_killed_and_its_work_stays(
    app: Any, client: OpenAI, store: StoreWatch
) -> None:
    prompt = prompt_ids(5051, 500)
    publish(store, client, "a", prompt)
    replica = next(
        process
        for process in psutil.Process(app.process.pid).children(recursive=True)
        if "agent:a" in " ".join(process.cmdline())
    )
    for engine in replica.children(recursive=True):
        engine.kill()
    content = record(complete(client, "b", [*prompt, 7]))
    assert (content["reason"], content["relayed_tokens"]) == ("relayed", 500)
