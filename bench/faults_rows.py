"""The rows of `kvrelay bench faults`, computed from its samples: one injection each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from kvrelay.bench.report import Row, number
from kvrelay.bench.stats import figure

# All of these have to be 0.
ZEROS = ("failures", "wrong_tokens", "wrong_reason", "leases_leaked", "bytes_leaked")
_COUNTS = ("requests", *ZEROS, "requests_on_killed", "faults_caught")
_FIGURES = ("time_lost_s", "recovery_s", "replica_recovery_s")


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per fault, in the order of their names.

    Counts are sums over the injections, also those that `missed`: all blocks had come before the
    fault was there. `requests` are those to replicas that live on, of which
    `failures` have no answer; `requests_on_killed` went down with their replica, and
    `replica_recovery_s` is until it answered again. `reasons` counts what B's records said where
    the fault struck. `time_lost_s` is B's answer over its recomputation of the same prompt,
    `recovery_s` from the end of the fault, or from a kill, until B relays from that source again.
    """
    names = sorted({sample["fault"] for sample in samples})
    return [_row(name, [s for s in samples if s["fault"] == name]) for name in names]


def broken_promises(rows: Sequence[Row]) -> list[str]:
    """What is not 0 and has to be, in words."""
    return [f"{row['fault']}: {row[name]} {name}" for row in rows for name in ZEROS if row[name]]


def _row(fault: str, samples: Sequence[Row]) -> Row:
    hits = [sample for sample in samples if not sample["missed"]]
    row: Row = {"fault": fault, "injections": len(hits), "missed": len(samples) - len(hits)}
    row |= {name: sum(sample[name] for sample in samples) for name in _COUNTS}
    for name in _FIGURES:
        if values := [sample[name] for sample in hits if name in sample]:
            row[name] = figure(values)
    row["reasons"] = dict(sorted(Counter(sample["reason"] for sample in hits).items()))
    return row


def _span(name: str) -> Callable[[Row], str]:
    """A cell: median of a figure, and below it its range."""

    def cell(row: Row) -> str:
        value = row.get(name)
        if value is None:
            return "-"
        return f"{value['median']:.2f}\n[dim]{value['min']:.2f} - {value['max']:.2f}[/]"

    return cell


TABLE: Mapping[str, Callable[[Row], str]] = {
    "fault": number("fault"),
    "times": number("injections"),
    "requests": number("requests"),
    "failed": number("failures"),
    "wrong\ntokens": number("wrong_tokens"),
    "wrong\nreason": number("wrong_reason"),
    "leaked\nleases": number("leases_leaked"),
    "leaked\nbytes": number("bytes_leaked"),
    "time\nlost, s": _span("time_lost_s"),
    "recovery,\ns": _span("recovery_s"),
    "on killed\nreplicas": number("requests_on_killed"),
    "replica\nback, s": _span("replica_recovery_s"),
}
REASONS_TABLE: Mapping[str, Callable[[Row], str]] = {
    "fault": number("fault"),
    "B's records said": lambda row: ", ".join(
        f"{count} {reason}" for reason, count in row["reasons"].items()
    ),
}
