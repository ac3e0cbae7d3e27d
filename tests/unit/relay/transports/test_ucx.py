"""What UCX's log says, on logs captured from UCX 1.21 in NIXL 1.3.2's wheel and thinned out.

tcp.txt: a reader, a source in another network namespace, one in its own; `UCX_TLS=tcp`.
mixed.txt: the same with all transports, the first source in a process namespace of its own, and a
third source, in the first's network namespace only.
"""

from pathlib import Path

import pytest

from kvrelay.relay.transports.ucx import UNKNOWN, UcxLog, log_settings

LOGS = Path(__file__).with_name("ucx_logs")
SIZE = 3_000_000


def read_log(name: str) -> list[str]:
    return (LOGS / name).read_text().splitlines()


def fed(lines: list[str]) -> UcxLog:
    log = UcxLog()
    for line in lines:
        log.feed(line)
    return log


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("tcp.txt", ["tcp/vB", "tcp/vB"]),
        ("mixed.txt", ["tcp/vB", "cma/memory", "cma/memory"]),
    ],
)
def test_captured(name: str, paths: list[str]) -> None:
    log = fed(read_log(name))
    own, *peers = log.created
    assert [log.path([peer], SIZE) for peer in peers] == paths
    assert log.path([own], SIZE) == UNKNOWN  # it has not been read through
    assert log.path([], SIZE) == log.path(["0x1"], SIZE) == UNKNOWN


def test_a_path_is_known_no_sooner_than_ucx_says_it() -> None:
    lines = read_log("mixed.txt")
    told = next(n for n, line in enumerate(lines) if "remote memory read" in line)
    _, peer = fed(lines[: told + 1]).created
    assert fed(lines[: told + 1]).path([peer], SIZE) == UNKNOWN
    assert fed(lines[: told + 3]).path([peer], SIZE) == "tcp/vB"


def test_a_closed_endpoint_is_forgotten() -> None:
    log = fed(read_log("mixed.txt"))
    peer = log.created[-1]
    log.forget(peer)
    assert log.path([peer], SIZE) == UNKNOWN


def test_configurations_with_the_same_lanes_must_agree() -> None:
    lines = read_log("mixed.txt")
    *_, named, reused = fed(lines).created
    start = next(n for n, line in enumerate(lines) if "intra-node cfg#2 rma_am" in line)
    table = next(n for n, line in enumerate(lines) if "intra-node cfg#2 | remote memory" in line)
    again = [line.replace("cfg#2", "cfg#3") for line in (lines[start], *lines[table : table + 3])]
    assert fed([*lines, *again]).path([reused], SIZE) == "cma/memory"
    other = [line.replace("cma/memory |", "tcp/vB     |") for line in again]
    assert fed([*lines, *other]).path([reused], SIZE) == UNKNOWN
    assert fed([*lines, *other]).path([named], SIZE) == "cma/memory"


def test_who_was_connected_to_shares_the_endpoints_that_peers_asked_for() -> None:
    asked = "from api call", "remote-request"
    log = fed([line.replace(*asked) for line in read_log("tcp.txt")])
    assert log.created == []
    assert log.path(log.accepted, SIZE) == "tcp/vB"
    log = fed([line.replace(*asked) for line in read_log("mixed.txt")])
    assert log.path(log.accepted, SIZE) == UNKNOWN  # tcp for one of them, cma for the others
    for endpoint in list(log.accepted):
        log.forget(endpoint)
    assert log.path(log.accepted, SIZE) == UNKNOWN


# Rows as UCX prints them for RDMA and GPUs (ai-dynamo/nixl#1195), under the lines of an endpoint.
ROWS = """\
[1.0] [h:1:0] ucp_ep.c:417 UCX  DEBUG created ep 0x2 to <no debug data> from api call
[1.0] [h:1:0] ucp_worker.c:1984 UCX  INFO    context inter-node cfg#1 rma_bw({lane}) am({lane})
[1.0] [h:1:0] wireup.c:1260 UCX  DEBUG   ep 0x2: am_lane 0 wireup_msg_lane 0
[1.0] [h:1:0] wireup.c:1283 UCX  DEBUG   ep 0x2: lane[0]:  2:{lane}.0 md[1] -> addr[2].md[1] am
[1.0] [h:1:0]   | context inter-node cfg#1 | remote memory read by ucp_get*(multi) into {memory} |
[1.0] [h:1:0]   +----+----+----+
[1.0] [h:1:0]   |            0..2K | copy-out           | {lane}/path0                       |
[1.0] [h:1:0]   |        2049..inf | zero-copy          | {lane} 50% on path0 and 50% on path1 |
"""


@pytest.mark.parametrize("lane", ["rc_mlx5/mlx5_0:1", "dc_mlx5/mlx5_bond_0:1", "cuda_ipc/cuda"])
@pytest.mark.parametrize("num_bytes", [0, 2048, 2049, 1 << 30])
def test_other_lanes(lane: str, num_bytes: int) -> None:
    log = fed(ROWS.format(lane=lane, memory="cuda/GPU0 from cuda").splitlines())
    assert log.path(["0x2"], num_bytes) == lane


def test_several_lanes_and_sizes() -> None:
    text = ROWS.format(lane="tcp/lo", memory="host memory from host")
    text = text.replace("tcp/lo 50% on path0 and 50% on path1", "52% on tcp/lo and 48% on tcp/eth0")
    log = fed(text.splitlines())
    assert log.path(["0x2"], 2048) == "tcp/lo"
    assert log.path(["0x2"], 2049) == "tcp/eth0+tcp/lo"
    unreadable = fed(text.replace("52% on tcp/lo and 48% on tcp/eth0", "?").splitlines())
    assert unreadable.path(["0x2"], 2049) == UNKNOWN


def test_problems_are_kept_and_noise_is_not() -> None:
    line = "[1.0] [h:1:0]          select.c:657  UCX  ERROR   no active messages transport to x"
    log = fed([line, "anything else", "", "[1.0] [h:1:0]  a.c:1 UCX  DEBUG fine"])
    assert log.problems == [("ERROR", "select.c:657: no active messages transport to x")]
    for _ in range(1000):
        log.feed(line)
    assert len(log.problems) == 100


def test_settings() -> None:
    assert log_settings("/x")["UCX_LOG_FILE"] == "/x"
    assert all(name.startswith("UCX_") for name in log_settings("/x"))
