"""`bench faults` without its cluster: plans, what B may say, rows, what is looked for."""

from __future__ import annotations

import gc
import json
import mmap
import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from kvrelay.bench import faults, faults_rows
from kvrelay.bench.errors import BenchError
from kvrelay.bench.faults import FAULTS, NIXL, PLASMA, SPLIT, WAYS
from kvrelay.bench.faults_inject import STRIKES
from kvrelay.bench.faults_sites import Site
from kvrelay.bench.leftovers import memfds
from kvrelay.bench.testbed.network import Node
from kvrelay.policies import Reason

RECORD = {
    "reason": "load_deadline",
    "prompt_tokens": 1052,
    "local_tokens": 0,
    "relayed_tokens": 96,
    "recomputed_tokens": 956,
    "load_path": "nodes",
}
WHOLE = {**RECORD, "reason": "relayed", "relayed_tokens": 1044, "recomputed_tokens": 8}
CUT_OFF, RELAYED = FAULTS["link_down"].variants[0], FAULTS["engine_killed"].variants[0]


# Plans


@pytest.mark.parametrize("count", [13, 14, 30, 200, 1000])
def test_every_fault_is_planned_and_the_count_is_kept(count: int) -> None:
    given = faults.counts(count)
    assert given.keys() == FAULTS.keys()
    assert sum(given.values()) == count
    assert min(given.values()) >= 1
    planned = Counter(injection.fault for injection in faults.plan(count, seed=3))
    assert planned == given


def test_what_takes_long_is_injected_less_often() -> None:
    given = faults.counts(200)
    assert given["node_lost"] < given["engine_killed"] < given["link_down"]
    assert len({given[name] for name, fault in FAULTS.items() if fault.share == 4}) <= 2


def test_too_few_injections() -> None:
    with pytest.raises(ValueError, match="13 faults need as many injections, got 12"):
        faults.plan(12, seed=1)


def test_a_plan_is_its_seeds() -> None:
    assert faults.plan(30, seed=1) == faults.plan(30, seed=1)
    assert faults.plan(30, seed=1) != faults.plan(30, seed=2)


def test_what_came_too_late_strikes_earlier_the_next_time() -> None:
    one = faults.Injection("slow_peer", FAULTS["slow_peer"].variants[0], PLASMA, 15)
    moments = [one.after_blocks]
    while (one := one.earlier()).after_blocks != moments[-1]:
        moments.append(one.after_blocks)
    assert moments == [15, 7, 3, 1, 0]
    before_b_is_asked = faults.Injection("corrupt_bytes", one.variant, PLASMA, None)
    assert before_b_is_asked.earlier() == before_b_is_asked


def test_forms_and_ways_take_turns() -> None:
    injections = faults.plan(200, seed=1)
    for name, fault in FAULTS.items():
        mine = [injection for injection in injections if injection.fault == name]
        kinds = Counter((injection.variant.name, injection.way) for injection in mine)
        assert max(kinds.values()) - min(kinds.values()) <= 1
        forms = {injection.variant.name for injection in mine}
        assert len(mine) < len(fault.variants) or forms == {v.name for v in fault.variants}
        for injection in mine:
            assert injection.way in injection.variant.ways
            assert (injection.after_blocks is not None) == fault.in_transfer
        if len(mine) >= 6:
            assert {i.way for i in mine} == {w for v in fault.variants for w in v.ways}
    assert {injection.after_blocks for injection in injections} == {None, *faults.MOMENTS}


def test_every_fault_can_be_made_and_explained() -> None:
    assert STRIKES.keys() == FAULTS.keys()
    for fault in FAULTS.values():
        assert all(variant.reasons for variant in fault.variants)
        assert {way for variant in fault.variants for way in variant.ways} <= set(WAYS)
        sites = {variant.name for variant in fault.variants}
        assert "sink" not in sites or "source" in sites


def test_bytes_that_ray_moves_do_not_stop_with_the_store() -> None:
    ways = {way for variant in FAULTS["source_stopped"].variants for way in variant.ways}
    assert ways == {NIXL, SPLIT} and PLASMA in WAYS


# Records


def test_a_record_that_the_fault_explains() -> None:
    assert faults.contradiction(RECORD, CUT_OFF, 1044, 96) is None
    assert faults.contradiction(WHOLE, RELAYED, 1044, 1044) is None
    source = next(v for v in FAULTS["eviction_race"].variants if v.name == "source")
    assert faults.contradiction(WHOLE, source, 1044, 1044) is None


@pytest.mark.parametrize(
    ("record", "cached", "message"),
    [
        ({**RECORD, "reason": "no_room"}, 96, "reason no_room, expected load_deadline or"),
        (WHOLE, 1044, "reason relayed, expected"),
        ({**WHOLE, "reason": "load_deadline"}, 1044, "1044 of 1044 tokens are relayed, but"),
        ({**RECORD, "relayed_tokens": 95}, 96, "not those of the prompt"),
    ],
)
def test_a_record_that_contradicts_the_fault(
    record: dict[str, Any], cached: int, message: str
) -> None:
    assert message in str(faults.contradiction(record, CUT_OFF, 1044, cached))


@pytest.mark.parametrize(
    ("change", "cached", "message"),
    [
        ({"relayed_tokens": 96, "recomputed_tokens": 956}, 96, "96 of 1044 tokens are relayed"),
        ({}, 1043, "vLLM counts 1043 tokens"),
        ({"load_path": "arena"}, 1044, "from arena"),
    ],
)
def test_a_relay_that_was_none(change: dict[str, Any], cached: int, message: str) -> None:
    record = {**WHOLE, **change}
    assert message in str(faults.contradiction(record, RELAYED, 1044, cached))


def test_reasons_are_policies_reasons() -> None:
    assert Reason(RECORD["reason"]) in CUT_OFF.reasons


# Rows


def sample(fault: str, **change: Any) -> dict[str, Any]:
    zeros = dict.fromkeys((*faults_rows.ZEROS, "requests_on_killed", "faults_caught"), 0)
    times = {"answer_s": 3.1, "recompute_s": 0.1, "time_lost_s": 3.0, "recovery_s": 1.0}
    head = {"fault": fault, "reason": "load_deadline", "missed": False, "requests": 4}
    return {**head, **zeros, **times, **change}


def test_rows() -> None:
    slow, link = faults_rows.summarize(
        [
            sample("slow_peer", reason="transfer_failed"),
            sample("link_down", time_lost_s=2.0),
            sample("slow_peer", time_lost_s=1.0, wrong_tokens=1),
            sample("slow_peer", time_lost_s=5.0, bytes_leaked=4096),
        ]
    )[::-1]
    assert (link["fault"], link["injections"], link["requests"]) == ("link_down", 1, 4)
    assert slow["requests"] == 12 and slow["failures"] == 0
    assert (slow["wrong_tokens"], slow["bytes_leaked"]) == (1, 4096)
    assert slow["time_lost_s"] == {"min": 1.0, "median": 3.0, "max": 5.0, "n": 3}
    assert slow["recovery_s"]["median"] == 1.0
    assert slow["reasons"] == {"load_deadline": 2, "transfer_failed": 1}
    assert "replica_recovery_s" not in slow


def test_requests_on_a_killed_replica_are_apart() -> None:
    (row,) = faults_rows.summarize(
        [sample("engine_killed", requests_on_killed=1, replica_recovery_s=12.5)]
    )
    assert (row["requests"], row["failures"], row["requests_on_killed"]) == (4, 0, 1)
    assert row["replica_recovery_s"]["median"] == 12.5
    assert faults_rows.broken_promises([row]) == []


def test_a_fault_that_came_too_late_counts_for_what_went_wrong_only() -> None:
    late = sample("slow_peer", missed=True, reason="relayed", time_lost_s=0.0, wrong_tokens=1)
    (row,) = faults_rows.summarize([sample("slow_peer"), late])
    assert (row["injections"], row["missed"], row["requests"], row["wrong_tokens"]) == (1, 1, 8, 1)
    assert row["reasons"] == {"load_deadline": 1}
    assert row["time_lost_s"]["min"] == 3.0


@pytest.mark.parametrize("name", faults_rows.ZEROS)
def test_what_must_be_zero(name: str) -> None:
    rows = faults_rows.summarize([sample("slow_peer"), sample("slow_peer", **{name: 2})])
    assert faults_rows.broken_promises(rows) == [f"slow_peer: 2 {name}"]


def test_rows_are_json_and_fill_the_tables() -> None:
    rows = faults_rows.summarize([sample("slow_peer"), sample("node_lost")])
    json.dumps(rows)
    for table in (faults_rows.TABLE, faults_rows.REASONS_TABLE):
        assert all(isinstance(cell(row), str) for cell in table.values() for row in rows)


# What faults are made and found with


def test_memory_of_stores_that_a_process_maps() -> None:
    before = memfds(os.getpid())
    fd = os.memfd_create("kvrelay-arena")
    os.ftruncate(fd, 1 << 20)
    mapping = mmap.mmap(fd, 1 << 20)
    inode = os.fstat(fd).st_ino
    os.close(fd)
    assert memfds(os.getpid()) == before | {inode: 1 << 20}
    mapping.close()
    gc.collect()
    assert inode not in memfds(os.getpid())


def test_clocks_jump_in_their_process() -> None:
    program = """
import time
from kvrelay.bench import shifted_clock
real = time.monotonic, time.time
shifted_clock.jump(60.0, -3600.0)
shifted_clock.jump(60.0, 0.0)
assert 119 < time.monotonic() - real[0]() < 121
assert 119 < time.monotonic_ns() / 1e9 - real[0]() < 121
assert -3601 < time.time() - real[1]() < -3599
assert -3601 < time.time_ns() / 1e9 - real[1]() < -3599
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd="/")


class _Store:
    """A store's actor whose process has just been replaced: so many calls go astray."""

    def __init__(self, astray: int) -> None:
        self.astray = astray
        self.stats = self

    def remote(self) -> int:
        self.astray -= 1
        return self.astray

    def answer(self, left: int, timeout: float) -> dict[str, int]:
        if left >= 0:
            raise ray.exceptions.ActorUnavailableError("not reached", None)
        if left < -1:
            raise ray.exceptions.RayActorError()
        return {"fetches": 0}


def test_a_store_that_ray_has_not_found_again_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = _Store(astray=2)
    monkeypatch.setattr(ray, "get", store.answer)
    site = Site(Node("node-2", "", "", "", ""), SimpleNamespace(actor=store))
    assert site.stats() == {"fetches": 0}
    with pytest.raises(BenchError, match="the store of node-2"):
        site.stats()
