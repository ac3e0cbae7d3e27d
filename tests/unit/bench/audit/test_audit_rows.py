"""Rows of what was seen, and what a unit's measurement demands of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from fake_audit import content

from kvrelay.bench.audit import measure
from kvrelay.bench.audit.asking import Reply
from kvrelay.bench.audit.design import Ask, Unit
from kvrelay.bench.audit.material import FRACTIONS, Prompts, fraction
from kvrelay.bench.audit.measure import Measurement, Processes
from kvrelay.bench.audit.plan import load_plan
from kvrelay.bench.audit.rows import kept_blocks, prefill_s
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.quality import Output
from kvrelay.bench.audit.workload.sessions import Session, Shape, Turn, steps
from kvrelay.bench.errors import BenchError, Miscount
from kvrelay.bench.quiet import Watched
from kvrelay.policies.modes import Mode

NEAR = Stratum("same-node", 512, "idle", "high", "en")
FAR = Stratum("100mbit", 512, "idle", "high", "en")
PROMPTS = Prompts(tuple(range(384)), tuple(range(512)), 384, jaccard=0.7)


def reply(tokens: Sequence[int], cached: int = 0, name: str = "x") -> Reply:
    output = Output(tuple(tokens), tuple({token: -0.5} for token in tokens))
    return Reply(name, 0.2, 0.3, output, " ".join(map(str, tokens)), cached)


@dataclass
class Cluster:
    """Everything that a measurement touches, in memory; it answers at once.

    Attributes:
        told: what was asked of it, in order.
        relayed: tokens of a relay; `load_path`, where they come from.
        deaf_at: so many have been told when nobody answers; `read_there`: of each path checked.
        wrong: tokens that every engine has besides.
    """

    told: list[Any] = field(default_factory=list)
    relayed: int = 384
    wrong: int = 0
    deaf: bool = False
    deaf_at: int = -1
    load_path: str = "nodes"
    read_there: list[bool] = field(default_factory=list)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    salts: int = 0
    alone_s: dict[int, float] = field(default_factory=lambda: {512: 0.01})
    slowness: float = 1.0

    # As the client

    def ask(self, agent: str, prompt: Sequence[int], mode: str, salt: str, count: int) -> Reply:
        self.told.append((agent, len(prompt), str(mode), salt, count))
        if (self.deaf and count > 1) or len(self.told) == self.deaf_at:
            raise BenchError("nobody there")
        relayed = self.relayed if mode in (Mode.RELAY, Mode.AUTO) else 0
        name = f"cmpl-{len(self.told)}"
        local = sum(told[0] == agent and told[3] == salt for told in self.told[:-1]) * 384
        self.records[name] = {
            "relayed_tokens": relayed,
            "local_tokens": local,
            "num_bytes": 3000 if relayed or mode == Mode.PULL_AND_DISCARD else 0,
            "wire_bytes": 1000 if relayed else 0,
            "transfer_s": 0.05,
            "first_token_s": 0.19,
            "load_s": 0.04,
            "load_path": self.load_path,
            "reason": "relayed" if relayed else "mode_recompute",
            "decision": {"arm": "relay", "relay_s": 0.1, "recompute_s": 0.4} if relayed else {},
            "overhead": dict.fromkeys(
                ("scheduler_s", "worker_s", "copy_cpu_s"), 0.1 * len(self.told)
            ),
        }
        return reply(range(count), relayed + local + self.wrong * (count > 1), name)

    def record_of(self, answer: str) -> dict[str, Any]:
        return self.records[answer]

    # As the bench, its places, its store and its gate

    @property
    def here(self) -> Cluster:
        return self

    @property
    def there(self) -> Cluster:
        return self

    @property
    def store(self) -> Cluster:
        return self

    @property
    def gate(self) -> Cluster:
        return self

    def be_at(self, link: str) -> bool:
        return False

    def salt(self) -> str:
        self.salts += 1
        return f"s{self.salts}"

    def source(self, cell: Any) -> tuple[Cluster, str]:
        return self, "a-near" if cell.link == "same-node" else "a"

    def received_bytes(self, there: bool = False) -> int:
        return 0

    def check_path(self, cell: Any, record: Any, received: int, there: bool = False) -> None:
        self.told.append("path")
        self.read_there.append(there)

    def committed(self) -> int:
        return 0

    def wait(self, *_: int) -> None:
        return None

    def wait_known(self, source: Any) -> None:
        self.told.append("known")

    def watch(self, request: Callable[[], Any]) -> tuple[Any, Watched]:
        return request(), Watched(0.0, True, 0.1, 0.0)

    # As the material

    def pair(self, stratum: Stratum, text: int) -> Prompts:
        return PROMPTS

    def session(
        self, stratum: Stratum, text: int, prompts: Prompts, shape: Shape, turns: int
    ) -> Session:
        first, second, *rest = steps(shape, turns)
        found = [Turn(first.agent), Turn(second.agent, second.extends, prompts.own)]
        for number, step in enumerate(rest, 3):
            own = tuple(range(1000 * number, 1000 * number + 64))
            found.append(Turn(step.agent, step.extends, own))
        return Session(prompts.first, prompts.first, tuple(found))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(measure, "_STILL_S", 0.0)
    monkeypatch.setattr(measure, "set_way", lambda *way: found.told.append(way))
    return found


def measurement(cluster: Any) -> Measurement:
    plan = load_plan(content(output_tokens=4, message_tokens=8))
    processes = Processes((), (), 3)
    return Measurement(plan, cluster, cluster, cluster, processes, lambda: 7.0)


def unit(design: str, stratum: Stratum, *arms: str, **fields: Any) -> Unit:
    return Unit(design, stratum, tuple((Ask(arm, 5),) for arm in arms), 0, **fields)


def asks(cluster: Cluster) -> list[Any]:
    """Requests, in order."""
    return [told for told in cluster.told if isinstance(told, tuple) and len(told) == 5]


def test_a_pair_within_a_node(cluster: Cluster) -> None:
    rows = measurement(cluster).measure(unit("paired", NEAR, "recompute", "relay"))
    assert cluster.told == [
        ("a-near", 384, "recompute", "s1", 1),
        ("b", 512, "recompute", "s1", 4),
        ("a-near", 384, "recompute", "s2", 1),
        ("b", 512, "relay", "s2", 4),
        "path",
    ]
    control, relay = rows
    assert (control["arm"], control["completed"], control["relayed_tokens"]) == (
        "recompute",
        False,
        0,
    )
    assert (relay["arm"], relay["completed"], relay["relayed_tokens"]) == ("relay", True, 384)
    assert control["pair"] == relay["pair"] and control["session"] == relay["session"]
    assert control["request"] != relay["request"]
    assert (relay["place"], relay["time_s"], relay["in_flight"]) == (1, 7.0, 0)
    assert (relay["ttft_s"], relay["e2e_s"], relay["session_s"]) == (0.2, 0.3, 0.6)
    assert relay["prefill_s"] == pytest.approx(0.15)
    same = {name: relay[name] for name in ("agreement", "logprob_drift", "bleu", "rouge_l")}
    assert same == {"agreement": 1.0, "logprob_drift": 0.0, "bleu": 1.0, "rouge_l": 1.0}
    assert relay["perplexity"] == pytest.approx(2.71828**0.5, rel=1e-4)
    assert "correct" not in relay  # these prompts have no known answer
    # Asked of the same request, whatever the arm.
    assert control["predicted_recompute_s"] == relay["predicted_recompute_s"] == 0.4
    assert control["decided"] is relay["decided"] is None
    assert relay["shared_prefix_fraction"] == 0.75 and relay["jaccard"] == 0.7
    assert relay["kv_bytes"] == 7 * 1000  # 3 blocks of 1,000 bytes at A, 4 at B
    assert relay["tokens_per_s"] > 0
    assert not relay["failed"] and not relay["not_quiet"]


def test_the_cosine_is_a_label_and_decides_nothing(cluster: Cluster) -> None:
    class Labelled(Cluster):
        def pair(self, stratum: Stratum, text: int) -> Prompts:
            return replace(PROMPTS, cosine=0.25)

    labelled, asked = Labelled(), unit("paired", NEAR, "recompute", "relay")
    plain = measurement(cluster).measure(asked)
    found = measurement(labelled).measure(asked)
    assert [row["cosine"] for row in plain] == [None, None]
    assert [row["cosine"] for row in found] == [0.25, 0.25]
    assert labelled.told == cluster.told and len(asks(labelled)) == 4
    for name in ("arm", "decided", "reason", "completed", "relayed_tokens", "propensity"):
        assert [row[name] for row in found] == [row[name] for row in plain]


def test_over_a_link_b_has_to_hear_of_it(cluster: Cluster) -> None:
    rows = measurement(cluster).measure(unit("paired", FAR, "relay"))
    assert cluster.told[:3] == [
        ("a", 384, "recompute", "s1", 1),
        "known",
        ("b", 512, "relay", "s1", 4),
    ]
    assert (rows[0]["wire_s"], rows[0]["wire_bytes"], rows[0]["bytes_moved"]) == (0.05, 1000, 3000)


def test_codecs_are_set_and_set_back(cluster: Cluster) -> None:
    one = measurement(cluster)
    one.measure(unit("paired", FAR, "relay_lz4", "relay_split", "relay", "relay_raw"))
    one.measure(unit("paired", NEAR, "relay_lz4"))  # nothing is encoded within a node
    ways = [told for told in cluster.told if told[0] == "nixl"]
    assert ways == [("nixl", "lz4"), ("nixl", "split"), ("nixl", "raw")]


def test_who_is_asked(cluster: Cluster) -> None:
    one = measurement(cluster)
    for arm in ("owner_affinity", "shared_pool"):
        (row,) = one.measure(unit("sessions", FAR, arm))
        assert (row["cached_tokens"], row["completed"]) == (384, False)
    asked = [told[0] for told in asks(cluster)]
    assert asked == ["a", "a", "b", "b"]


def test_a_session_goes_on_with_what_a_wrote(cluster: Cluster) -> None:
    one = measurement(cluster)
    one.measure(unit("sessions", NEAR, "relay"))
    one.measure(unit("sessions", NEAR, "text_only"))
    lengths = [told[1] for told in asks(cluster)]
    assert lengths == [384, 512 + 8, 384, 8 + 128]


def several(arm: str, stratum: Stratum, shape: Shape = Shape.PIPELINE, turns: int = 4) -> Unit:
    return unit("sessions", stratum, arm, shape=shape, turns=turns)


def test_a_pipeline_goes_back_and_forth_under_one_salt(cluster: Cluster) -> None:
    rows = measurement(cluster).measure(several("relay", FAR))
    assert cluster.told == [
        ("a", 384, "recompute", "s1", 8),
        "known",
        ("b", 384 + 8 + 128, "relay", "s1", 4),
        "path",
        "known",
        ("a", 520 + 4 + 64, "relay", "s1", 4),
        "path",
        "known",
        ("b", 588 + 4 + 64, "relay", "s1", 4),
        "path",
    ]
    assert cluster.read_there == [False, True, False]  # bytes are counted at the end that reads
    assert [row["turn"] for row in rows] == [2, 3, 4]
    assert [row["place"] for row in rows] == [0, 1, 2]
    assert {row["session_shape"] for row in rows} == {"pipeline"}
    assert len({row["session"] for row in rows}) == 1
    assert len({row["request"] for row in rows}) == 3
    # A's first turn belongs to the session, the waits between turns do not.
    assert [row["session_s"] for row in rows] == pytest.approx([4 * 0.3] * 3)
    assert len({row["tokens_per_s"] for row in rows}) == 1
    assert [row["prompt_tokens"] for row in rows] == [520, 588, 656]
    shares = [392 / 520, 524 / 588, 592 / 656]
    assert [row["shared_prefix_fraction"] for row in rows] == pytest.approx(shares)
    # Blocks at A and B: 3 and 5; 5 and 5; 5 and 7, of which two end in the middle.
    assert [row["kv_bytes"] for row in rows] == [8000, 10_000, 12_000]


def test_what_an_agent_has_computed_in_its_session_it_may_have(cluster: Cluster) -> None:
    rows = measurement(cluster).measure(several("recompute", FAR))
    # B's first turn nothing, A's second its own first one, B's next its own.
    assert [row["cached_tokens"] for row in rows] == [0, 384, 384]
    cluster.told.append(("b", 384, "recompute", "s2", 4))  # by somebody else, under its salt
    with pytest.raises(Miscount, match="recompute, 100mbit"):
        measurement(cluster).measure(several("recompute", FAR))


def test_what_a_later_turn_has_from_its_own_node_crosses_no_link(cluster: Cluster) -> None:
    cluster.load_path = "arena"
    measurement(cluster).measure(several("relay", FAR))
    assert cluster.told.count("path") == 1


def test_who_takes_the_turns_of_other_shapes(cluster: Cluster) -> None:
    one = measurement(cluster)
    for arm, shape, agents in (
        ("relay", Shape.FAN_OUT, ["a", "b", "b", "b"]),
        ("relay", Shape.SHARED_DOCUMENT, ["a", "b", "a", "b"]),
        ("owner_affinity", Shape.PIPELINE, ["a"] * 4),
        ("shared_pool", Shape.PIPELINE, ["b"] * 4),
    ):
        cluster.told.clear()
        rows = one.measure(several(arm, FAR, shape))
        assert [told[0] for told in asks(cluster)] == agents
        assert {row["session_shape"] for row in rows} == {str(shape)}


def test_text_only_sessions_tell_what_was_written(cluster: Cluster) -> None:
    measurement(cluster).measure(several("text_only", NEAR))
    own_past = 384 + 8
    lengths = [384, 8 + 128, own_past + 4 + 64, 136 + 4 + 4 + 64]
    assert [told[1] for told in asks(cluster)] == lengths


def test_a_turn_that_fails_is_its_sessions_last(cluster: Cluster) -> None:
    cluster.deaf_at = 3  # A's first turn, "known", and this one
    (row,) = measurement(cluster).measure(several("recompute", FAR))
    assert row["failed"] and row["turn"] == 2 and row["session_s"] is None


def test_relay_work_of_a_session_begins_after_its_first_turn(cluster: Cluster) -> None:
    rows = measurement(cluster).measure(several("owner_affinity", FAR, turns=2))
    # In this cluster every record of three parts grows by 0.1 s with each thing told.
    assert rows[0]["relay_cpu_s"] == pytest.approx(3 * 0.1 * 2)


def test_blocks_that_prompts_begin_with_are_kept_once() -> None:
    long = tuple(range(300))
    assert kept_blocks({"a": [long]}) == 3
    assert kept_blocks({"a": [long, (*long, 7)], "b": [long]}) == 4 + 3
    assert kept_blocks({"a": [long, (9, *long[1:])]}) == 6


def test_receivers_of_their_own(cluster: Cluster) -> None:
    blocks = tuple((Ask("recompute", 5, receiver=receiver),) for receiver in (0, 1))
    rows = measurement(cluster).measure(Unit("staggered", NEAR, blocks, 0, block=0))
    asked = [told[0] for told in asks(cluster)]
    assert asked == ["a-near", "b", "b", "a-near"]
    assert [row["unit"] for row in rows] == ["b", "a-near"]
    assert rows[0]["session"] != rows[1]["session"]


def test_blocks_keep_their_times(cluster: Cluster) -> None:
    asks = tuple(Ask("recompute", text, 0.5, gap) for text, gap in ((1, 0.0), (2, 1.5), (3, 1.0)))
    rows = measurement(cluster).measure(
        Unit("switchback", FAR, (asks,), 4, pair="p", block=4, utilisation=0.5)
    )
    assert [row["block"] for row in rows] == [4, 4, 4]
    assert {row["pair"] for row in rows} == {"p"}
    assert len({row["session"] for row in rows}) == 3
    assert rows[0]["block_s"] == pytest.approx(2.5 * 0.01 / 0.5)
    assert rows[0]["drain_s"] < 0.5


def test_what_an_engine_cannot_have_ends_the_unit(cluster: Cluster) -> None:
    cluster.wrong = 128
    with pytest.raises(Miscount, match=r"recompute, 100mbit, 512 tokens.*counts 128 cached"):
        measurement(cluster).measure(unit("paired", FAR, "recompute"))


def test_an_answer_that_fails_is_an_outcome_until_all_do(cluster: Cluster) -> None:
    cluster.deaf = True
    one = measurement(cluster)
    for _ in range(2):
        (row,) = one.measure(unit("paired", NEAR, "relay"))
        assert row["failed"] and not row["completed"] and row["ttft_s"] == row["e2e_s"] > 0
    with pytest.raises(BenchError, match="no request of 3 blocks in a row"):
        one.measure(unit("paired", NEAR, "relay"))


def test_what_relay_costs_in_cpu(cluster: Cluster) -> None:
    one = measurement(cluster)
    first, second = one.measure(unit("paired", NEAR, "relay", "relay"))
    assert first["relay_cpu_s"] is None  # nothing to compare with yet
    assert second["relay_cpu_s"] == pytest.approx(3 * 0.1 * 3)  # "path" counts as told too


def test_policy_says_what_it_decided(cluster: Cluster) -> None:
    (row,) = measurement(cluster).measure(unit("paired", NEAR, "policy"))
    assert (row["decided"], row["reason"]) == ("relay", "relayed")


def test_measures_of_answers() -> None:
    assert reply(range(5)).tokens_per_s == pytest.approx(40)
    assert reply((1,)).tokens_per_s is None
    assert prefill_s({}) is None
    assert prefill_s({"first_token_s": 0.1, "load_s": 0.2}) == 0


def test_fractions_are_drawn_by_the_text() -> None:
    for level, known in FRACTIONS.items():
        stratum = Stratum("same-node", 512, "idle", level, "en")
        drawn = {fraction(stratum, text) for text in range(60)}
        assert drawn == set(known)
        assert fraction(stratum, 1) == fraction(stratum, 1)


def test_prompts_after_a_message() -> None:
    assert PROMPTS.extends and PROMPTS.own == tuple(range(384, 512))
    assert PROMPTS.second_after((9,)) == (9, *range(384, 512))
    assert not Prompts((1, 2, 3), (1, 5, 6), 1).extends
