"""What UCX says in its log about the path that it chose for reading from a peer.

UCX (1.21, as the NIXL wheels bring it) does not tell an application, through NIXL, over which
transport it reads. Its log does, once `log_settings` are in the environment: which lanes each
endpoint got,

    ep 0x7f57: am_lane 0 wireup_msg_lane 0 cm_lane <none> keepalive_lane 0 reachable_mds 0x1e
    ep 0x7f57: lane[0]:  2:tcp/vB.0 md[1]      -> addr[2].md[1]/tcp/sysdev[255] seg 1 am wireup

which lanes each endpoint configuration has,

    ucp_context_0 intra-node cfg#1 rma_am(tcp/vB)  amo_am(tcp/vB)  am(tcp/vB cma/memory)

and, when a configuration is first read through, by which of them, depending on the size:

    | ucp_context_0 intra-node cfg#1 | remote memory read by ucp_get*(multi) into host memory ... |
    |                         0..inf | zero-copy                                    | cma/memory |

A configuration that is told between an endpoint's creation and its lanes is the endpoint's. One
that is told of no configuration uses an older one: its path is that of all that have exactly
its lanes, if they agree. Ask after a read: before it UCX need not have decided.

Who connects to a peer that has connected before gets the endpoint that UCX made then, by
`remote-request`, and the log does not say which: its path is that of all of these, if they agree.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

UNKNOWN = "unknown"
_READ = "remote memory read"
_MAX_PROBLEMS = 100

_LINE = re.compile(r"^\[\d+\.\d+\] \[[^]]*\] +(?:(?P<file>\S+:\d+) +UCX +(?P<level>\w+) )? *")
_CREATED = re.compile(r"created ep (0x[0-9a-f]+) to .* (from api call|remote-request)")
_LANES = re.compile(r"ep (0x[0-9a-f]+): am_lane ")
_LANE = re.compile(r"ep (0x[0-9a-f]+): lane\[\d+\]: +\d+:(\S+?)\.\d+ md\[")
_CONFIG = re.compile(r"(\S+ (?:self|intra-node|inter-node) cfg#\d+) (\w+\(.*)$")
_TABLE = re.compile(r"^\| +(\S+ (?:self|intra-node|inter-node) cfg#\d+) +\| (.*?) *\|$")
_ROW = re.compile(r"^\| +(\d+\w*)(?:\.\.(\w+))? +\| (.*?) *\| (.*?) *\|$")
# `rc_mlx5/mlx5_0:1/path0`, `rc_mlx5/mlx5_0:1 50% on path0 and 50% on path1`, `cma/memory`
_LANE_NAME = re.compile(r"\b([a-z]\w*/[\w.:-]+)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def log_settings(log_file: str) -> dict[str, str]:
    """The environment under which UCX writes what `UcxLog` reads, and little else.

    The filter leaves out what would be written at every read (by ucp_worker.h and flush.c, 240
    bytes a span) and keeps the errors of nearly all files.
    """
    return {
        "UCX_LOG_FILE": log_file,
        "UCX_LOG_FILE_FILTER": "*[!h].c",
        "UCX_LOG_LEVEL": "debug",
        "UCX_PROTO_INFO": f"{_READ}*",
    }


@dataclass(slots=True)
class _Table:
    """How one configuration reads: (first size, last size, path) a row."""

    rows: list[tuple[int, float, str]] = field(default_factory=list)

    def path(self, num_bytes: int) -> str:
        return next((path for low, high, path in self.rows if low <= num_bytes <= high), UNKNOWN)


class UcxLog:
    """Reads a log as it grows, line by line; keeps only the state of endpoints that exist."""

    def __init__(self) -> None:
        self.created: list[str] = []  # endpoints that the application asked for, in order
        self.accepted: dict[str, None] = {}  # endpoints that peers asked for
        self.problems: list[tuple[str, str]] = []  # (level, message) of warnings and errors
        self._lanes: dict[str, set[str]] = {}
        self._own_config: dict[str, str | None] = {}  # of endpoints, where it is told
        self._new_config: str | None = None
        self._configs: dict[str, set[str]] = {}
        self._tables: dict[tuple[str, str], _Table] = {}  # by configuration and operation
        self._open_table: _Table | None = None

    def forget(self, endpoint: str) -> None:
        """An endpoint was closed; UCX may give its address to the next one."""
        self._lanes.pop(endpoint, None)
        self._own_config.pop(endpoint, None)
        self.accepted.pop(endpoint, None)

    def feed(self, line: str) -> None:
        """Take in one whole line."""
        head = _LINE.match(line)
        if head is None:
            return
        text = line[head.end() :].rstrip()
        if text.startswith(("|", "+-")):
            self._feed_table(text)
            return
        self._open_table = None
        if (level := head["level"]) in ("WARN", "ERROR", "FATAL"):
            self.problems = [*self.problems, (level, f"{head['file']}: {text}")][-_MAX_PROBLEMS:]
        elif created := _CREATED.search(text):
            self.accepted.pop(created[1], None)
            if created[2] == "remote-request":
                self.accepted[created[1]] = None
            else:
                self.created.append(created[1])
        elif lanes := _LANES.search(text):
            self._lanes[lanes[1]] = set()
            self._own_config[lanes[1]] = self._new_config
            self._new_config = None
        elif (lane := _LANE.search(text)) and lane[1] in self._lanes:
            self._lanes[lane[1]].add(lane[2])
        elif config := _CONFIG.search(text):
            self._new_config = config[1]
            self._configs[config[1]] = set(_LANE_NAME.findall(config[2]))

    def path(self, endpoints: Iterable[str], num_bytes: int) -> str:
        """By which path reads of this size come through one of these endpoints, or `unknown`.

        Several paths at once are joined by "+".
        """
        paths = {
            table.path(num_bytes)
            for endpoint in endpoints
            if endpoint in self._lanes
            for table in self._tables_of(endpoint)
        }
        return paths.pop() if len(paths) == 1 else UNKNOWN

    def _tables_of(self, endpoint: str) -> Iterator[_Table]:
        """Tables of an endpoint's configuration, or of all that it may have."""
        own = self._own_config[endpoint]
        for (config, _), table in self._tables.items():
            if config == own or (
                own is None and self._configs.get(config) == self._lanes[endpoint]
            ):
                yield table

    def _feed_table(self, text: str) -> None:
        if head := _TABLE.match(text):
            self._open_table = None
            if head[2].startswith(_READ):
                self._open_table = self._tables[head[1], head[2]] = _Table()
        elif self._open_table is not None and (row := _ROW.match(text)):
            low = _size(row[1])
            high = low if row[2] is None else _size(row[2])
            self._open_table.rows.append((int(low), high, _joined(row[4])))


def _size(text: str) -> float:
    if text == "inf":
        return float("inf")
    digits = text.rstrip("KMGB")
    return int(digits) * _UNITS[text[len(digits) :].rstrip("B")]


def _joined(config: str) -> str:
    """`52% on tcp/lo and 48% on tcp/eth0` as `tcp/eth0+tcp/lo`."""
    return "+".join(sorted(set(_LANE_NAME.findall(config)))) or UNKNOWN
