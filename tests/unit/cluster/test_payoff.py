"""`kvrelay payoff`: from files of records to words, JSON and a picture."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrelay.cluster import cli
from kvrelay.cluster.cli.payoff import estimate, parse_switchback
from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.payoff_picture import draw
from kvrelay.cluster.payoff_rows import make_row, verdict_text
from kvrelay.policies.assignment import Switchback, assign
from kvrelay.policies.confidence import NOTHING, Estimate
from kvrelay.policies.decision import Arm, Decision, Reason
from kvrelay.relay.decisions.rows import to_row
from kvrelay.relay.record import RelayRecord


def records(count: int, share: float = 1.0, seed: int = 1) -> list[dict[str, Any]]:
    """Relays within the node save 0.4 s of 0.5, those between nodes cost 0.5 s."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        place, relay_s = [("arena", 0.1), ("nodes", 1.0)][i % 2]
        drawn = assign(float(rng.random()), share, Arm.RELAY)
        relays = drawn.arm is Arm.RELAY
        mean_s = relay_s if relays else 0.5
        found.append(
            RelayRecord(
                agent="a",
                policy="cost",
                mode="auto",
                decision=Decision(
                    drawn.arm,
                    Reason.RELAYED if relays else Reason.EXPLORED,
                    num_tokens=972 if relays else 0,
                    relay_s=relay_s,
                    recompute_s=0.5,
                    propensity=drawn.propensity,
                ),
                reason=Reason.RELAYED if relays else Reason.EXPLORED,
                prompt_tokens=1024,
                local_tokens=0,
                recomputed_tokens=52 if relays else 1024,
                relayed_tokens=972 if relays else 0,
                found_place=place,
                load_path=place if relays else None,
                first_token_s=mean_s * float(rng.lognormal(0.0, 0.2)),
                shared_prefix_fraction=0.95,
                request_id=f"cmpl-{i}",
                time_s=1_000.0 + i,
                session_id=f"s{i}",
            ).to_dict()
        )
    return found


def write(folder: Path, found: list[dict[str, Any]]) -> None:
    half = len(found) // 2
    for name, part in (("b--1--2.jsonl", found[:half]), ("a--1--1.jsonl", found[half:])):
        (folder / name).write_text("".join(json.dumps(to_row(each)) + "\n" for each in part))


def run(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["kvrelay", "payoff", *words])
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as caught:
        cli.main()
    text = capsys.readouterr()
    return int(caught.value.code or 0), text.out, text.err


def test_the_command_tells_what_pays(tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path, records(2000))
    json_file, picture = tmp_path / "out.json", tmp_path / "out.svg"
    words = ["--dir", str(tmp_path), "--json", str(json_file), "--picture", str(picture)]
    code, _, err = run(capsys, monkeypatch, *words)
    assert code == 0, err
    content = json.loads(json_file.read_text())
    rows = {row["stratum"]: row for row in content["rows"]}
    assert rows["arena/512-2k/>=90%"]["verdict"] == "pays"
    assert rows["nodes/512-2k/>=90%"]["verdict"] == "does not pay"
    assert rows["arena/512-2k/>=90%"]["lower_s"] < 0.4 < rows["arena/512-2k/>=90%"]["upper_s"]
    assert rows["all"]["requests"] == content["meta"]["counted"] == 2000
    ET.fromstring(picture.read_text())


def test_nothing_drawn_is_said(tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path, records(20, share=0.0))
    code, _, err = run(capsys, monkeypatch, "--dir", str(tmp_path))
    assert code == 2 and "explore a share of sessions" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--picture", "x.png"], "only .svg"),
        (["--preferred", "both"], "any, relay, recompute"),
        (["--switchback", "60:60"], "BLOCK_S or BLOCK_S:BURN_IN_S"),
        (["--switchback", "soon"], "BLOCK_S or BLOCK_S:BURN_IN_S"),
        ([], "of 0 records none tells"),
    ],
)
def test_bad_input_is_one_line(words, said, tmp_path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run(capsys, monkeypatch, "--dir", str(tmp_path), *words)
    assert code == 2 and said in err and "Traceback" not in err


def test_a_bad_record_is_named() -> None:
    with pytest.raises(ConfigError, match=r"request r7: a decision record without 'decision'"):
        estimate([{"request_id": "r7"}], "any", 1.0)


def test_order_of_records_does_not_matter() -> None:
    found = records(400)
    forward, _ = estimate(found, "any", 1e6)
    assert forward == estimate(found[::-1], "any", 1e6)[0]


def test_only_what_the_policy_wanted() -> None:
    found = records(400, share=0.2)
    rows, counts = estimate(found, "recompute", 1e6)
    assert counts["counted"] == 0 and rows[0]["requests"] == 0
    assert estimate(found, "relay", 1e6)[1]["counted"] == 400


def test_blocks_are_read_from_the_same_log() -> None:
    plan = Switchback.of_cluster(10.0)
    found = records(4000)
    for record in found:
        arm, pair = plan.arm(record["time_s"]), plan.pair(record["time_s"])
        record["decision"] |= {"arm": str(arm), "propensity": 0.5, "switchback_pair": pair}
        record["first_token_s"] = 0.3 if arm is Arm.RELAY else 0.5
    rows, counts = estimate(found, "any", 1e6, plan)
    assert counts["counted"] == pytest.approx(2800, abs=20)
    assert counts["in_blocks"] == 4000
    assert rows[0]["sessions"] == pytest.approx(200, abs=2)
    assert rows[0]["verdict"] == "pays"
    assert parse_switchback("10") == plan == parse_switchback("10:2.5")
    both = [*found, *records(100)]
    again, seen = estimate(both, "any", 1e6, plan)
    assert (again, seen["counted"], seen["read"]) == (rows, counts["counted"], 4100)
    assert estimate(both, "any", 1e6)[1]["counted"] == 100


def test_verdicts_in_words() -> None:
    def row(lower_s: float, upper_s: float, more: int) -> dict[str, Any]:
        return make_row("all", Estimate(0.1, lower_s, upper_s, 0.1, 9, 3, 0.0, more))

    assert verdict_text(row(0.05, 0.2, 0)) == "pays"
    assert verdict_text(row(-0.05, 0.2, 1234)) == "not known yet: about 1,234 more sessions needed"
    assert verdict_text(row(-0.05, 0.2, 10**8)).endswith("over a million more sessions needed")
    json.dumps(make_row("all", NOTHING), allow_nan=False)


def test_a_picture_is_well_formed_whatever_is_known() -> None:
    known = make_row("a/<512/>=90%", Estimate(0.1, 0.05, 0.2, 0.1, 9, 3, 0.0, 0))
    unsure = make_row("b", Estimate(0.1, -40.0, 40.2, 0.1, 9, 3, 0.0, 7))
    for rows in ([make_row("all", NOTHING)], [known], [known, unsure]):
        root = ET.fromstring(draw(rows, "how it was made & what it means"))
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert all(row["stratum"] in texts for row in rows)


def test_requests_of_strata_that_are_off_are_counted() -> None:
    found = records(400, share=0.2)
    for record in found[100::4]:
        record["decision"]["reason"] = "stratum_off"
    rows, _ = estimate(found, "any", 1e6)
    off = {row["stratum"]: row["off_requests"] for row in rows}
    assert off == {"all": 75, "arena/512-2k/>=90%": 75, "nodes/512-2k/>=90%": 0}


def test_a_log_of_blocks_alone_is_said(tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    found = records(20)
    for record in found:
        record["decision"]["switchback_pair"] = 1
    write(tmp_path, found)
    code, _, err = run(capsys, monkeypatch, "--dir", str(tmp_path))
    assert code == 2 and "see --switchback" in err
