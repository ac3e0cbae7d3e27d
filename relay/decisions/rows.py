"""A record as a row of the log: flat, a nested field's name after its parent's and a dot.

`{"reason": "relayed", "decision": {"arm": "relay"}}` is the row `reason`, `decision.arm`. What the
columns mean is told at `RelayRecord`; a row has one more, `response_id`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from kvrelay.relay.record import RelayRecord

Row = dict[str, Any]
RESPONSE_ID = "response_id"
# What vLLM 0.29 makes of an answer's id: a completion's prompts are numbered at its end, beams get
# a random id of their own, the engine adds 8 digits, and copies (n > 1) are numbered in front.
_REQUEST_ID = re.compile(r"(?:\d+_)?(?:(?P<completion>cmpl-.+)-\d+|(?P<other>.+))-[0-9a-f]{8}")
_BEAM = re.compile(r"-[0-9a-f]{16}-beam(?:-\d+)?$")


def response_id(request_id: str) -> str:
    """The id of the OpenAI answer that an engine's request belongs to.

    `0_cmpl-7-1-0a1b2c3d`, the first copy of the second prompt, belongs to `cmpl-7`. An id of
    another form, which an engine without HTTP front may have, is its own answer's.
    """
    match = _REQUEST_ID.fullmatch(request_id)
    return _BEAM.sub("", match["completion"] or match["other"]) if match else request_id


def to_row(record: Mapping[str, Any]) -> Row:
    """The row of a record, see `RelayRecord.to_dict`."""
    row = dict(_leaves(record, ""))
    row[RESPONSE_ID] = response_id(row["request_id"])
    return row


def to_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """The record that a row was made of."""
    record: dict[str, Any] = {}
    for column, value in row.items():
        *parents, name = column.split(".")
        inner = record
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    del record[RESPONSE_ID]
    return record


def _leaves(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def column_types(kind: type = RelayRecord, prefix: str = "") -> dict[str, Any]:
    """The type of each column that a record declares: `int`, `str`, ... or `list[str]`.

    So that a column has one type in all files, also where nothing but null stands in it. What a
    record holds in a dictionary is not declared.
    """
    types: dict[str, Any] = {RESPONSE_ID: str} if not prefix else {}
    for name, hint in get_type_hints(kind).items():
        declared = _present(hint)
        if is_dataclass(declared):
            types |= column_types(declared, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif get_origin(declared) is tuple:
            types[prefix + name] = list[get_args(declared)[0]]  # type: ignore[misc]
        elif isinstance(declared, type) and get_origin(declared) is None:
            base = next((b for b in (bool, int, float, str) if issubclass(declared, b)), None)
            if base is not None:
                types[prefix + name] = base
    return types


def _present(hint: Any) -> Any:
    """`float | None` as `float`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    return next(inner for inner in get_args(hint) if inner is not type(None))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows are wanted; None takes all.

    Attributes:
        agent, reason, arm, session_id: as the record has them.
        since_s: arrived then or later, in unix seconds.
    """

    agent: str | None = None
    reason: str | None = None
    arm: str | None = None
    session_id: str | None = None
    since_s: float = 0.0

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Whether the row is wanted."""
        wanted = (
            (self.agent, "agent"),
            (self.reason, "reason"),
            (self.arm, "decision.arm"),
            (self.session_id, "session_id"),
        )
        return row["time_s"] >= self.since_s and all(
            value is None or row.get(column) == value for value, column in wanted
        )
