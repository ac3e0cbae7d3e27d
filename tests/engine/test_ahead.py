"""KV that is on the next agent's node before its request is, with real engines on two nodes."""

import pytest
from harness import BLOCK, Settled, text_tokens
from nodes import Wire, wait_for

from kvrelay.policies.prediction import Pull
from kvrelay.relay.store import StoreCore

OTHER = [7, 11, 13, 17]
NEXT_IS_B = {"agent": "a", "next_agent": "b", "next_probability": 1.0}


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast reads have been on a loaded machine decides nothing here."""
    monkeypatch.setattr(Pull, "pays", True)


def num_blocks(wire: Wire, name: str) -> int:
    return wire.nodes[name].server.call(StoreCore.stats)["blocks"]


def test_what_one_agent_has_read_and_written_waits_for_the_next(
    distant_pair: tuple[Settled, Settled], wire: Wire
) -> None:
    a, b = distant_pair
    prompt = text_tokens(700, 5 * BLOCK + 9)
    written = a.one(prompt, max_tokens=BLOCK, labels=NEXT_IS_B)
    assert written["record"]["next_agent"] == "b"
    # All but the last token that was generated, whose KV nobody has computed.
    context = prompt + written["tokens"][:-1]
    wait_for(lambda: num_blocks(wire, "n2") == -(-len(context) // BLOCK), 20.0)
    record = b.one(context + OTHER, labels={"agent": "b", "foreseen": True})["record"]
    assert (record["reason"], record["load_path"]) == ("relayed", "arena")
    assert record["relayed_tokens"] == record["ahead_tokens"] == len(context)
    assert (record["fetched_bytes"], record["foreseen"]) == (0, True)
    stats = wire.nodes["n2"].transfers.run(wire.nodes["n2"].transfers.stats)
    assert stats["ahead_used_blocks"] == stats["ahead_blocks"] > 0


def test_without_an_expectation_nothing_comes(
    distant_pair: tuple[Settled, Settled], wire: Wire
) -> None:
    a, b = distant_pair
    prompt = text_tokens(701, 4 * BLOCK)
    a.one(prompt, labels={"agent": "a"})
    a.one(prompt, labels={**NEXT_IS_B, "next_agent": "elsewhere"})
    assert num_blocks(wire, "n2") == 0
    record = b.one(prompt + OTHER)["record"]
    assert (record["load_path"], record["ahead_tokens"]) == ("nodes", 0)
