"""What the report takes out of an analysis: estimates that have an interval, and strata.

An analysis may lack anything: a section, a field, a number. Whatever is absent, is not a finite
number or has no interval reads as None here, and None is written "not measured". So no claim
without an interval can be made further on: there is nothing to make it from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Row = Mapping[str, Any]
Analysis = Mapping[str, Any]
Verdict = Literal["pays", "costs", "no_difference", "undecided"]

_VERDICTS: tuple[Verdict, ...] = ("pays", "costs", "no_difference", "undecided")
_SIMILARITY = ("high", "medium", "low")
_LOAD = ("idle", "busy")
_DESIGNS = ("paired", "randomised", "sessions")
_ESTIMATORS = ("neyman", "stratified", "lin_hc2", "aipw")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g|t)bit")
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
SAME_NODE = "same-node"
_Place = tuple[int, str]
Order = tuple[tuple[int, float, str], _Place, _Place, _Place, int]
_MOST = 1e100


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its interval, in one unit."""

    estimate: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit; a negative factor turns the interval round."""
        bounds = sorted((self.low * factor, self.high * factor))
        return Estimate(self.estimate * factor, bounds[0], bounds[1])

    @property
    def sign(self) -> int:
        """-1 or 1 if the interval lies on that side of zero, 0 if it holds zero."""
        return (self.low > 0) - (self.high < 0)


@dataclass(frozen=True, slots=True)
class Stratum:
    """The conditions of an effect, taken from "link/tokens/load/similarity/language"."""

    label: str
    link: str
    tokens: int | None
    load: str
    similarity: str
    language: str

    @classmethod
    def parse(cls, label: str) -> Stratum:
        """Any label; one of another form is its own link, and the other parts are empty."""
        parts = label.rsplit("/", 4)
        if len(parts) < 5 or not re.fullmatch(r"[0-9]{1,12}", parts[1]):
            return cls(label, label, None, "", "", "")
        return cls(label, parts[0], int(parts[1]), *parts[2:])

    @property
    def order(self) -> Order:
        """Near links first, then similar before different, idle before busy, short before long."""
        return (
            link_order(self.link),
            _place(self.similarity, _SIMILARITY),
            _place(self.language, ("en", "zh")),
            _place(self.load, _LOAD),
            self.tokens or 0,
        )

    @property
    def but_tokens(self) -> tuple[str, str, str, str]:
        """The conditions other than the length: strata with the same differ in length only."""
        return self.link, self.similarity, self.language, self.load


def link_order(link: str) -> tuple[int, float, str]:
    """The same node first, then rates from the fastest, then names without a rate."""
    rate = bits_per_s(link)
    if link == SAME_NODE:
        return 0, 0.0, link
    return (2, 0.0, link) if rate is None else (1, -rate, link)


def bits_per_s(link: str) -> float | None:
    """The rate that a link is named for: "100mbit"; None if the name tells none."""
    match = _RATE.fullmatch(link)
    return float(match[1]) * _BITS[match[2]] if match else None


def rows(analysis: Analysis, section: str) -> list[Row]:
    """The rows of a section that is a list; none if it is absent or something else."""
    found = analysis.get(section)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def part(row: Row, name: str) -> Row:
    """A mapping within a mapping; empty if it is absent or something else."""
    found = row.get(name)
    return found if isinstance(found, Mapping) else {}


def number(row: Row, name: str) -> float | None:
    """A number, or None; infinite ones and those beyond any measurement count as none."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not abs(value) < _MOST:  # not a number, infinite, or nothing that was ever measured
        return None
    return float(value) if abs(value) > 1 / _MOST else 0.0


def words(row: Row, name: str) -> str:
    """A text; empty if it is absent."""
    value = row.get(name)
    return "" if value is None else str(value)


def estimate(
    row: Row, value: str = "estimate", low: str = "low", high: str = "high"
) -> Estimate | None:
    """The number and its interval; None if any of the three is missing or they are out of order."""
    found = [number(row, name) for name in (value, low, high)]
    if found[0] is None or found[1] is None or found[2] is None or found[1] > found[2]:
        return None
    return Estimate(found[0], found[1], found[2])


def relative(row: Row) -> Estimate | None:
    """The effect as a fraction of the control's mean, with its interval."""
    return estimate(row, "relative", "relative_low", "relative_high")


def verdict_of(row: Row) -> Verdict | None:
    """The verdict of a row of `verdicts`; None where the effect it rests on has no interval."""
    latency = part(row, "latency")
    if relative(latency) is None and estimate(latency) is None:
        return None
    return next((verdict for verdict in _VERDICTS if verdict == row.get("verdict")), None)


def verdict_rows(analysis: Analysis, arm: str) -> list[tuple[Stratum, Row]]:
    """An arm's verdicts by stratum, in the order in which the report shows strata."""
    found = [
        (Stratum.parse(words(row, "stratum")), row)
        for row in rows(analysis, "verdicts")
        if row.get("arm") == arm and row.get("stratum") is not None
    ]
    return sorted(found, key=lambda pair: pair[0].order)


def arms(analysis: Analysis) -> list[str]:
    """Every arm that has a verdict: relay first, the rest by name."""
    names = {words(row, "arm") for row in rows(analysis, "verdicts")} - {""}
    return sorted(names, key=lambda name: (name != "relay", name))


def primary_outcome(analysis: Analysis) -> str:
    """The outcome that verdicts rest on first; the time to the first token if none is named."""
    named = part(analysis, "meta").get("outcome_primary")
    if isinstance(named, list):
        named = named[0] if named else None
    return str(named) if named else "ttft_s"


def effects(analysis: Analysis, **fields: object) -> list[Row]:
    """The effects that have all these fields."""
    return [
        row
        for row in rows(analysis, "effects")
        if all(row.get(name) == value for name, value in fields.items())
    ]


def best_by_stratum(found: list[Row]) -> list[tuple[Stratum, Row]]:
    """One effect for each stratum: of several estimators the one that assumes least.

    Paired designs come first, as verdicts have it. A difference of means within the stratum
    assumes nothing beyond the design; adjusted estimators are shown beside it, not instead of it.
    """
    chosen: dict[str, Row] = {}
    for row in sorted(found, key=_assumptions):
        is_known = relative(row) is not None or estimate(row) is not None
        if row.get("stratum") is not None and is_known and row.get("estimator") in _ESTIMATORS:
            chosen.setdefault(words(row, "stratum"), row)
    pairs = [(Stratum.parse(label), row) for label, row in chosen.items()]
    return sorted(pairs, key=lambda pair: pair[0].order)


def _assumptions(row: Row) -> tuple[_Place, _Place]:
    return _place(words(row, "design"), _DESIGNS), _place(words(row, "estimator"), _ESTIMATORS)


def _place(value: str, known: tuple[str, ...]) -> _Place:
    return (known.index(value), "") if value in known else (len(known), value)
