"""`bench topology` between two nodes of a Ray that runs already: here the test bed's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.bed import Bed, two_nodes
from kvrelay.bench.testbed.link import parse_link

# A process of its own, at the first node: this one must not join a Ray.
WIRE = """
import json, sys
import ray
from kvrelay.bench.wires import ClusterWire, node_ids
from kvrelay.cluster import joined

joined.use_token()
ray.init(log_to_driver=False, logging_level="ERROR")
wire = ClusterWire(*node_ids(tuple(sys.argv[1:])))
print(json.dumps([wire.round_trips_s(), wire.goodput().bits_per_s]))
"""


@pytest.fixture(scope="module")
def bed(machine_of_module: None) -> Iterator[Bed]:
    with two_nodes() as bed:
        bed.start_ray()
        yield bed


def at_first(bed: Bed, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python inside the first namespace, told of the bed's Ray."""
    with system.entered(bed.network.first):
        return subprocess.run(
            [sys.executable, *command],
            env=bed.environment(),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=590,
        )


def test_the_plain_stream_runs_between_the_two_nodes(bed: Bed, tmp_path: Path) -> None:
    bed.set_link(parse_link("500mbit-4ms"))
    before = bed.counters()[0].rx_bytes
    done = at_first(bed, ["-c", WIRE, "node-1", "node-2"], tmp_path)
    assert done.returncode == 0, done.stderr
    round_trips_s, bits_per_s = json.loads(done.stdout)
    assert min(round_trips_s) > 4e-3
    assert len(bits_per_s) == 3 and max(bits_per_s) < 500e6
    assert bed.counters()[0].rx_bytes - before > 3 * 96 * 2**20


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("node-2", "node-1"), "this is not the node labelled kvrelay/node=node-2: run it there"),
        (("node-1", "node-9"), "0 nodes are labelled kvrelay/node=node-9, expected one"),
    ],
)
def test_nodes_that_cannot_be_measured(
    bed: Bed, tmp_path: Path, labels: tuple[str, str], message: str
) -> None:
    done = at_first(bed, ["-c", WIRE, *labels], tmp_path)
    assert done.returncode == 1
    assert message in done.stderr


def test_the_whole_benchmark(bed: Bed, tmp_path: Path) -> None:
    bed.set_link(parse_link("200mbit-2ms"))
    words = ["-m", "kvrelay.cluster.cli", "bench", "topology", "--near", "node-1"]
    words += ["--far", "node-2", "--smoke", "--ways", "nixl/raw", "--json", "out.json"]
    done = at_first(bed, words, tmp_path)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert result["meta"]["complete"] and result["meta"]["links"] == ["same-node", "cluster"]
    near, far = result["rows"]
    assert (near["link"], near["path"]) == ("same-node", "arena")
    assert (far["link"], far["path"].partition("/")[0]) == ("cluster", "tcp")
    assert 0.1 < far["goodput_gbit_per_s"]["median"] < 0.2
    assert far["transfer_s"]["median"] > 0.7 * far["wire_s"]["median"] > 0
    assert far["rtt_s"]["median"] > 2e-3
    assert "interface_bytes" not in far
