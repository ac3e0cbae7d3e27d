"""Rows of `bench topology`, and when a relay does not count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvrelay.bench import topology, topology_rows, wires
from kvrelay.bench.errors import WrongPath
from kvrelay.bench.testbed.link import UNSHAPED, parse_link
from kvrelay.cluster.errors import ConfigError

DEVICE = "kvrabc1231"
RELAYED = {"load_path": "nodes", "transport": "nixl", "path": "tcp", "wire_bytes": 1000}


def samples(repeats: int = 2) -> list[dict[str, Any]]:
    """Recompute 2 s, local hit 0.1 s; relay 0.2 s on the node, 1 s over 100 Mbit/s."""
    found: list[dict[str, Any]] = []
    for repeat in range(repeats):
        stream = {"link": "100mbit", "repeat": repeat, "measure": "goodput_bits_per_s"}
        found += [{**stream, "value": value} for value in (90e6, 80e6, 100e6)]
        found.append({**stream, "measure": "rtt_s", "value": 0.0012})
        factors = {"tokens": 512, "repeat": repeat}
        watched = {"others_cores": 0.1, "steal_cores": 0.0}
        found.append({**factors, "measure": "recompute_s", "value": 2.0, **watched})
        found.append({**factors, "measure": "local_hit_s", "value": 0.1, **watched})
        for link, relay_s, transport in (("100mbit", 1.0, "nixl"), ("same-node", 0.2, "arena")):
            of_link = {**factors, "link": link}
            found.append({**of_link, "measure": "relay_s", "value": relay_s, **watched})
            record = {"bytes": 9_000_000, "wire_bytes": 4_500_000, "interface_bytes": 4_600_000}
            record |= {"transfer_s": 0.5, "copy_s": 0.01}
            words = {"transport": transport, "path": "tcp", "codec": "raw"}
            for measure, value in {**record, **words}.items():
                found.append({**of_link, "measure": measure, "value": value})
    return found


def test_rows() -> None:
    near, far = topology_rows.summarize(samples())
    assert (near["link"], far["link"]) == ("same-node", "100mbit")
    assert far["tokens"] == 512
    assert far["recompute_s"] == near["recompute_s"] == {"min": 2, "median": 2, "max": 2, "n": 2}
    assert far["recompute_over_relay"] == 2.0 and near["recompute_over_relay"] == 10.0
    assert far["relay_over_local_hit"] == 10.0
    assert far["local_hit_and_wire_s"] == 0.9
    assert far["relay_over_local_hit_and_wire"] == round(1 / 0.9, 4)
    assert far["goodput_gbit_per_s"]["median"] == 0.09 and far["goodput_gbit_per_s"]["n"] == 6
    assert far["rtt_s"] == {"min": 0.0012, "median": 0.0012, "max": 0.0012, "n": 2}
    assert far["wire_s"] == {"min": 0.8, "median": 0.8, "max": 0.8, "n": 2}
    assert (far["bytes"], far["wire_bytes"]) == (9_000_000, 4_500_000)
    assert (far["transport"], far["path"], far["codec"]) == ("nixl", "tcp", "raw")
    assert "wire_s" not in near and "goodput_gbit_per_s" not in near and "rtt_s" not in near


def test_fast_links_come_first() -> None:
    mixed = [
        {"link": link, "repeat": 0, "measure": "goodput_bits_per_s", "value": value}
        for link, value in (("40mbit", 39e6), ("unshaped", 5e9), ("1gbit", 95e7))
    ]
    for link in ("40mbit", "same-node", "1gbit", "unshaped"):
        mixed.append({"link": link, "tokens": 1, "repeat": 0, "measure": "relay_s", "value": 1.0})
    rows = topology_rows.summarize(mixed)
    assert [row["link"] for row in rows] == ["same-node", "unshaped", "1gbit", "40mbit"]


def test_interrupted_samples_still_make_rows() -> None:
    for count in range(len(samples())):
        json.dumps(topology_rows.summarize(samples()[:count]))


def test_a_relay_over_the_link() -> None:
    for path in ("tcp", f"tcp/{DEVICE}", "plasma/tcp"):
        wires.check_path("1gbit", DEVICE, {**RELAYED, "path": path}, received_bytes=1000)
    same = {"load_path": "arena", "transport": "", "path": "", "wire_bytes": 0}
    wires.check_path("same-node", None, same, received_bytes=0)


@pytest.mark.parametrize(
    ("change", "received", "message"),
    [
        ({"path": "cma"}, 1000, "path 'cma' by transport 'nixl', expected tcp"),
        ({"path": ""}, 1000, "path 'none'"),
        ({"path": "unknown"}, 1000, "path 'unknown'"),
        ({"path": "tcp/lo"}, 1000, "path 'tcp/lo'"),
        ({}, 999, "interface has received 999"),
        ({"wire_bytes": 0}, 1000, "0 bytes crossed"),
    ],
)
def test_a_relay_that_went_past_the_link(
    change: dict[str, Any], received: int, message: str
) -> None:
    with pytest.raises(WrongPath, match=message):
        wires.check_path("1gbit", DEVICE, {**RELAYED, **change}, received)


def test_a_relay_on_the_node_that_came_from_another() -> None:
    with pytest.raises(WrongPath, match="came from 'nodes'"):
        wires.check_path("same-node", None, RELAYED, 0)


@pytest.mark.parametrize("path", ["tcp", "rc_mlx5/mlx5_0:1", "plasma/tcp", "cma/memory"])
def test_on_a_cluster_any_path_counts_that_is_attested(path: str) -> None:
    assert wires.check_attested({**RELAYED, "path": path}) == path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": ""}, "does not know its path"),
        ({"path": "unknown"}, "does not know its path"),
        ({"load_path": "arena"}, "came from 'arena'"),
        ({"wire_bytes": 0}, "came from 'nodes'"),
    ],
)
def test_a_relay_on_a_cluster_that_does_not_count(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongPath, match=message):
        wires.check_attested({**RELAYED, **change})


def test_the_nodes_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert topology.parse_cluster(None, None, "1gbit") is None
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match="RAY_ADDRESS"):
        topology.parse_cluster("x", "y", None)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert topology.parse_cluster("x", "y", None) == ("x", "y")
    for near, far in (("x", None), (None, "y"), ("x", "x")):
        with pytest.raises(ConfigError, match="go together"):
            topology.parse_cluster(near, far, None)
    with pytest.raises(ConfigError, match="--links"):
        topology.parse_cluster("x", "y", "1gbit")


def test_rows_of_a_cluster() -> None:
    found = [
        {name: value for name, value in sample.items() if name != "others_cores"}
        | ({"link": "cluster"} if sample.get("link") == "100mbit" else {})
        for sample in samples()
        if sample["measure"] != "interface_bytes"
    ]
    near, far = topology_rows.summarize(found)
    assert (near["link"], far["link"]) == ("same-node", "cluster")
    assert far["wire_s"]["median"] == 0.8 and far["steal_cores"]["n"] == 2
    assert "interface_bytes" not in far and "others_cores" not in far


def test_links() -> None:
    assert topology.parse_links("same-node, unshaped,1gbit,unshaped") == (
        None,
        UNSHAPED,
        parse_link("1gbit"),
    )
    with pytest.raises(ConfigError, match="link 'lan'"):
        topology.parse_links("unshaped,lan")


def test_slow_links_take_longer() -> None:
    def total(links: str) -> float:
        return topology.total_estimate_s([512, 7900], 5, topology.parse_links(links), 2)

    assert total("same-node") < total("unshaped") < total("100mbit") < total("100mbit,40mbit")


def test_every_way_has_a_row() -> None:
    relay = {"link": "1gbit", "tokens": 1, "repeat": 0, "measure": "relay_s"}
    rows = topology_rows.summarize(
        [{**relay, "way": way, "value": value} for way, value in (("n/raw", 2.0), ("p/raw", 3.0))]
    )
    assert [(row["way"], row["relay_s"]["median"]) for row in rows] == [("n/raw", 2), ("p/raw", 3)]


def test_ways() -> None:
    ways = topology.parse_ways("nixl/raw, plasma/split,nixl/raw")
    assert ways == (("nixl", "raw"), ("plasma", "split"))
    for wrong in ("nixl", "nixl/zip", "ucx/raw", ""):
        with pytest.raises(ConfigError, match="a way is TRANSPORT/CODEC"):
            topology.parse_ways(wrong)
